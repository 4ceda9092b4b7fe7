//! What is on the disk, in terms of the change: old, new, in between, or neither.
//!
//! Takes a change and a disk, gives a [`DiskState`]. Reads only. Bytes decide, not
//! the journal: a copy is ours when it is ours byte for byte.

use std::fmt;

use repave_plan::table::{
    BackupPlace, Copy, CopyState, Table, TableChange, TableError, TableImage, classify_copy,
    parse_table_with, shadow_header,
};
use repave_plan::units::{Extent, Lba};
use repave_survey::block_io::BlockRead;

use super::commit::TableWriteError;
use super::device::{fetch, is_zero, read_table_image};

/// What the primary copy is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrimaryIs {
    /// The table before the change.
    Old,
    /// The table after it.
    New,
    /// The new entries, with LBA 1 pointing at the shadow array.
    NewShadow,
    /// No whole table.
    Invalid {
        /// What is wrong with it.
        why: TableError,
    },
    /// A whole table that is none of ours.
    Foreign,
}

/// What the backup copy is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupIs {
    /// The table before the change.
    Old,
    /// The table after it.
    New,
    /// A whole table with the old or the new entries in another form: firmware made
    /// it again from the primary (EDK2 `PartitionRestoreGptTable`).
    Remade {
        /// Whether the entries are the new ones.
        entries: Entries,
    },
    /// No whole table.
    Invalid {
        /// What is wrong with it.
        why: TableError,
    },
    /// A whole table that is none of ours.
    Foreign,
}

/// Whose entries a remade backup has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entries {
    /// The table's before the change.
    Old,
    /// The table's after it.
    New,
}

/// What the partition slots of the protective MBR are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProtectiveIs {
    /// As before; differs from `New` only when the backup is relocated.
    Old,
    /// As after.
    New,
    /// Something else.
    Foreign,
}

/// What the place of the shadow array holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShadowIs {
    /// Only zeros.
    Zero,
    /// The new array or a torn part of it, otherwise zeros.
    Remnant,
    /// Something else. In a destroyed extent that is its old content or what the
    /// pool has put there since.
    Other,
}

/// What a disk holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskState {
    /// LBA 1 and the array that it points at.
    pub primary: PrimaryIs,
    /// The copy at the end.
    pub backup: BackupIs,
    /// The partition slots of LBA 0.
    pub protective: ProtectiveIs,
    /// The place of the shadow array.
    pub shadow: ShadowIs,
}

impl fmt::Display for DiskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the primary table is ")?;
        match &self.primary {
            PrimaryIs::Old => f.write_str("the old one")?,
            PrimaryIs::New => f.write_str("the new one")?,
            PrimaryIs::NewShadow => f.write_str("the new one at its shadow place")?,
            PrimaryIs::Invalid { why } => write!(f, "not whole (failed to {why})")?,
            PrimaryIs::Foreign => f.write_str("neither the old nor the new one")?,
        }
        f.write_str(", the backup is ")?;
        match &self.backup {
            BackupIs::Old => f.write_str("the old one")?,
            BackupIs::New => f.write_str("the new one")?,
            BackupIs::Remade { entries } => {
                write!(f, "remade by firmware with the {entries:?} entries")?;
            }
            BackupIs::Invalid { why } => write!(f, "not whole (failed to {why})")?,
            BackupIs::Foreign => f.write_str("neither the old nor the new one")?,
        }
        match self.protective {
            ProtectiveIs::Foreign => f.write_str(", the protective MBR is neither's"),
            ProtectiveIs::Old | ProtectiveIs::New => Ok(()),
        }
    }
}

/// One copy's bytes, in the two pieces that are written apart.
pub(super) struct CopyBytes<'i> {
    pub(super) header: &'i [u8],
    pub(super) header_lba: Lba,
    pub(super) array: &'i [u8],
    pub(super) array_extent: Extent,
}

/// Everything that classification and commit need of a change, taken apart once.
pub(super) struct Parts<'c> {
    pub(super) old_image: &'c TableImage,
    pub(super) after: Table,
    pub(super) old_primary: CopyBytes<'c>,
    pub(super) old_backup: CopyBytes<'c>,
    pub(super) new_primary: CopyBytes<'c>,
    pub(super) new_backup: CopyBytes<'c>,
    pub(super) shadow_header: Vec<u8>,
    pub(super) shadow: Extent,
    pub(super) shadow_in_gap: bool,
    pub(super) old_protective: &'c [u8],
    pub(super) new_protective: &'c [u8],
}

/// The partition slots and the signature of an MBR. What is in front of them is
/// boot code, which is nobody's business here.
pub(super) const PROTECTIVE: std::ops::Range<usize> = 446..512;

impl<'c> Parts<'c> {
    pub(super) fn of(change: &'c TableChange) -> Result<Parts<'c>, TableWriteError> {
        let bad = |source| TableWriteError::Change { source };
        let (old, new) = (change.old(), change.new_image());
        let before = parse_table_with(old, BackupPlace::MayMove).map_err(bad)?;
        let after = parse_table_with(new, BackupPlace::AtEnd).map_err(bad)?;
        Ok(Parts {
            old_image: old,
            old_primary: copy_bytes(old, &before, Copy::Primary).map_err(bad)?,
            old_backup: copy_bytes(old, &before, Copy::Backup).map_err(bad)?,
            new_primary: copy_bytes(new, &after, Copy::Primary).map_err(bad)?,
            new_backup: copy_bytes(new, &after, Copy::Backup).map_err(bad)?,
            shadow_header: shadow_header(new, change.shadow()).map_err(bad)?,
            shadow: change.shadow(),
            shadow_in_gap: change.shadow_in_gap().map_err(bad)?,
            old_protective: &old.head[PROTECTIVE],
            new_protective: &new.head[PROTECTIVE],
            after,
        })
    }
}

fn copy_bytes<'i>(
    image: &'i TableImage,
    table: &Table,
    copy: Copy,
) -> Result<CopyBytes<'i>, TableError> {
    let (header_lba, array_extent) = match copy {
        Copy::Primary => (Lba(1), table.primary_array),
        Copy::Backup => (table.backup_lba, table.backup_array),
    };
    let blocks = |extent, what| {
        image
            .blocks(extent)
            .ok_or(TableError::Missing { copy, what })
    };
    let header = Extent {
        first: header_lba,
        last: header_lba,
    };
    Ok(CopyBytes {
        header: blocks(header, "header")?,
        header_lba,
        array: blocks(array_extent, "entry array")?,
        array_extent,
    })
}

/// Looks at the disk.
pub fn classify(change: &TableChange, dev: &dyn BlockRead) -> Result<DiskState, TableWriteError> {
    classify_parts(&Parts::of(change)?, dev)
}

pub(super) fn classify_parts(
    parts: &Parts<'_>,
    dev: &dyn BlockRead,
) -> Result<DiskState, TableWriteError> {
    let expected = parts.old_image;
    if dev.block() != expected.block.0
        || dev.len() / u64::from(expected.block.0) != expected.disk_blocks
    {
        return Err(TableWriteError::OtherDisk {
            expected: expected.disk_blocks,
            expected_block: expected.block,
            found: dev.len() / u64::from(dev.block().max(1)),
            found_block: dev.block(),
        });
    }
    let read = |source| TableWriteError::Read { source };
    let now = read_table_image(dev).map_err(|source| TableWriteError::ReadTable { source })?;
    Ok(DiskState {
        primary: primary_is(parts, dev, &now).map_err(read)?,
        backup: backup_is(parts, dev, &now).map_err(read)?,
        protective: protective_is(parts, &now),
        shadow: shadow_is(parts, dev).map_err(read)?,
    })
}

fn primary_is(
    parts: &Parts<'_>,
    dev: &dyn BlockRead,
    now: &TableImage,
) -> std::io::Result<PrimaryIs> {
    let shadow = CopyBytes {
        header: &parts.shadow_header,
        header_lba: Lba(1),
        array: parts.new_primary.array,
        array_extent: parts.shadow,
    };
    for (copy, is) in [
        (&parts.new_primary, PrimaryIs::New),
        (&parts.old_primary, PrimaryIs::Old),
        (&shadow, PrimaryIs::NewShadow),
    ] {
        if holds(copy, dev)? {
            return Ok(is);
        }
    }
    Ok(match classify_copy(now, Copy::Primary) {
        CopyState::Valid { .. } => PrimaryIs::Foreign,
        CopyState::Invalid { why } => PrimaryIs::Invalid { why },
    })
}

fn backup_is(
    parts: &Parts<'_>,
    dev: &dyn BlockRead,
    now: &TableImage,
) -> std::io::Result<BackupIs> {
    // With relocation the old backup may still lie whole at its old place when the
    // new one is there: new is asked first.
    for (copy, is) in [
        (&parts.new_backup, BackupIs::New),
        (&parts.old_backup, BackupIs::Old),
    ] {
        if holds(copy, dev)? {
            return Ok(is);
        }
    }
    let array = match classify_copy(now, Copy::Backup) {
        CopyState::Valid { array, .. } => now.blocks(array).unwrap_or_default(),
        CopyState::Invalid { why } => return Ok(BackupIs::Invalid { why }),
    };
    let remade = |entries| BackupIs::Remade { entries };
    Ok(match array {
        a if a == parts.new_primary.array => remade(Entries::New),
        a if a == parts.old_primary.array => remade(Entries::Old),
        _ => BackupIs::Foreign,
    })
}

fn holds(copy: &CopyBytes<'_>, dev: &dyn BlockRead) -> std::io::Result<bool> {
    let header = Extent {
        first: copy.header_lba,
        last: copy.header_lba,
    };
    Ok(fetch(dev, header)? == copy.header && fetch(dev, copy.array_extent)? == copy.array)
}

fn protective_is(parts: &Parts<'_>, now: &TableImage) -> ProtectiveIs {
    match &now.head[PROTECTIVE] {
        bytes if bytes == parts.new_protective => ProtectiveIs::New,
        bytes if bytes == parts.old_protective => ProtectiveIs::Old,
        _ => ProtectiveIs::Foreign,
    }
}

fn shadow_is(parts: &Parts<'_>, dev: &dyn BlockRead) -> std::io::Result<ShadowIs> {
    let block = dev.block() as usize;
    let found = fetch(dev, parts.shadow)?;
    if is_zero(&found) {
        return Ok(ShadowIs::Zero);
    }
    let ours = found
        .chunks(block)
        .zip(parts.new_primary.array.chunks(block))
        .all(|(is, want)| is == want || is_zero(is));
    Ok(match ours {
        true => ShadowIs::Remnant,
        false => ShadowIs::Other,
    })
}
