//! The write half of a block device: what every destructive step writes through.
//!
//! The same step code runs on a real device, on an image and on the recording
//! model disk of the power-cut harness; none of them knows which it has.

use std::io;

use repave_survey::block_io::BlockRead;

/// Something that can be written like a disk with a volatile write cache: a write
/// is durable only after the next [`flush`](BlockWrite::flush) returned.
pub trait BlockWrite: BlockRead {
    /// Writes all of `buf` at `offset`. Offset and length are multiples of
    /// [`BlockRead::block`].
    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()>;

    /// Makes every earlier write durable.
    fn flush(&mut self) -> io::Result<()>;
}
