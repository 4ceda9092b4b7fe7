//! The gate: a table passes only when both copies are whole, equal and sane.
//!
//! Takes a [`TableImage`], gives a [`Table`] or the first thing that is wrong with
//! it. Every field that the edit or the commit relies on is checked here, so that
//! nothing after this stage has to doubt it. [`classify_copy`] is the lenient way
//! in, for a survey that shows a broken copy and for a resumed run.

use crate::units::{BlockSize, Extent, Guid, Lba, PartNo};

use super::crc32::crc32;
use super::entry::{ENTRY_SIZE, Entry, parse_entry};
use super::header::{Copy, Header, parse_header};
use super::image::TableImage;

/// The most entries that are read: 128 KiB of array. Common counts are 56, 128
/// and 256.
pub(super) const MAX_ENTRIES: u32 = 1024;

/// A table that passed the gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The disk's logical block size.
    pub block: BlockSize,
    /// The disk's size in logical blocks.
    pub disk_blocks: u64,
    /// The disk's GUID.
    pub disk_guid: Guid,
    /// The first block a partition may use.
    pub first_usable: Lba,
    /// The last block a partition may use.
    pub last_usable: Lba,
    /// How many slots each array has.
    pub slots: u32,
    /// The primary array, its last block perhaps filled in part.
    pub primary_array: Extent,
    /// The backup array, likewise.
    pub backup_array: Extent,
    /// The backup header.
    pub backup_lba: Lba,
    /// The used slots in order of number.
    pub entries: Vec<Entry>,
}

impl Table {
    /// The partition with this number.
    pub fn entry(&self, number: PartNo) -> Option<&Entry> {
        self.entries.iter().find(|e| e.number == number)
    }
}

/// Where the backup copy may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupPlace {
    /// At the end of the disk and nowhere else.
    AtEnd,
    /// Also before it, on a disk that has grown: it will be moved by the edit.
    /// The protective MBR may then still name the old size.
    MayMove,
}

/// What is wrong with a table. Display names what was found and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// A part of the table that the image does not hold.
    #[error("find the {copy} copy's {what} in the first or last MiB of the disk")]
    Missing {
        /// Which copy.
        copy: Copy,
        /// `header` or `entry array`.
        what: &'static str,
    },
    /// No GPT header.
    #[error("find a GPT header in the {copy} copy")]
    Signature {
        /// Which copy.
        copy: Copy,
    },
    /// A revision other than 1.0.
    #[error("read revision {found:#010x} of the {copy} header (only 0x00010000 is known)")]
    Revision {
        /// Which copy.
        copy: Copy,
        /// The revision found.
        found: u32,
    },
    /// A header size outside 92 to the block size.
    #[error("use the {copy} header's size of {found} bytes (92 to {most})")]
    HeaderSize {
        /// Which copy.
        copy: Copy,
        /// The size found.
        found: u32,
        /// The block size.
        most: u32,
    },
    /// The header's checksum.
    #[error("match the {copy} header's checksum: expected {expected:#010x}, found {found:#010x}")]
    HeaderCrc {
        /// Which copy.
        copy: Copy,
        /// The checksum of the bytes.
        expected: u32,
        /// The checksum stored.
        found: u32,
    },
    /// A header that says it is somewhere else.
    #[error("find the {copy} header's own address {expected} in it: found {found}")]
    MyLba {
        /// Which copy.
        copy: Copy,
        /// Where it was read.
        expected: Lba,
        /// Where it says it is.
        found: Lba,
    },
    /// A header that names another place for the other copy.
    #[error("find the other copy's address {expected} in the {copy} header: found {found}")]
    AlternateLba {
        /// Which copy.
        copy: Copy,
        /// Where the other copy is.
        expected: Lba,
        /// Where it says the other copy is.
        found: Lba,
    },
    /// The backup is in front of the disk's end: the disk has grown. The policy
    /// may allow to move it.
    #[error("find the backup table at the end of the disk, {last}: it is at {found}")]
    BackupNotAtEnd {
        /// Where the backup header is.
        found: Lba,
        /// The last block of the disk.
        last: Lba,
    },
    /// The backup is beyond the disk's end: the disk has shrunk.
    #[error("find the backup table inside the disk, which ends at {last}: it is at {found}")]
    BackupBeyondEnd {
        /// Where the primary header says it is.
        found: Lba,
        /// The last block of the disk.
        last: Lba,
    },
    /// An entry size other than 128 bytes. Linux knows no other either.
    #[error("use entries of {found} bytes in the {copy} copy (only 128 is known)")]
    EntrySize {
        /// Which copy.
        copy: Copy,
        /// The size found.
        found: u32,
    },
    /// A number of slots outside the bounds.
    #[error("use an array of {found} entries in the {copy} copy (1 to 1024)")]
    EntryCount {
        /// Which copy.
        copy: Copy,
        /// The count found.
        found: u32,
    },
    /// The array's checksum.
    #[error("match the {copy} array's checksum: expected {expected:#010x}, found {found:#010x}")]
    ArrayCrc {
        /// Which copy.
        copy: Copy,
        /// The checksum of the bytes.
        expected: u32,
        /// The checksum stored.
        found: u32,
    },
    /// Two whole copies that are not the same table.
    #[error("find the same {what} in both copies of the table")]
    CopiesDiffer {
        /// What differs.
        what: &'static str,
    },
    /// No protective MBR: Linux would not look at the GPT.
    #[error("find a protective MBR (one entry of type 0xee that begins at LBA 1)")]
    NoProtectiveMbr,
    /// A hybrid MBR.
    #[error("use a hybrid MBR (it also has an entry of type {type_byte:#04x})")]
    Hybrid {
        /// The type of the other entry.
        type_byte: u8,
    },
    /// A protective MBR of another size.
    #[error("find {expected} blocks in the protective MBR: found {found}")]
    ProtectiveSize {
        /// The disk's size less one, or 0xffffffff.
        expected: u32,
        /// The size stored.
        found: u32,
    },
    /// An array that lies where partitions may be, or over another structure.
    #[error("find the {copy} array outside the usable range {first_usable} to {last_usable}")]
    ArrayPlace {
        /// Which copy.
        copy: Copy,
        /// First usable block.
        first_usable: Lba,
        /// Last usable block.
        last_usable: Lba,
    },
    /// A partition whose ends are swapped.
    #[error("use {number}, which ends before it begins")]
    Inverted {
        /// The partition.
        number: PartNo,
    },
    /// A partition outside the usable range.
    #[error("use {number}, which is not inside the usable range {first_usable} to {last_usable}")]
    OutsideUsable {
        /// The partition.
        number: PartNo,
        /// First usable block.
        first_usable: Lba,
        /// Last usable block.
        last_usable: Lba,
    },
    /// Two partitions that share blocks.
    #[error("use {a} and {b}, which overlap")]
    Overlap {
        /// One of them.
        a: PartNo,
        /// The other.
        b: PartNo,
    },
    /// Two partitions of one GUID: a device found by it could be either.
    #[error("use {a} and {b}, which have the same GUID {guid}")]
    DuplicateGuid {
        /// One of them.
        a: PartNo,
        /// The other.
        b: PartNo,
        /// Their GUID.
        guid: Guid,
    },
}

/// What one copy is, taken alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyState {
    /// Whole: signature, revision, sizes, own address and both checksums are right.
    Valid {
        /// Where this copy's header is.
        header: Lba,
        /// Where its array is.
        array: Extent,
        /// The array's checksum: two copies of one table share it.
        array_crc: u32,
        /// The disk's GUID in this copy.
        disk_guid: Guid,
    },
    /// Not whole.
    Invalid {
        /// The first thing that is wrong.
        why: TableError,
    },
}

/// Parses a table whose backup is at the end of the disk.
pub fn parse_table(image: &TableImage) -> Result<Table, TableError> {
    parse_table_with(image, BackupPlace::AtEnd)
}

/// Parses a table; with [`BackupPlace::MayMove`] also one on a disk that has grown.
pub fn parse_table_with(image: &TableImage, place: BackupPlace) -> Result<Table, TableError> {
    let (primary, primary_array) = check_copy(image, Copy::Primary)?;
    check_backup_place(image, primary.alternate, place)?;
    let (backup, backup_array) = check_copy(image, Copy::Backup)?;
    check_agreement(image, &primary, &backup)?;
    check_protective_mbr(image, place)?;
    check_places(image, &primary, primary_array, backup_array)?;
    let entries = parse_array(image, primary_array, &primary)?;
    check_entries(&entries, primary.first_usable, primary.last_usable)?;
    Ok(Table {
        block: image.block,
        disk_blocks: image.disk_blocks,
        disk_guid: primary.disk_guid,
        first_usable: primary.first_usable,
        last_usable: primary.last_usable,
        slots: primary.count,
        primary_array,
        backup_array,
        backup_lba: backup.my_lba,
        entries,
    })
}

/// Looks at one copy alone.
pub fn classify_copy(image: &TableImage, copy: Copy) -> CopyState {
    match check_copy(image, copy) {
        Ok((header, array)) => CopyState::Valid {
            header: header.my_lba,
            array,
            array_crc: header.array_crc,
            disk_guid: header.disk_guid,
        },
        Err(why) => CopyState::Invalid { why },
    }
}

fn check_copy(image: &TableImage, copy: Copy) -> Result<(Header, Extent), TableError> {
    let missing = |what| TableError::Missing { copy, what };
    let header = parse_header(
        image.header_block(copy).ok_or_else(|| missing("header"))?,
        copy,
    )?;
    let expected = image.header_lba(copy);
    if header.my_lba != expected {
        return Err(TableError::MyLba {
            copy,
            expected,
            found: header.my_lba,
        });
    }
    if header.entry_size as usize != ENTRY_SIZE {
        return Err(TableError::EntrySize {
            copy,
            found: header.entry_size,
        });
    }
    if !(1..=MAX_ENTRIES).contains(&header.count) {
        return Err(TableError::EntryCount {
            copy,
            found: header.count,
        });
    }
    let array = Extent {
        first: header.array_lba,
        last: Lba(header
            .array_lba
            .0
            .saturating_add(header.array_blocks(image.block) - 1)),
    };
    let bytes = image
        .blocks(array)
        .and_then(|b| b.get(..header.count as usize * ENTRY_SIZE))
        .ok_or_else(|| missing("entry array"))?;
    let expected = crc32(bytes);
    if expected != header.array_crc {
        return Err(TableError::ArrayCrc {
            copy,
            expected,
            found: header.array_crc,
        });
    }
    Ok((header, array))
}

fn check_backup_place(
    image: &TableImage,
    found: Lba,
    place: BackupPlace,
) -> Result<(), TableError> {
    let last = image.last_lba();
    if found > last {
        return Err(TableError::BackupBeyondEnd { found, last });
    }
    if found != image.backup_lba() {
        return Err(TableError::AlternateLba {
            copy: Copy::Primary,
            expected: image.backup_lba(),
            found,
        });
    }
    if found != last && place == BackupPlace::AtEnd {
        return Err(TableError::BackupNotAtEnd { found, last });
    }
    Ok(())
}

fn check_agreement(image: &TableImage, p: &Header, b: &Header) -> Result<(), TableError> {
    if b.alternate != Lba(1) {
        return Err(TableError::AlternateLba {
            copy: Copy::Backup,
            expected: Lba(1),
            found: b.alternate,
        });
    }
    let array = |h: &Header| {
        image
            .blocks(Extent {
                first: h.array_lba,
                last: Lba(h.array_lba.0 + h.array_blocks(image.block) - 1),
            })
            .and_then(|bytes| bytes.get(..h.count as usize * ENTRY_SIZE))
    };
    for (same, what) in [
        (p.disk_guid == b.disk_guid, "disk GUID"),
        (p.first_usable == b.first_usable, "first usable block"),
        (p.last_usable == b.last_usable, "last usable block"),
        (p.count == b.count, "number of entries"),
        (array(p) == array(b), "entries"),
    ] {
        if !same {
            return Err(TableError::CopiesDiffer { what });
        }
    }
    Ok(())
}

/// The rules of Linux (`block/partitions/efi.c`, `is_pmbr_valid`), but a hybrid MBR
/// is refused: its other entries would have to be edited too.
fn check_protective_mbr(image: &TableImage, place: BackupPlace) -> Result<(), TableError> {
    let mbr = &image.head[..512.min(image.head.len())];
    if mbr.len() < 512 || mbr[510..512] != [0x55, 0xaa] {
        return Err(TableError::NoProtectiveMbr);
    }
    let slots: Vec<&[u8]> = mbr[446..510].chunks_exact(16).collect();
    let protective: Vec<&&[u8]> = slots.iter().filter(|s| s[4] == 0xee).collect();
    let [slot] = protective[..] else {
        return Err(TableError::NoProtectiveMbr);
    };
    if super::header::get_u32(slot, 8) != 1 {
        return Err(TableError::NoProtectiveMbr);
    }
    if let Some(other) = slots.iter().find(|s| s[4] != 0xee && s[4] != 0) {
        return Err(TableError::Hybrid {
            type_byte: other[4],
        });
    }
    // Some tools store the largest size whatever the disk's; Linux accepts it.
    let (expected, found) = (
        protective_size(image.disk_blocks),
        super::header::get_u32(slot, 12),
    );
    let grown = place == BackupPlace::MayMove && found < expected;
    if found != expected && found != u32::MAX && !grown {
        return Err(TableError::ProtectiveSize { expected, found });
    }
    Ok(())
}

/// The size that a protective MBR holds: the disk's less LBA 0, as far as it fits.
pub(super) fn protective_size(disk_blocks: u64) -> u32 {
    u32::try_from(disk_blocks - 1).unwrap_or(u32::MAX)
}

fn check_places(
    image: &TableImage,
    header: &Header,
    primary_array: Extent,
    backup_array: Extent,
) -> Result<(), TableError> {
    let (first_usable, last_usable) = (header.first_usable, header.last_usable);
    for (copy, good) in [
        (
            Copy::Primary,
            primary_array.first.0 >= 2 && primary_array.last < first_usable,
        ),
        (
            Copy::Backup,
            backup_array.first > last_usable && backup_array.last < image.backup_lba(),
        ),
    ] {
        if !good || first_usable > last_usable {
            return Err(TableError::ArrayPlace {
                copy,
                first_usable,
                last_usable,
            });
        }
    }
    Ok(())
}

fn parse_array(
    image: &TableImage,
    array: Extent,
    header: &Header,
) -> Result<Vec<Entry>, TableError> {
    let bytes = image.blocks(array).ok_or(TableError::Missing {
        copy: Copy::Primary,
        what: "entry array",
    })?;
    Ok((1..=header.count)
        .zip(bytes.chunks_exact(ENTRY_SIZE))
        .filter_map(|(number, slot)| parse_entry(PartNo(number), slot))
        .collect())
}

fn check_entries(entries: &[Entry], first_usable: Lba, last_usable: Lba) -> Result<(), TableError> {
    for (at, a) in entries.iter().enumerate() {
        if a.extent.first > a.extent.last {
            return Err(TableError::Inverted { number: a.number });
        }
        if a.extent.first < first_usable || a.extent.last > last_usable {
            return Err(TableError::OutsideUsable {
                number: a.number,
                first_usable,
                last_usable,
            });
        }
        for b in &entries[..at] {
            if a.extent.overlaps(&b.extent) {
                return Err(TableError::Overlap {
                    a: b.number,
                    b: a.number,
                });
            }
            if a.guid == b.guid {
                return Err(TableError::DuplicateGuid {
                    a: b.number,
                    b: a.number,
                    guid: a.guid,
                });
            }
        }
    }
    Ok(())
}
