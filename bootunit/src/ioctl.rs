#![expect(
    unsafe_code,
    reason = "ioctls have no safe form; all that change a device are here"
)]
//! The ioctls that change what the kernel holds of a disk.
//!
//! Each function takes an open *whole disk* and checked values. `BLKPG` tells the
//! kernel of single partitions while others are mounted, which re-reading the table
//! cannot (Linux `block/ioctl.c`, `include/uapi/linux/blkpg.h`). Nothing else of this
//! crate is unsafe.

use std::ffi::c_char;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use nix::libc::{c_int, c_longlong, c_void};
use repave_plan::units::{Bytes, PartNo};

const BLKPG_ADD_PARTITION: c_int = 1;
const BLKPG_DEL_PARTITION: c_int = 2;
const BLKPG_RESIZE_PARTITION: c_int = 3;

/// `struct blkpg_partition`: start and length are in bytes whatever the block size.
#[repr(C)]
struct BlkpgPartition {
    start: c_longlong,
    length: c_longlong,
    pno: c_int,
    devname: [c_char; 64],
    volname: [c_char; 64],
}

/// `struct blkpg_ioctl_arg`.
#[repr(C)]
struct BlkpgArg {
    op: c_int,
    flags: c_int,
    datalen: c_int,
    data: *mut c_void,
}

const _: () = assert!(size_of::<BlkpgPartition>() == 152 && size_of::<BlkpgArg>() == 24);

mod raw {
    nix::ioctl_write_ptr_bad!(blkpg, nix::request_code_none!(0x12, 105), super::BlkpgArg);
    nix::ioctl_none_bad!(blkflsbuf, nix::request_code_none!(0x12, 97));
}

/// Adds a partition to the kernel's view of the disk. `EBUSY` when the number is taken
/// or the place overlaps another, `EINVAL` when it is unaligned or beyond the end.
pub fn blkpg_add(disk: impl AsFd, number: PartNo, start: Bytes, len: Bytes) -> io::Result<()> {
    blkpg(disk, BLKPG_ADD_PARTITION, number, start, len)
}

/// Removes a partition from the kernel's view. `EBUSY` while anyone has it open, even
/// a probe that only reads; `ENXIO` when there is none of this number.
pub fn blkpg_del(disk: impl AsFd, number: PartNo) -> io::Result<()> {
    blkpg(disk, BLKPG_DEL_PARTITION, number, Bytes(0), Bytes(0))
}

/// Moves a partition's end. **The kernel does not ask whether it is in use**: a mounted
/// file system that is cut short loses data. `start` must be the present one.
pub fn blkpg_resize(disk: impl AsFd, number: PartNo, start: Bytes, len: Bytes) -> io::Result<()> {
    blkpg(disk, BLKPG_RESIZE_PARTITION, number, start, len)
}

/// Drops the device's page cache (`BLKFLSBUF`), so that what is read next comes from
/// the device. On a file that is no device it is `ENOTTY`.
pub fn flush_buffers(device: impl AsFd) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed for the call, which takes no argument.
    unsafe { raw::blkflsbuf(device.as_fd().as_raw_fd()) }?;
    Ok(())
}

fn blkpg(disk: impl AsFd, op: c_int, number: PartNo, start: Bytes, len: Bytes) -> io::Result<()> {
    let too_large = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let mut partition = BlkpgPartition {
        start: start.0.try_into().map_err(too_large)?,
        length: len.0.try_into().map_err(too_large)?,
        pno: number.0.try_into().map_err(too_large)?,
        devname: [0; 64],
        volname: [0; 64],
    };
    let arg = BlkpgArg {
        op,
        flags: 0,
        datalen: size_of::<BlkpgPartition>() as c_int,
        data: (&raw mut partition).cast(),
    };
    // SAFETY: both structs have the kernel's layout (asserted above) and outlive the
    // call; the descriptor is borrowed for it.
    unsafe { raw::blkpg(disk.as_fd().as_raw_fd(), &arg) }?;
    Ok(())
}
