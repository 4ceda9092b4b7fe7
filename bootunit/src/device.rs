//! A real disk, or an image of one in a file, opened for reading and writing.
//!
//! Takes a path and gives a [`BlockWrite`]. A device is written past the page cache,
//! because a disk and its partitions have separate ones and the pool is made through
//! the partition; after a flush the disk's own cache is dropped as well. Opening it
//! changes nothing.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use repave_survey::block_io::BlockRead;
use repave_survey::device::{AlignedBuf, OpenError, Shape, open, read_at};

use crate::block_io::BlockWrite;
use crate::ioctl;

/// The largest single write past the page cache, in bytes.
const CHUNK: usize = 1 << 20;

/// A disk or an image, writable.
#[derive(Debug)]
pub struct DiskDev {
    file: File,
    shape: Shape,
}

impl DiskDev {
    /// Opens a device with the block size the kernel gives, or an image with `block`,
    /// 512 when it is not given. A `block` that is not the device's is an error.
    pub fn open(path: &Path, block: Option<u32>) -> Result<DiskDev, OpenError> {
        let (file, shape) = open(path, OpenOptions::new().read(true).write(true), block)?;
        Ok(DiskDev { file, shape })
    }

    /// What was opened.
    pub fn shape(&self) -> Shape {
        self.shape
    }
}

impl AsFd for DiskDev {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl BlockRead for DiskDev {
    fn len(&self) -> u64 {
        self.shape.len
    }

    fn block(&self) -> u32 {
        self.shape.block
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        read_at(&self.file, self.shape, offset, buf)
    }
}

impl BlockWrite for DiskDev {
    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let block = u64::from(self.shape.block);
        if !offset.is_multiple_of(block) || !(buf.len() as u64).is_multiple_of(block) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} bytes at byte {offset} are not whole blocks", buf.len()),
            ));
        }
        // A write beyond the end would make an image longer instead of failing.
        match offset.checked_add(buf.len() as u64) {
            Some(end) if end <= self.shape.len => {}
            _ => return Err(io::ErrorKind::StorageFull.into()),
        }
        if !self.shape.device {
            return self.file.write_all_at(buf, offset);
        }
        let mut at = offset;
        for chunk in buf.chunks(CHUNK) {
            let mut bounce = AlignedBuf::new(chunk.len());
            bounce.bytes().copy_from_slice(chunk);
            self.file.write_all_at(bounce.bytes(), at)?;
            at += chunk.len() as u64;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        match self.shape.device {
            true => ioctl::flush_buffers(&self.file),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_written_in_whole_blocks_and_never_made_longer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, vec![7; 8192]).unwrap();
        let mut dev = DiskDev::open(&path, Some(512)).unwrap();
        dev.write_at(1024, &[9; 512]).unwrap();
        dev.flush().unwrap();
        let mut wanted = vec![7; 8192];
        wanted[1024..1536].fill(9);
        assert_eq!(std::fs::read(&path).unwrap(), wanted);
        for (offset, len, kind) in [
            (1, 512, io::ErrorKind::InvalidInput),
            (0, 511, io::ErrorKind::InvalidInput),
            (8192, 512, io::ErrorKind::StorageFull),
            (7680, 1024, io::ErrorKind::StorageFull),
            (u64::MAX - 511, 512, io::ErrorKind::StorageFull),
        ] {
            let error = dev.write_at(offset, &vec![1; len]).unwrap_err();
            assert_eq!(error.kind(), kind, "{len} bytes at {offset}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), wanted);
    }

    #[test]
    fn a_file_is_no_device_to_the_ioctls() {
        let file = tempfile::tempfile().unwrap();
        let errors = [
            ioctl::flush_buffers(&file),
            ioctl::blkpg_del(&file, repave_plan::units::PartNo(1)),
        ];
        for error in errors {
            assert_eq!(error.unwrap_err().raw_os_error(), Some(nix::libc::ENOTTY));
        }
    }
}
