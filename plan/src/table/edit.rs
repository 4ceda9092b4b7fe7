//! The edit: named slots and the checksums over them, nothing else.
//!
//! Takes an image and a [`TableEdit`], gives the image to commit. Boot code,
//! reserved bytes, what follows a header, its size, the order of the slots and the
//! raw bytes of the names stay as they were found. The result passes the gate, or
//! there is none.

use crate::units::{Extent, Guid, Lba, PartNo};

use super::crc32::crc32;
use super::entry::{ENTRY_SIZE, EntrySpec, encode_entry};
use super::header::{Copy, at, put_u32, put_u64, seal_header};
use super::image::TableImage;
use super::parse::{
    BackupPlace, Table, TableError, parse_table, parse_table_with, protective_size,
};

/// What to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableEdit {
    /// Partitions to remove.
    pub remove: Vec<PartNo>,
    /// The partition to write: into a slot that is free or named in `remove`, or
    /// over the partition with the same number and GUID (it grows).
    pub put: EntrySpec,
    /// First move the backup to the end of a disk that has grown.
    pub relocate_backup: bool,
}

/// Why an edit is not possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The table as found does not pass the gate.
    #[error("accept the table as it is")]
    Before {
        /// What is wrong with it.
        #[source]
        source: TableError,
    },
    /// The table as edited would not pass the gate.
    #[error("accept the table as it would be")]
    After {
        /// What would be wrong with it.
        #[source]
        source: TableError,
    },
    /// No such partition.
    #[error("find {number} in the table")]
    NoSuchPartition {
        /// The number asked for.
        number: PartNo,
    },
    /// The table has no such slot.
    #[error("find a slot for {number} in a table of {slots}")]
    NoSuchSlot {
        /// The number asked for.
        number: PartNo,
        /// How many slots there are.
        slots: u32,
    },
    /// The slot holds a partition that stays.
    #[error("write {number}: the slot holds another partition, {guid}")]
    SlotTaken {
        /// The number asked for.
        number: PartNo,
        /// The GUID of the partition there.
        guid: Guid,
    },
}

/// Makes the image to commit.
pub fn edit(image: &TableImage, edit: &TableEdit) -> Result<TableImage, EditError> {
    let mut new = match edit.relocate_backup {
        true => relocate(image)?,
        false => image.clone(),
    };
    let table = parse_table(&new).map_err(|source| EditError::Before { source })?;
    for number in &edit.remove {
        if table.entry(*number).is_none() {
            return Err(EditError::NoSuchPartition { number: *number });
        }
        put_slot(&mut new, &table, *number, &[0u8; ENTRY_SIZE])?;
    }
    let number = edit.put.number;
    if let Some(there) = table.entry(number)
        && !edit.remove.contains(&number)
        && there.guid != edit.put.guid
    {
        return Err(EditError::SlotTaken {
            number,
            guid: there.guid,
        });
    }
    put_slot(&mut new, &table, number, &encode_entry(&edit.put))?;
    seal(&mut new, &table)?;
    parse_table(&new).map_err(|source| EditError::After { source })?;
    Ok(new)
}

/// Moves the backup copy to the end of a disk that has grown: its place, the last
/// usable block and the protective MBR's size follow (UEFI 2.10, 5.3.1 and 5.3.2).
/// A table whose backup is at the end already is given back as it is. The old
/// backup is left where it lies; after the commit nothing points at it.
pub fn relocate(image: &TableImage) -> Result<TableImage, EditError> {
    let before = |source| EditError::Before { source };
    let table = parse_table_with(image, BackupPlace::MayMove).map_err(before)?;
    let last = image.last_lba();
    if table.backup_lba == last {
        return Ok(image.clone());
    }
    let array_first = Lba(last.0 - table.backup_array.blocks());
    // Array and header are moved as bytes, without what may lie between them.
    let array = image.blocks(table.backup_array).unwrap_or_default();
    let header = image.header_block(Copy::Backup).unwrap_or_default();
    let mut new = TableImage {
        tail_first: array_first,
        tail: [array, header].concat(),
        ..image.clone()
    };
    for (copy, own) in [(Copy::Primary, Lba(1)), (Copy::Backup, last)] {
        let sector = header_mut(&mut new, copy)?;
        put_u64(sector, at::MY_LBA, own.0);
        let other = if copy == Copy::Primary { last } else { Lba(1) };
        put_u64(sector, at::ALTERNATE, other.0);
        put_u64(sector, at::LAST_USABLE, array_first.0 - 1);
        if copy == Copy::Backup {
            put_u64(sector, at::ARRAY_LBA, array_first.0);
        }
        seal_header(sector);
    }
    let size = protective_size(image.disk_blocks);
    for slot in new.head[446..510].chunks_exact_mut(16) {
        if slot[4] == 0xee && super::header::get_u32(slot, 12) != u32::MAX {
            put_u32(slot, 12, size);
        }
    }
    parse_table(&new).map_err(|source| EditError::After { source })?;
    Ok(new)
}

fn put_slot(
    image: &mut TableImage,
    table: &Table,
    number: PartNo,
    slot: &[u8; ENTRY_SIZE],
) -> Result<(), EditError> {
    if number.0 == 0 || number.0 > table.slots {
        return Err(EditError::NoSuchSlot {
            number,
            slots: table.slots,
        });
    }
    let from = (number.0 as usize - 1) * ENTRY_SIZE;
    for (copy, array) in arrays(table) {
        blocks_mut(image, copy, array)?[from..from + ENTRY_SIZE].copy_from_slice(slot);
    }
    Ok(())
}

/// Puts the checksums of both arrays and both headers.
fn seal(image: &mut TableImage, table: &Table) -> Result<(), EditError> {
    for (copy, array) in arrays(table) {
        let crc = crc32(&blocks_mut(image, copy, array)?[..table.slots as usize * ENTRY_SIZE]);
        let sector = header_mut(image, copy)?;
        put_u32(sector, at::ARRAY_CRC, crc);
        seal_header(sector);
    }
    Ok(())
}

fn arrays(table: &Table) -> [(Copy, Extent); 2] {
    [
        (Copy::Primary, table.primary_array),
        (Copy::Backup, table.backup_array),
    ]
}

fn header_mut(image: &mut TableImage, copy: Copy) -> Result<&mut [u8], EditError> {
    let lba = image.header_lba(copy);
    let extent = Extent {
        first: lba,
        last: lba,
    };
    blocks_mut(image, copy, extent)
}

/// The gate made sure that the image holds these; an error all the same, because
/// nothing of the boot program may panic.
fn blocks_mut(image: &mut TableImage, copy: Copy, extent: Extent) -> Result<&mut [u8], EditError> {
    let missing = TableError::Missing {
        copy,
        what: "entry array",
    };
    image
        .blocks_mut(copy, extent)
        .ok_or(EditError::Before { source: missing })
}
