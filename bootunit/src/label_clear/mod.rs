//! The first destructive step: old ZFS labels and signatures are cleared.
//!
//! Takes what the plan lists and a disk, and zeroes bytes 16 KiB to 256 KiB of every
//! label or remnant at the listed places, the header of a listed cache device, and
//! the magics of listed signatures. [`state`] says what a look at the disk gives,
//! [`apply`] destroys, [`prove`] flushes and reads back. Nothing is written where
//! nothing of ZFS stands, never a byte of a forbidden range (both copies of the
//! partition table, and in grow mode the kept pool's extent), never a label of a kept
//! pool; a label of any pool that is not listed stops the step before its first write.

pub mod hand;
pub mod verdict;

mod look;
mod ranges;

use std::io;
use std::ops::Range;

use repave_plan::step::{LabelClear, Outcome, StepState};
use repave_plan::units::{BlockSize, PoolGuid, VdevGuid};
use repave_survey::block_io::BlockRead;

use crate::block_io::BlockWrite;
use look::{Look, Wipe, look};

/// The largest write in bytes; one label's cleared part fits.
const CHUNK: u64 = 256 << 10;

/// What is to be cleared. All ranges are in bytes of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClearRequest {
    /// Every extent that is destroyed or merged, and the new partition's: each has
    /// four places for labels.
    pub extents: Vec<Range<u64>>,
    /// The pools whose labels go.
    pub pools: Vec<PoolGuid>,
    /// Spares and cache devices whose labels go: those name no pool.
    pub vdevs: Vec<VdevGuid>,
    /// Pools whose labels stay, wherever they are.
    pub kept: Vec<PoolGuid>,
    /// Never written, not even in part: both copies of the table, a kept extent.
    pub forbidden: Vec<Range<u64>>,
    /// Signatures that go.
    pub signatures: Vec<Signature>,
}

/// A signature and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// What it is a signature of.
    pub kind: String,
    /// Where its magic starts on the disk, in bytes.
    pub offset: u64,
    /// Its magic.
    pub magic: Vec<u8>,
}

/// Why the step cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ClearError {
    /// The request contradicts itself or the disk; nothing was written.
    #[error("act on this request: {what}")]
    Request {
        /// What is wrong with it.
        what: String,
    },
    /// Something stands there that the request does not list; nothing was written.
    #[error("clear labels: {found}")]
    Foreign {
        /// What was found.
        found: String,
    },
    /// Reading failed.
    #[error("read the disk while clearing labels")]
    Read(#[source] io::Error),
    /// Writing failed.
    #[error("write {len} bytes at byte {offset}")]
    Write {
        /// Offset on the disk in bytes.
        offset: u64,
        /// Length in bytes.
        len: usize,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Flushing failed.
    #[error("flush the disk while clearing labels")]
    Flush(#[source] io::Error),
    /// Reading back shows that something is left.
    #[error("prove that labels are cleared: {found}")]
    Left {
        /// What is left.
        found: String,
    },
}

impl ClearRequest {
    /// The request of a planned step. `forbidden` are the byte ranges of both copies
    /// of the table and, when the pool is kept, of its partition.
    pub fn of(
        step: &LabelClear,
        block: BlockSize,
        forbidden: Vec<Range<u64>>,
    ) -> Result<ClearRequest, ClearError> {
        let bytes = |extent: &repave_plan::units::Extent| {
            let start = extent.offset(block).0;
            start..start + extent.bytes(block).0
        };
        let signature = |wipe: &repave_plan::step::SignatureWipe| {
            let magic = parse_hex(&wipe.magic).ok_or_else(|| ClearError::Request {
                what: format!("{:?} is no hexadecimal magic of {}", wipe.magic, wipe.kind),
            })?;
            Ok(Signature {
                kind: wipe.kind.clone(),
                offset: wipe.offset,
                magic,
            })
        };
        Ok(ClearRequest {
            extents: step.extents.iter().map(bytes).collect(),
            pools: step.pool_guids.clone(),
            vdevs: step.vdev_guids.clone(),
            kept: step.kept_pool_guids.clone(),
            forbidden,
            signatures: step
                .signatures
                .iter()
                .map(signature)
                .collect::<Result<_, _>>()?,
        })
    }
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
    let digits = digits.filter(|digits| !digits.is_empty() && digits.len() % 2 == 0)?;
    Some(
        digits
            .chunks(2)
            .map(|pair| (pair[0] * 16 + pair[1]) as u8)
            .collect(),
    )
}

/// What the disk says: `Before` while something listed is there, `After` when nothing
/// is, `Neither` when something stands there that is not listed.
pub fn state(dev: &dyn BlockRead, request: &ClearRequest) -> Result<StepState, ClearError> {
    let Look { wipe, foreign, .. } = look(dev, request)?;
    Ok(match foreign.into_iter().next() {
        Some(found) => StepState::Neither { found },
        None if wipe.is_empty() => StepState::After,
        None => StepState::Before,
    })
}

/// Clears. Every label is cut short first and loses its first sector only when all
/// the rest is durable: whatever a power cut leaves is still seen by [`state`], so
/// that a second run ends with the same bytes as an uncut one.
pub fn apply(dev: &mut dyn BlockWrite, request: &ClearRequest) -> Result<Outcome, ClearError> {
    let Look { wipe, foreign, .. } = look(dev, request)?;
    if let Some(found) = foreign.into_iter().next() {
        return Err(ClearError::Foreign { found });
    }
    if wipe.is_empty() {
        return Ok(Outcome::AlreadyDone);
    }
    write(dev, &wipe)?;
    Ok(Outcome::Changed)
}

/// Flushes and reads back: no listed label, remnant, header or signature is left.
pub fn prove(dev: &mut dyn BlockWrite, request: &ClearRequest) -> Result<(), ClearError> {
    dev.flush().map_err(ClearError::Flush)?;
    let Look { found, foreign, .. } = look(dev, request)?;
    match foreign.into_iter().chain(found).next() {
        Some(found) => Err(ClearError::Left { found }),
        None => Ok(()),
    }
}

fn write(dev: &mut dyn BlockWrite, wipe: &Wipe) -> Result<(), ClearError> {
    for range in &wipe.magics {
        zero_inside_blocks(dev, range)?;
    }
    for range in &wipe.bodies {
        zero(dev, range)?;
    }
    // ORDER: without this flush a cut could keep a label's first sector cleared and
    // lose the rest, which nothing would find again (tests: every_cut_resumes).
    dev.flush().map_err(ClearError::Flush)?;
    for range in &wipe.anchors {
        zero(dev, range)?;
    }
    dev.flush().map_err(ClearError::Flush)
}

fn zero(dev: &mut dyn BlockWrite, range: &Range<u64>) -> Result<(), ClearError> {
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(CHUNK);
        put(dev, at, &vec![0; len as usize])?;
        at += len;
    }
    Ok(())
}

/// Zeroes a range smaller than a block with the rest of its blocks as it was.
fn zero_inside_blocks(dev: &mut dyn BlockWrite, range: &Range<u64>) -> Result<(), ClearError> {
    let blocks = ranges::outward(range, u64::from(dev.block()));
    let mut bytes = vec![0; (blocks.end - blocks.start) as usize];
    dev.read_at(blocks.start, &mut bytes)
        .map_err(ClearError::Read)?;
    bytes[(range.start - blocks.start) as usize..(range.end - blocks.start) as usize].fill(0);
    put(dev, blocks.start, &bytes)
}

fn put(dev: &mut dyn BlockWrite, offset: u64, bytes: &[u8]) -> Result<(), ClearError> {
    dev.write_at(offset, bytes)
        .map_err(|source| ClearError::Write {
            offset,
            len: bytes.len(),
            source,
        })
}

#[cfg(test)]
mod tests;
