//! The backup file of `sgdisk --backup`, so that a table saved by a run can be put
//! back with `sgdisk --load-backup` and no program of ours.
//!
//! The file has 512-byte sectors whatever the disk's are: protective MBR, primary
//! header, backup header, entry array (gptfdisk `gpt.cc`, `SaveGPTBackup`). What a
//! 4096-byte sector holds beyond its first 512 bytes is not in it.

use crate::units::{BlockSize, Lba};

use super::entry::ENTRY_SIZE;
use super::header::{Copy, get_u32, get_u64, parse_header};
use super::image::{ImageError, TableImage};
use super::parse::{BackupPlace, MAX_ENTRIES, TableError, parse_table_with};

const SECTOR: usize = 512;

/// Why a backup file cannot be made or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackupFileError {
    /// The table does not pass the gate.
    #[error("accept the table of the backup file")]
    Table {
        /// What is wrong with it.
        #[from]
        source: TableError,
    },
    /// The disk that was named cannot hold a table.
    #[error("use the disk that the backup file is read for")]
    Disk {
        /// What is wrong with it.
        #[from]
        source: ImageError,
    },
    /// A header larger than the file's sectors.
    #[error("save a header of {found} bytes in a sector of 512")]
    HeaderSize {
        /// The header's size.
        found: u32,
    },
    /// The file's size is not what its headers say.
    #[error("find {expected} bytes in the backup file: found {found}")]
    Length {
        /// The size that the headers ask for.
        expected: u64,
        /// The file's size.
        found: u64,
    },
    /// The headers' places do not fit the disk.
    #[error("fit the backup file's tables on a disk of {disk_blocks} blocks")]
    Place {
        /// The disk's size in logical blocks.
        disk_blocks: u64,
    },
}

/// The bytes of the backup file of this table.
pub fn export_sgdisk(image: &TableImage) -> Result<Vec<u8>, BackupFileError> {
    let table = parse_table_with(image, BackupPlace::MayMove)?;
    let mut file = image.head[..SECTOR].to_vec();
    for copy in [Copy::Primary, Copy::Backup] {
        let block = image.header_block(copy).ok_or(missing(copy))?;
        let size = get_u32(block, super::header::at::SIZE);
        if size as usize > SECTOR {
            return Err(BackupFileError::HeaderSize { found: size });
        }
        file.extend_from_slice(&block[..SECTOR]);
    }
    let array = image
        .blocks(table.primary_array)
        .ok_or(missing(Copy::Primary))?;
    file.extend_from_slice(&array[..table.slots as usize * ENTRY_SIZE]);
    Ok(file)
}

/// Reads a backup file as the table of a disk of this shape.
pub fn import_sgdisk(
    file: &[u8],
    block: BlockSize,
    disk_blocks: u64,
) -> Result<TableImage, BackupFileError> {
    let length = |expected: u64| BackupFileError::Length {
        expected,
        found: file.len() as u64,
    };
    if file.len() < 3 * SECTOR {
        return Err(length(3 * SECTOR as u64));
    }
    let (mbr, rest) = file.split_at(SECTOR);
    let (primary, rest) = rest.split_at(SECTOR);
    let (backup, array) = rest.split_at(SECTOR);
    let header = parse_header(primary, Copy::Primary)?;
    parse_header(backup, Copy::Backup)?;
    if header.entry_size as usize != ENTRY_SIZE || !(1..=MAX_ENTRIES).contains(&header.count) {
        return Err(BackupFileError::Table {
            source: TableError::EntryCount {
                copy: Copy::Primary,
                found: header.count,
            },
        });
    }
    if array.len() != header.count as usize * ENTRY_SIZE {
        return Err(length(
            3 * SECTOR as u64 + u64::from(header.count) * ENTRY_SIZE as u64,
        ));
    }
    // Lay the parts out where the headers say and fetch them from there the way a
    // disk is read, so that there is one reader.
    let size = u64::from(block.0);
    let backup_array = get_u64(backup, super::header::at::ARRAY_LBA);
    let parts = [
        (0, mbr),
        (1, primary),
        (header.array_lba.0, array),
        (backup_array, array),
        (header.alternate.0, backup),
    ];
    let image = TableImage::read(block, disk_blocks, |first: Lba, into: &mut [u8]| {
        into.fill(0);
        for (lba, bytes) in parts {
            let at = lba.saturating_mul(size);
            let from = first.0 * size;
            for (offset, byte) in (at..).zip(bytes) {
                let slot = offset
                    .checked_sub(from)
                    .and_then(|index| into.get_mut(usize::try_from(index).ok()?));
                if let Some(slot) = slot {
                    *slot = *byte;
                }
            }
        }
        Ok::<(), std::convert::Infallible>(())
    });
    let image = image.map_err(|err| match err {
        super::image::ReadError::Image(source) => BackupFileError::Disk { source },
        super::image::ReadError::Read { .. } => BackupFileError::Place { disk_blocks },
    })?;
    parse_table_with(&image, BackupPlace::MayMove)?;
    Ok(image)
}

fn missing(copy: Copy) -> TableError {
    TableError::Missing {
        copy,
        what: "header",
    }
}
