//! Labels cleared by a person, on a device or an image, without a plan.
//!
//! Takes a disk, an extent of it, the guids the person names and what this kernel has
//! imported of them, and clears by the same rules as the step: only labels of the
//! named pools and devices, never a byte of a partition table. The verdict on the
//! label's state is the one of `zpool labelclear`; that nothing is left is no failure.

use std::ops::Range;

use repave_plan::step::Outcome;
use repave_plan::units::{PoolGuid, VdevGuid};
use repave_survey::labels::{LabelInfo, read_labels};

use super::verdict::{Force, InCore, LabelclearVerdict, labelclear_verdict};
use super::{ClearError, ClearRequest, apply, prove};
use crate::block_io::BlockWrite;

/// The most bytes of one copy of a table that are believed: more is no table's.
const MAX_TABLE: u64 = 4 << 20;

/// What a person asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandClear {
    /// The device's extent on the disk, in bytes: all of it for a device or an image.
    pub extent: Range<u64>,
    /// The pools whose labels go.
    pub pools: Vec<PoolGuid>,
    /// Spares and cache devices whose labels go.
    pub vdevs: Vec<VdevGuid>,
    /// What this kernel has imported of them.
    pub in_core: InCore,
    /// Whether to go on where `zpool labelclear` asks for `-f`.
    pub force: Force,
}

/// Why nothing was cleared, or not all.
#[derive(Debug, thiserror::Error)]
pub enum HandError {
    /// The label's state or its use says no.
    #[error("clear labels of a device that is {state}: {}", verdict_text(*verdict))]
    Verdict {
        /// The state on the first label.
        state: &'static str,
        /// The verdict.
        verdict: LabelclearVerdict,
    },
    /// A partition table says of itself what no table is.
    #[error("clear labels beside a partition table that claims {bytes} bytes")]
    Table {
        /// What it claims for one copy, in bytes.
        bytes: u64,
    },
    /// Clearing failed, or found what was not named.
    #[error(transparent)]
    Clear(#[from] ClearError),
}

fn verdict_text(verdict: LabelclearVerdict) -> &'static str {
    match verdict {
        LabelclearVerdict::InUse => "an imported pool uses it",
        LabelclearVerdict::NeedsForce => "it may be imported again; only with --force",
        LabelclearVerdict::Clear | LabelclearVerdict::NothingLeft => "nothing is in the way",
    }
}

/// Clears, flushes and reads back. `AlreadyDone` when nothing was left to clear.
pub fn clear_by_hand(dev: &mut dyn BlockWrite, asked: &HandClear) -> Result<Outcome, HandError> {
    let set = read_labels(dev, asked.extent.clone()).map_err(ClearError::Read)?;
    for label in set.labels() {
        check(label, asked)?;
    }
    let request = ClearRequest {
        extents: std::iter::once(asked.extent.clone()).collect(),
        pools: asked.pools.clone(),
        vdevs: asked.vdevs.clone(),
        kept: Vec::new(),
        forbidden: tables(dev)?,
        signatures: Vec::new(),
    };
    let outcome = apply(dev, &request)?;
    prove(dev, &request)?;
    Ok(outcome)
}

fn check(label: &LabelInfo, asked: &HandClear) -> Result<(), HandError> {
    match labelclear_verdict(Some(label.state), asked.in_core, asked.force) {
        LabelclearVerdict::Clear | LabelclearVerdict::NothingLeft => Ok(()),
        verdict => Err(HandError::Verdict {
            state: label.state.as_str(),
            verdict,
        }),
    }
}

/// The ranges of both copies of a table, whether valid or not: at both ends of the disk
/// what 128 entries take (UEFI 2.10, 5.3.2), and wherever a header says its array is.
/// None on a disk without a header.
fn tables(dev: &dyn BlockWrite) -> Result<Vec<Range<u64>>, HandError> {
    let block = u64::from(dev.block());
    let len = dev.len();
    let least = 16 * 1024 + block;
    let mut forbidden = Vec::new();
    for lba in [1, (len / block).saturating_sub(1)] {
        let mut header = vec![0; dev.block() as usize];
        if (lba + 1) * block > len {
            continue;
        }
        dev.read_at(lba * block, &mut header)
            .map_err(ClearError::Read)?;
        if !header.starts_with(b"EFI PART") {
            continue;
        }
        let word = |at: usize| {
            let raw = header[at..at + 4].try_into().unwrap_or_default();
            u64::from(u32::from_le_bytes(raw))
        };
        // PartitionEntryLBA, NumberOfPartitionEntries, SizeOfPartitionEntry.
        let start = (word(72) | word(76) << 32).saturating_mul(block);
        let bytes = word(80) * word(84);
        if bytes > MAX_TABLE {
            return Err(HandError::Table { bytes });
        }
        forbidden.push(start.min(len)..start.saturating_add(bytes).min(len));
        forbidden.push(0..(least + block).min(len));
        forbidden.push(len.saturating_sub(least)..len);
    }
    Ok(forbidden)
}
