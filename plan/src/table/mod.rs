//! The partition table as a value: bytes in, bytes out.
//!
//! Stage: plan. Takes a [`TableImage`] (both GPT copies as they lie on the disk),
//! gives the parsed [`Table`], the edited image and the [`TableChange`] that the
//! boot program commits. An edit touches the 128-byte slots it names and the
//! checksums over them; every other byte stays as it was found. Nothing here
//! reads or writes a disk: [`TableImage::read`] is handed the reading.

mod change;
mod crc32;
mod edit;
mod entry;
mod header;
mod image;
mod merge;
mod parse;
mod sgdisk;
mod shadow;
#[cfg(test)]
mod tests;

pub use change::{ChangeError, TableChange};
pub use crc32::crc32;
pub use edit::{EditError, TableEdit, edit, relocate};
pub use entry::{Entry, EntrySpec, RawName};
pub use header::Copy;
pub use image::{ImageError, ReadError, TableImage};
pub use merge::{MergeError, MergeMode, derived_guid, merged_extent, merged_spec};
pub use parse::{
    BackupPlace, CopyState, Table, TableError, classify_copy, parse_table, parse_table_with,
};
pub use sgdisk::{BackupFileError, export_sgdisk, import_sgdisk};
pub use shadow::{LABEL_GUARD, shadow_header, shadow_place};
