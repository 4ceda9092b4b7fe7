#![expect(
    unsafe_code,
    reason = "ioctls have no safe form; the read-only ones are here"
)]
//! The two questions a block device answers by ioctl: its size and its block size.
//!
//! Each function takes an open file and gives a checked value. Nothing else of this
//! crate is unsafe.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use nix::libc::c_int;

mod raw {
    use nix::libc::c_int;

    // Linux include/uapi/linux/fs.h. BLKGETSIZE64 is declared with size_t and writes
    // 64 bits on every architecture this is built for.
    nix::ioctl_read!(blkgetsize64, 0x12, 114, u64);
    nix::ioctl_read_bad!(blksszget, nix::request_code_none!(0x12, 104), c_int);
}

/// The size of a block device in bytes (`BLKGETSIZE64`).
pub fn device_size(device: impl AsFd) -> io::Result<u64> {
    let mut bytes = 0;
    // SAFETY: the descriptor is borrowed for the call, and the kernel writes one u64
    // to the pointer, which is valid for that.
    unsafe { raw::blkgetsize64(device.as_fd().as_raw_fd(), &mut bytes) }?;
    Ok(bytes)
}

/// The size of a device's logical block in bytes (`BLKSSZGET`).
pub fn device_block(device: impl AsFd) -> io::Result<u32> {
    let mut bytes: c_int = 0;
    // SAFETY: the descriptor is borrowed for the call, and the kernel writes one int
    // to the pointer, which is valid for that.
    unsafe { raw::blksszget(device.as_fd().as_raw_fd(), &mut bytes) }?;
    u32::try_from(bytes).map_err(|_| io::Error::other(format!("a block of {bytes} bytes")))
}
