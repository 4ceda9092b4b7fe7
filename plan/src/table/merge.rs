//! Where the merged partition lies and what it is called.
//!
//! Takes a parsed table, the pool's partition and the dead ones, gives the slot to
//! write. The merged partition takes the lowest merged number and the pool
//! partition's type, attributes and name; its GUID is derived, never random, so
//! that a plan made twice is the same plan.

use crate::units::{Extent, Guid, Lba, MIB, PartNo};

use super::entry::{Entry, EntrySpec};
use super::parse::Table;

/// How the pool's partition gets the dead ones' room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeMode {
    /// All are removed and one is made in their place. Its start is moved up to
    /// the next MiB when the lowest start is at none.
    Recreate,
    /// The pool's partition keeps its start, number and GUID and only its end
    /// moves.
    Grow,
}

/// Why partitions cannot be merged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// No such partition.
    #[error("find {number} in the table")]
    NoSuchPartition {
        /// The number asked for.
        number: PartNo,
    },
    /// The pool's partition was named among the dead ones, or one twice.
    #[error("merge {number} with itself")]
    NamedTwice {
        /// The partition.
        number: PartNo,
    },
    /// No dead partition was named.
    #[error("find a partition to merge with {pool}")]
    NothingToMerge {
        /// The pool's partition.
        pool: PartNo,
    },
    /// A dead partition that is not the pool partition's neighbour.
    #[error("merge {dead} with {pool}: {between} lies between them")]
    NotAdjacent {
        /// The dead partition.
        dead: PartNo,
        /// The pool's partition.
        pool: PartNo,
        /// A partition between them that stays.
        between: PartNo,
    },
    /// Grow was asked and a dead partition lies in front of the pool's.
    #[error("grow {pool} over {dead}, which lies in front of it")]
    InFront {
        /// The dead partition.
        dead: PartNo,
        /// The pool's partition.
        pool: PartNo,
    },
    /// Nothing is left once the start is aligned.
    #[error("find room for the merged partition after aligning its start")]
    TooSmall,
}

/// The blocks of the merged partition: from the lowest merged start to the end of
/// the free space behind the highest, up to the next partition or the last usable
/// block.
///
/// On a disk that has grown, give the relocated table.
pub fn merged_extent(
    table: &Table,
    pool: PartNo,
    removed: &[PartNo],
    mode: MergeMode,
) -> Result<Extent, MergeError> {
    let (pool_entry, dead) = find_merged(table, pool, removed)?;
    let (mut first, mut last) = (pool_entry.extent.first, pool_entry.extent.last);
    for entry in &dead {
        first = first.min(entry.extent.first);
        last = last.max(entry.extent.last);
        if mode == MergeMode::Grow && entry.extent.first < pool_entry.extent.first {
            return Err(MergeError::InFront {
                dead: entry.number,
                pool,
            });
        }
    }
    let stays: Vec<&Entry> = table
        .entries
        .iter()
        .filter(|e| e.number != pool && !removed.contains(&e.number))
        .collect();
    for between in &stays {
        let at = between.extent.first;
        for entry in &dead {
            let (low, high) = match entry.extent.first < pool_entry.extent.first {
                true => (entry.extent.first, pool_entry.extent.first),
                false => (pool_entry.extent.first, entry.extent.first),
            };
            if at > low && at < high {
                return Err(MergeError::NotAdjacent {
                    dead: entry.number,
                    pool,
                    between: between.number,
                });
            }
        }
    }
    let end = stays
        .iter()
        .map(|e| e.extent.first)
        .filter(|start| *start > last)
        .min()
        .map_or(table.last_usable, |start| Lba(start.0 - 1));
    if mode == MergeMode::Recreate {
        let align = MIB / u64::from(table.block.0);
        first = Lba(first.0.next_multiple_of(align));
    }
    match first <= end {
        true => Ok(Extent { first, last: end }),
        false => Err(MergeError::TooSmall),
    }
}

/// The slot of the merged partition.
pub fn merged_spec(
    table: &Table,
    pool: PartNo,
    removed: &[PartNo],
    mode: MergeMode,
) -> Result<EntrySpec, MergeError> {
    let extent = merged_extent(table, pool, removed, mode)?;
    let (entry, _) = find_merged(table, pool, removed)?;
    let (number, guid) = match mode {
        MergeMode::Grow => (pool, entry.guid),
        MergeMode::Recreate => (
            removed.iter().copied().fold(pool, PartNo::min),
            derived_guid(table.disk_guid, entry.guid, extent),
        ),
    };
    Ok(EntrySpec {
        number,
        guid,
        extent,
        ..entry.spec()
    })
}

/// The GUID of a partition made from another one on this disk in this place.
pub fn derived_guid(disk_guid: Guid, old_guid: Guid, extent: Extent) -> Guid {
    Guid::derive(&[
        b"repave merged partition 1",
        &disk_guid.0,
        &old_guid.0,
        &extent.first.0.to_le_bytes(),
        &extent.last.0.to_le_bytes(),
    ])
}

fn find_merged<'t>(
    table: &'t Table,
    pool: PartNo,
    removed: &[PartNo],
) -> Result<(&'t Entry, Vec<&'t Entry>), MergeError> {
    let find = |number: PartNo| {
        table
            .entry(number)
            .ok_or(MergeError::NoSuchPartition { number })
    };
    let mut seen = vec![pool];
    for number in removed {
        if seen.contains(number) {
            return Err(MergeError::NamedTwice { number: *number });
        }
        seen.push(*number);
    }
    let dead: Vec<&Entry> = removed.iter().map(|n| find(*n)).collect::<Result<_, _>>()?;
    match dead.is_empty() {
        true => Err(MergeError::NothingToMerge { pool }),
        false => Ok((find(pool)?, dead)),
    }
}
