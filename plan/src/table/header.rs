//! The fields of one GPT header (UEFI 2.10, table 5.5) and the checks that need
//! nothing but the header's own block.

use crate::units::{BlockSize, Guid, Lba};

use super::crc32::crc32;
use super::parse::TableError;

/// The smallest header; it may be larger, up to the block (UEFI 2.10, 5.3.2).
pub(super) const HEADER_MIN: u32 = 92;

/// Offsets of the fields that an edit may change.
pub(super) mod at {
    pub(crate) const SIZE: usize = 12;
    pub(crate) const CRC: usize = 16;
    pub(crate) const MY_LBA: usize = 24;
    pub(crate) const ALTERNATE: usize = 32;
    pub(crate) const FIRST_USABLE: usize = 40;
    pub(crate) const LAST_USABLE: usize = 48;
    pub(crate) const DISK_GUID: usize = 56;
    pub(crate) const ARRAY_LBA: usize = 72;
    pub(crate) const COUNT: usize = 80;
    pub(crate) const ENTRY_SIZE: usize = 84;
    pub(crate) const ARRAY_CRC: usize = 88;
}

/// Which of the two copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Copy {
    /// The header in LBA 1: the only one Linux goes by unless told otherwise
    /// (Linux `block/partitions/efi.c`, `find_valid_gpt`).
    Primary,
    /// The header at the end of the disk.
    Backup,
}

impl std::fmt::Display for Copy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Copy::Primary => "primary",
            Copy::Backup => "backup",
        })
    }
}

/// A header whose signature, revision, size and own checksum are right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) my_lba: Lba,
    pub(super) alternate: Lba,
    pub(super) first_usable: Lba,
    pub(super) last_usable: Lba,
    pub(super) disk_guid: Guid,
    pub(super) array_lba: Lba,
    pub(super) count: u32,
    pub(super) entry_size: u32,
    pub(super) array_crc: u32,
}

impl Header {
    /// The blocks that the array fills, the last one perhaps in part. Only after
    /// count and entry size were checked.
    pub(super) fn array_blocks(&self, block: BlockSize) -> u64 {
        (u64::from(self.count) * u64::from(self.entry_size)).div_ceil(u64::from(block.0))
    }
}

/// Reads the header in this block of the disk.
pub(super) fn parse_header(block: &[u8], copy: Copy) -> Result<Header, TableError> {
    if block.len() < HEADER_MIN as usize || &block[0..8] != b"EFI PART" {
        return Err(TableError::Signature { copy });
    }
    let revision = get_u32(block, 8);
    if revision != 0x0001_0000 {
        return Err(TableError::Revision {
            copy,
            found: revision,
        });
    }
    let size = get_u32(block, at::SIZE);
    if size < HEADER_MIN || size as usize > block.len() {
        return Err(TableError::HeaderSize {
            copy,
            found: size,
            most: block.len() as u32,
        });
    }
    let (expected, found) = (header_crc(block, size), get_u32(block, at::CRC));
    if expected != found {
        return Err(TableError::HeaderCrc {
            copy,
            expected,
            found,
        });
    }
    Ok(Header {
        my_lba: Lba(get_u64(block, at::MY_LBA)),
        alternate: Lba(get_u64(block, at::ALTERNATE)),
        first_usable: Lba(get_u64(block, at::FIRST_USABLE)),
        last_usable: Lba(get_u64(block, at::LAST_USABLE)),
        disk_guid: get_guid(block, at::DISK_GUID),
        array_lba: Lba(get_u64(block, at::ARRAY_LBA)),
        count: get_u32(block, at::COUNT),
        entry_size: get_u32(block, at::ENTRY_SIZE),
        array_crc: get_u32(block, at::ARRAY_CRC),
    })
}

/// Puts the checksum over the header's own size into a header block whose size
/// field was checked before.
pub(super) fn seal_header(block: &mut [u8]) {
    let size = get_u32(block, at::SIZE).min(block.len() as u32);
    let crc = header_crc(block, size);
    put_u32(block, at::CRC, crc);
}

/// The checksum over `size` bytes with the checksum's own field as zero.
fn header_crc(block: &[u8], size: u32) -> u32 {
    let mut bytes = block[..size as usize].to_vec();
    bytes[at::CRC..at::CRC + 4].fill(0);
    crc32(&bytes)
}

pub(super) fn get_u32(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0u8; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

pub(super) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0u8; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

pub(super) fn get_guid(bytes: &[u8], at: usize) -> Guid {
    let mut raw = [0u8; 16];
    raw.copy_from_slice(&bytes[at..at + 16]);
    Guid(raw)
}

pub(super) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub(super) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}
