//! Blocks of a disk: fetching them by LBA, comparing, and writing those that differ.

use std::io;

use repave_plan::table::{ReadError, TableImage};
use repave_plan::units::{BlockSize, Extent, Lba};
use repave_survey::block_io::BlockRead;

use crate::block_io::BlockWrite;

/// Why a table could not be fetched from a disk.
pub type ReadTableError = ReadError<io::Error>;

/// Fetches both copies of the table that is on the disk now.
pub fn read_table_image(dev: &dyn BlockRead) -> Result<TableImage, ReadTableError> {
    let block = BlockSize(dev.block());
    let blocks = dev.len() / u64::from(dev.block().max(1));
    TableImage::read(block, blocks, |first, into| {
        dev.read_at(first.0 * u64::from(block.0), into)
    })
}

/// The runs of all-zero blocks among these, for the place of the shadow array. At
/// most the first 4 MiB of the extent are read.
pub fn zero_runs(dev: &dyn BlockRead, within: Extent) -> io::Result<Vec<Extent>> {
    let size = u64::from(dev.block().max(1));
    let end = within.last.0.min(within.first.0 + 4 * 1024 * 1024 / size);
    let mut runs: Vec<Extent> = Vec::new();
    let mut buf = vec![0u8; size as usize];
    for lba in within.first.0..=end {
        dev.read_at(lba * size, &mut buf)?;
        if !is_zero(&buf) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.last.0 + 1 == lba => run.last = Lba(lba),
            _ => runs.push(Extent {
                first: Lba(lba),
                last: Lba(lba),
            }),
        }
    }
    Ok(runs)
}

pub(super) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|b| *b == 0)
}

/// The bytes of these blocks.
pub(super) fn fetch(dev: &dyn BlockRead, extent: Extent) -> io::Result<Vec<u8>> {
    let block = BlockSize(dev.block());
    let mut bytes = vec![0u8; extent.bytes(block).0 as usize];
    dev.read_at(extent.offset(block).0, &mut bytes)?;
    Ok(bytes)
}

/// Writes the blocks from `first` on that differ from what is there, each run of
/// them in one write: a sector that need not change cannot be torn.
pub(super) fn write_changed(dev: &mut dyn BlockWrite, first: Lba, bytes: &[u8]) -> io::Result<()> {
    let size = dev.block() as usize;
    let offset = first.0 * size as u64;
    let mut now = vec![0u8; bytes.len()];
    dev.read_at(offset, &mut now)?;
    let differs: Vec<bool> = bytes
        .chunks(size)
        .zip(now.chunks(size))
        .map(|(want, is)| want != is)
        .collect();
    let mut at = 0;
    while at < differs.len() {
        let run = differs[at..].iter().take_while(|d| **d).count();
        if run > 0 {
            let bytes = &bytes[at * size..(at + run) * size];
            dev.write_at(offset + (at * size) as u64, bytes)?;
        }
        at += run.max(1);
    }
    Ok(())
}
