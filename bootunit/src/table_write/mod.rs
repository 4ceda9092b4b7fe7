//! The commit of a new partition table, safe at every instant.
//!
//! Stage: boot run, step table-write. Takes a checked `TableChange` and a disk,
//! gives an `Outcome` or a [`TableWriteError`]. At no moment is there no valid
//! primary table, because Linux ignores the backup when the primary is invalid
//! (Linux `block/partitions/efi.c`, `find_valid_gpt`): the new entry array is made
//! durable in a place that nobody uses, and then one sector, LBA 1, points at it.
//! It goes on from whatever it finds, by content; it keeps no step number.

mod classify;
mod commit;
mod device;
#[cfg(test)]
mod tests;

pub use classify::{BackupIs, DiskState, Entries, PrimaryIs, ProtectiveIs, ShadowIs, classify};
pub use commit::{TableWriteError, apply_table, check_table, prove_table, table_state};
pub use device::{ReadTableError, read_table_image, zero_runs};
