//! What the boot program commits: the table before, the table after and the place
//! in between.
//!
//! Takes two images and a shadow extent, gives a [`TableChange`] that was checked,
//! also when it is read back from a file.

use serde::{Deserialize, Serialize};

use crate::units::{Extent, Lba};

use super::image::TableImage;
use super::parse::{BackupPlace, Table, TableError, parse_table, parse_table_with};

/// A checked change of one disk's table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "ChangeText", try_from = "ChangeText")]
pub struct TableChange {
    old: TableImage,
    new: TableImage,
    shadow: Extent,
}

/// Why two images and a place are no change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// One of the tables does not pass the gate.
    #[error("accept the {which} table of the change")]
    Table {
        /// `old` or `new`.
        which: &'static str,
        /// What is wrong with it.
        #[source]
        source: TableError,
    },
    /// The two are not tables of one disk in one form.
    #[error("find the same {what} in the old and the new table")]
    Differs {
        /// What differs.
        what: &'static str,
    },
    /// The shadow is not where it may be.
    #[error("put the shadow array at {first}: {reason}")]
    Shadow {
        /// Its first block.
        first: Lba,
        /// What is wrong with the place.
        reason: &'static str,
    },
}

impl TableChange {
    /// Checks that the two are tables of one disk, that boot code and whatever else
    /// is around the tables stays, and that the shadow lies on nothing that stays.
    pub fn new(old: TableImage, new: TableImage, shadow: Extent) -> Result<Self, ChangeError> {
        let table = |which, place, image| {
            parse_table_with(image, place).map_err(|source| ChangeError::Table { which, source })
        };
        let before = table("old", BackupPlace::MayMove, &old)?;
        let after = table("new", BackupPlace::AtEnd, &new)?;
        for (same, what) in [
            (before.block == after.block, "block size"),
            (before.disk_blocks == after.disk_blocks, "disk size"),
            (before.disk_guid == after.disk_guid, "disk GUID"),
            (before.slots == after.slots, "number of entries"),
            (
                before.primary_array == after.primary_array,
                "primary array's place",
            ),
            (
                before.first_usable == after.first_usable,
                "first usable block",
            ),
            (old.head.len() == new.head.len(), "size of the head"),
            (old.head[..446] == new.head[..446], "boot code"),
        ] {
            if !same {
                return Err(ChangeError::Differs { what });
            }
        }
        let change = TableChange { old, new, shadow };
        change.check_shadow(&before, &after)?;
        Ok(change)
    }

    /// The table before.
    pub fn old(&self) -> &TableImage {
        &self.old
    }

    /// The table after.
    pub fn new_image(&self) -> &TableImage {
        &self.new
    }

    /// Where the new array lies while LBA 1 points away from its home.
    pub fn shadow(&self) -> Extent {
        self.shadow
    }

    /// Whether the shadow lies in front of the first partition, where every byte
    /// must be zero before it is written; otherwise it lies in a destroyed extent.
    pub fn shadow_in_gap(&self) -> Result<bool, TableError> {
        let before = parse_table_with(&self.old, BackupPlace::MayMove)?;
        let after = parse_table(&self.new)?;
        let mut all = before.entries.iter().chain(&after.entries);
        Ok(all.all(|e| e.extent.first > self.shadow.last))
    }

    fn check_shadow(&self, before: &Table, after: &Table) -> Result<(), ChangeError> {
        let bad = |reason| {
            Err(ChangeError::Shadow {
                first: self.shadow.first,
                reason,
            })
        };
        if self.shadow.first <= before.primary_array.last || self.shadow.last > before.last_usable {
            return bad("it touches a copy of the table");
        }
        if self.shadow.first > self.shadow.last
            || self.shadow.blocks() != before.primary_array.blocks()
        {
            return bad("it is not the size of the array");
        }
        let mut stays = before.entries.iter().filter(|e| after.entries.contains(e));
        if stays.any(|e| e.extent.overlaps(&self.shadow)) {
            return bad("it lies on a partition that stays");
        }
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeText {
    old: TableImage,
    new: TableImage,
    shadow: Extent,
}

impl From<TableChange> for ChangeText {
    fn from(change: TableChange) -> ChangeText {
        ChangeText {
            old: change.old,
            new: change.new,
            shadow: change.shadow,
        }
    }
}

impl TryFrom<ChangeText> for TableChange {
    type Error = ChangeError;

    fn try_from(text: ChangeText) -> Result<TableChange, ChangeError> {
        TableChange::new(text.old, text.new, text.shadow)
    }
}
