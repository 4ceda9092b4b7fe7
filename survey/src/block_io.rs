//! The read half of a block device or of an image of one.
//!
//! Every probe of this crate reads through [`BlockRead`], so that the same code
//! surveys a device, an image file and a model disk in memory. The write half is
//! in the boot program, which is the only crate that writes to a disk.

use std::io;

/// Something that can be read like a disk.
pub trait BlockRead {
    /// Size in bytes.
    fn len(&self) -> u64;

    /// Logical block size in bytes (512 or 4096).
    fn block(&self) -> u32;

    /// Fills `buf` from `offset`; an end before that is `UnexpectedEof`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Whether there is nothing to read.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
