//! A disk in memory with a volatile write cache, for tests and the power-cut harness.
//!
//! Takes writes like a device and remembers them and the flushes in order, so that
//! every moment at which the power could go can be built again from the start and
//! the list. Sparse: only blocks that are not all zero take room. It never touches
//! a real disk.

pub mod gpt;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use repave_survey::block_io::BlockRead;

use crate::block_io::BlockWrite;

/// A block of the largest size that is all zero, to compare with.
const ZEROS: [u8; 4096] = [0; 4096];

/// One thing that was done to the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Whole blocks were written.
    Write {
        /// Offset in bytes.
        offset: u64,
        /// What was written.
        bytes: Vec<u8>,
    },
    /// Every earlier write became durable.
    Flush,
}

/// The disk.
#[derive(Debug, Clone)]
pub struct ModelDisk {
    block: u32,
    count: u64,
    /// Blocks that are not all zero, by number: two disks of equal content have
    /// equal maps.
    blocks: BTreeMap<u64, Arc<[u8]>>,
    ops: Vec<Op>,
    fail_at: Option<usize>,
}

impl PartialEq for ModelDisk {
    /// Content only: neither what was done to it nor what it will do.
    fn eq(&self, other: &Self) -> bool {
        (self.block, self.count) == (other.block, other.count) && self.blocks == other.blocks
    }
}

impl ModelDisk {
    /// An empty disk of so many logical blocks.
    pub fn new(block: u32, count: u64) -> ModelDisk {
        ModelDisk {
            block,
            count,
            blocks: BTreeMap::new(),
            ops: Vec::new(),
            fail_at: None,
        }
    }

    /// A disk with this content; the last block is filled up with zeros.
    pub fn from_bytes(block: u32, content: &[u8]) -> ModelDisk {
        let count = (content.len() as u64).div_ceil(u64::from(block));
        let mut disk = ModelDisk::new(block, count);
        disk.set(0, content);
        disk
    }

    /// Changes the content behind the back of the writer: nothing is recorded, any
    /// offset and length will do. What lies beyond the end is dropped.
    pub fn set(&mut self, offset: u64, bytes: &[u8]) {
        let size = u64::from(self.block);
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() && at / size < self.count {
            let inside = (at % size) as usize;
            let len = rest.len().min(size as usize - inside);
            let mut block = match self.blocks.get(&(at / size)) {
                Some(block) => block.to_vec(),
                None => vec![0; size as usize],
            };
            block[inside..inside + len].copy_from_slice(&rest[..len]);
            match block[..] == ZEROS[..block.len()] {
                true => self.blocks.remove(&(at / size)),
                false => self.blocks.insert(at / size, block.into()),
            };
            at += len as u64;
            rest = &rest[len..];
        }
    }

    /// What was done since the disk was made or [`forget`](Self::forget) was called.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Forgets what was done; the content stays.
    pub fn forget(&mut self) {
        self.ops.clear();
    }

    /// Makes the write or flush after `n` more of them fail without any effect.
    pub fn fail_after(&mut self, n: usize) {
        self.fail_at = Some(self.ops.len() + n);
    }

    /// The blocks that are not all zero.
    pub fn content(&self) -> &BTreeMap<u64, Arc<[u8]>> {
        &self.blocks
    }

    fn fail_now(&self) -> io::Result<()> {
        match self.fail_at {
            Some(at) if self.ops.len() >= at => Err(io::Error::other("the model disk failed")),
            _ => Ok(()),
        }
    }
}

impl BlockRead for ModelDisk {
    fn len(&self) -> u64 {
        self.count * u64::from(self.block)
    }

    fn block(&self) -> u32 {
        self.block
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match offset.checked_add(buf.len() as u64) {
            Some(end) if end <= self.len() => {}
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        let size = u64::from(self.block);
        // Most of a disk is empty: only what is there is looked up and copied.
        buf.fill(0);
        let end = offset + buf.len() as u64;
        for (number, block) in self.blocks.range(offset / size..end.div_ceil(size)) {
            let start = number * size;
            let (from, to) = (start.max(offset), (start + size).min(end));
            buf[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&block[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }
}

impl BlockWrite for ModelDisk {
    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.fail_now()?;
        let size = u64::from(self.block);
        if !offset.is_multiple_of(size) || !(buf.len() as u64).is_multiple_of(size) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a write that is no number of whole blocks",
            ));
        }
        match offset.checked_add(buf.len() as u64) {
            Some(end) if end <= self.len() => {}
            _ => return Err(io::ErrorKind::StorageFull.into()),
        }
        self.set(offset, buf);
        self.ops.push(Op::Write {
            offset,
            bytes: buf.to_vec(),
        });
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.fail_now()?;
        self.ops.push(Op::Flush);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_read_back_and_are_recorded() {
        let mut disk = ModelDisk::new(512, 8);
        assert_eq!(disk.len(), 4096);
        disk.write_at(512, &[7; 1024]).unwrap();
        disk.flush().unwrap();
        let mut buf = [1u8; 4];
        disk.read_at(1534, &mut buf).unwrap();
        assert_eq!(buf, [7, 7, 0, 0]);
        assert_eq!(disk.ops().len(), 2);
        assert_eq!(disk.ops()[1], Op::Flush);

        disk.write_at(512, &[0; 1024]).unwrap();
        assert_eq!(disk, ModelDisk::new(512, 8), "zero blocks take no room");
    }

    #[test]
    fn it_refuses_what_a_device_refuses() {
        let mut disk = ModelDisk::new(512, 8);
        for (offset, len) in [(1, 512), (0, 511), (4096, 512), (u64::MAX - 511, 512)] {
            assert!(disk.write_at(offset, &vec![1; len]).is_err(), "{offset}");
        }
        assert!(disk.read_at(4095, &mut [0; 2]).is_err());
        disk.fail_after(1);
        disk.write_at(0, &[1; 512]).unwrap();
        assert!(disk.write_at(512, &[1; 512]).is_err());
        assert!(disk.flush().is_err());
        assert_eq!(disk.content().len(), 1);
    }
}
