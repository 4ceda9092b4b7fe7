//! The writes and the flushes between them.
//!
//! Takes a change and a disk that can be written. [`check_table`] is for before the
//! point of no return, [`table_state`] says where the disk is, [`apply_table`] goes
//! on from there, [`prove_table`] reads it all back.

use std::io;

use repave_plan::step::{Outcome, StepState};
use repave_plan::table::{TableChange, TableError, parse_table};
use repave_plan::units::{BlockSize, Lba};
use repave_survey::block_io::BlockRead;

use crate::block_io::BlockWrite;

use super::classify::{
    BackupIs, CopyBytes, DiskState, Entries, PROTECTIVE, Parts, PrimaryIs, ProtectiveIs, ShadowIs,
    classify, classify_parts,
};
use super::device::{ReadTableError, read_table_image, write_changed};

/// Why the table could not be committed or looked at.
#[derive(Debug, thiserror::Error)]
pub enum TableWriteError {
    /// The change itself.
    #[error("use the planned change of the table")]
    Change {
        /// What is wrong with it.
        #[source]
        source: TableError,
    },
    /// The disk is not the size the plan was made for.
    #[error(
        "find a disk of {expected} blocks of {} bytes: found {found} of {found_block}",
        expected_block.0
    )]
    OtherDisk {
        /// Blocks in the plan.
        expected: u64,
        /// Block size in the plan.
        expected_block: BlockSize,
        /// Blocks of the disk.
        found: u64,
        /// Block size of the disk in bytes.
        found_block: u32,
    },
    /// Reading blocks.
    #[error("read the partition table")]
    Read {
        /// What the disk said.
        #[source]
        source: io::Error,
    },
    /// Fetching the table as it is.
    #[error("fetch the partition table")]
    ReadTable {
        /// What was in the way.
        #[source]
        source: ReadTableError,
    },
    /// Writing or flushing.
    #[error("write {what}")]
    Write {
        /// What was written.
        what: &'static str,
        /// What the disk said.
        #[source]
        source: io::Error,
    },
    /// The place of the shadow array holds something.
    #[error("find only zeros where the shadow array goes, {first}")]
    ShadowTaken {
        /// The first block of the place.
        first: Lba,
    },
    /// The disk holds none of the states that the commit can go on from.
    #[error("go on from what the disk holds: {state}")]
    Neither {
        /// What it holds.
        state: Box<DiskState>,
    },
    /// The table read back is not the new one.
    #[error("read the new table back: {state}")]
    NotProved {
        /// What was read.
        state: Box<DiskState>,
    },
}

/// What to do next, from what the disk holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Nothing is left to do.
    Done,
    /// From the start: the old primary is whole.
    Begin,
    /// From behind the commit: LBA 1 points at the shadow.
    BringHome,
    /// The primary is new; backup, MBR or shadow are not as they shall be.
    Finish,
    /// The primary is not whole; make it again from the bytes saved.
    Rewrite(Entries),
    /// Stop.
    Neither,
}

fn next(state: &DiskState) -> Next {
    let finished = state.backup == BackupIs::New
        && state.protective == ProtectiveIs::New
        && state.shadow != ShadowIs::Remnant;
    match (&state.primary, &state.backup) {
        _ if state.protective == ProtectiveIs::Foreign => Next::Neither,
        (PrimaryIs::Foreign, _) => Next::Neither,
        (PrimaryIs::New, _) if finished => Next::Done,
        (PrimaryIs::New, BackupIs::Foreign) => Next::Neither,
        (PrimaryIs::New, _) => Next::Finish,
        (PrimaryIs::NewShadow, _) => Next::BringHome,
        (PrimaryIs::Old, _) => Next::Begin,
        (PrimaryIs::Invalid { .. }, BackupIs::New) => Next::Rewrite(Entries::New),
        (PrimaryIs::Invalid { .. }, BackupIs::Old) => Next::Rewrite(Entries::Old),
        (PrimaryIs::Invalid { .. }, BackupIs::Remade { entries }) => Next::Rewrite(*entries),
        (PrimaryIs::Invalid { .. }, BackupIs::Invalid { .. } | BackupIs::Foreign) => Next::Neither,
    }
}

/// Whether the commit may begin: both copies are the old ones, byte for byte, and
/// the shadow's place is free. For the time before the point of no return.
pub fn check_table(change: &TableChange, dev: &dyn BlockRead) -> Result<(), TableWriteError> {
    let parts = Parts::of(change)?;
    let state = classify_parts(&parts, dev)?;
    let old = state.primary == PrimaryIs::Old
        && state.backup == BackupIs::Old
        && state.protective != ProtectiveIs::Foreign;
    if !old {
        return Err(TableWriteError::Neither {
            state: Box::new(state),
        });
    }
    check_shadow(&parts, &state)
}

/// Where the disk is with this step.
pub fn table_state(
    change: &TableChange,
    dev: &dyn BlockRead,
) -> Result<StepState, TableWriteError> {
    let state = classify(change, dev)?;
    Ok(match next(&state) {
        Next::Done => StepState::After,
        Next::Neither => StepState::Neither {
            found: state.to_string(),
        },
        Next::Begin | Next::BringHome | Next::Finish | Next::Rewrite(_) => StepState::Before,
    })
}

/// Commits the new table, from whatever state the disk is in.
pub fn apply_table(
    change: &TableChange,
    dev: &mut dyn BlockWrite,
) -> Result<Outcome, TableWriteError> {
    let parts = Parts::of(change)?;
    // ORDER: before anything is concluded from what is read. A process that was
    // killed leaves writes in the cache that read back but are not durable; going on
    // from them could overwrite the array that the durable LBA 1 points at
    // (test: every_flush_is_needed).
    flush(dev, "what an earlier attempt left in the cache")?;
    let mut state = classify_parts(&parts, dev)?;
    let rewrite = next(&state);
    if let Next::Rewrite(entries) = rewrite {
        let primary = match entries {
            Entries::Old => &parts.old_primary,
            Entries::New => &parts.new_primary,
        };
        write_copy(dev, primary)?;
        state = classify_parts(&parts, dev)?;
    }
    match next(&state) {
        Next::Done if rewrite == Next::Done => return Ok(Outcome::AlreadyDone),
        Next::Begin => {
            check_shadow(&parts, &state)?;
            begin(&parts, dev)?;
            bring_home(&parts, dev)?;
        }
        Next::BringHome => bring_home(&parts, dev)?,
        Next::Done | Next::Finish => {}
        Next::Rewrite(_) | Next::Neither => {
            return Err(TableWriteError::Neither {
                state: Box::new(state),
            });
        }
    }
    finish(&parts, dev)?;
    prove(&parts, dev)?;
    Ok(Outcome::Changed)
}

/// Reads everything back and compares it with the plan, bytes first and then once
/// more as a table.
pub fn prove_table(change: &TableChange, dev: &dyn BlockRead) -> Result<(), TableWriteError> {
    prove(&Parts::of(change)?, dev)
}

fn prove(parts: &Parts<'_>, dev: &dyn BlockRead) -> Result<(), TableWriteError> {
    let state = classify_parts(parts, dev)?;
    let image = read_table_image(dev).map_err(|source| TableWriteError::ReadTable { source })?;
    let same = parse_table(&image).as_ref() == Ok(&parts.after);
    match next(&state) == Next::Done && same {
        true => Ok(()),
        false => Err(TableWriteError::NotProved {
            state: Box::new(state),
        }),
    }
}

fn check_shadow(parts: &Parts<'_>, state: &DiskState) -> Result<(), TableWriteError> {
    match parts.shadow_in_gap && state.shadow == ShadowIs::Other {
        true => Err(TableWriteError::ShadowTaken {
            first: parts.shadow.first,
        }),
        false => Ok(()),
    }
}

/// From the old table to the instant of the commit.
fn begin(parts: &Parts<'_>, dev: &mut dyn BlockWrite) -> Result<(), TableWriteError> {
    // ORDER: the backup first, array before header, while the old primary is whole:
    // once LBA 1 is new there is nothing left to do at the end of the disk that the
    // firmware might "repair" from the wrong copy.
    write_copy(dev, &parts.new_backup)?;
    // ORDER: the array is durable before LBA 1 points at it; otherwise the primary
    // could be invalid after a power cut and Linux would find no partition, not even
    // root (test: every_flush_is_needed).
    put(
        dev,
        parts.shadow.first,
        parts.new_primary.array,
        "the shadow array",
    )?;
    put(dev, Lba(1), &parts.shadow_header, "LBA 1, the commit")
}

/// From the commit to the new table in its usual place.
fn bring_home(parts: &Parts<'_>, dev: &mut dyn BlockWrite) -> Result<(), TableWriteError> {
    // ORDER: as above: array, flush, then the one sector that points at it.
    write_copy(dev, &parts.new_primary)
}

/// What is left when the primary is new and at home.
fn finish(parts: &Parts<'_>, dev: &mut dyn BlockWrite) -> Result<(), TableWriteError> {
    let state = classify_parts(parts, dev)?;
    if state.backup != BackupIs::New {
        write_copy(dev, &parts.new_backup)?;
    }
    if state.protective == ProtectiveIs::Old {
        // Boot code is kept as it is now, whoever wrote it.
        let mut sector = vec![0u8; dev.block() as usize];
        dev.read_at(0, &mut sector)
            .map_err(|source| TableWriteError::Read { source })?;
        sector[PROTECTIVE].copy_from_slice(parts.new_protective);
        put(dev, Lba(0), &sector, "the protective MBR")?;
    }
    // ORDER: last, when no durable header points there any more.
    if state.shadow == ShadowIs::Remnant {
        let zeros = vec![0u8; parts.new_primary.array.len()];
        put(dev, parts.shadow.first, &zeros, "zeros over the shadow")?;
    }
    Ok(())
}

/// Writes one copy: its array, flush, its header, flush.
fn write_copy(dev: &mut dyn BlockWrite, copy: &CopyBytes<'_>) -> Result<(), TableWriteError> {
    put(dev, copy.array_extent.first, copy.array, "an entry array")?;
    put(dev, copy.header_lba, copy.header, "a header")
}

fn put(
    dev: &mut dyn BlockWrite,
    first: Lba,
    bytes: &[u8],
    what: &'static str,
) -> Result<(), TableWriteError> {
    write_changed(dev, first, bytes).map_err(|source| TableWriteError::Write { what, source })?;
    flush(dev, what)
}

fn flush(dev: &mut dyn BlockWrite, what: &'static str) -> Result<(), TableWriteError> {
    dev.flush()
        .map_err(|source| TableWriteError::Write { what, source })
}
