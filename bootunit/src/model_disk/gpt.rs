//! A worker's disk with a partition table, for tests.
//!
//! Takes a layout, gives a [`ModelDisk`]. Builds the table from the specification's
//! text and shares nothing with the parser but the checksum.

use repave_plan::table::crc32;

use super::ModelDisk;

/// A partition of a [`GptLayout`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartLayout {
    /// Its number.
    pub number: u32,
    /// First block.
    pub first: u64,
    /// Last block.
    pub last: u64,
    /// Its name, at most 36 UTF-16 units of it.
    pub name: String,
    /// Its attribute bits.
    pub attributes: u64,
}

/// A disk to build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GptLayout {
    /// Logical block size in bytes.
    pub block: u32,
    /// Size in blocks.
    pub blocks: u64,
    /// Entries in the array.
    pub slots: u32,
    /// The size that the headers give for themselves.
    pub header_size: u32,
    /// The size in blocks that the table was made for; less than `blocks` on a disk
    /// that has grown.
    pub made_for: u64,
    /// The partitions.
    pub parts: Vec<PartLayout>,
}

impl GptLayout {
    /// EFI, root, a dead partition and the pool's, on 64 MiB.
    pub fn worker(block: u32) -> GptLayout {
        let mib = 1024 * 1024 / u64::from(block);
        let part = |number, first: u64, end: u64, name: &str| PartLayout {
            number,
            first: first * mib,
            last: end * mib - 1,
            name: name.to_owned(),
            attributes: 0,
        };
        GptLayout {
            block,
            blocks: 64 * mib,
            slots: 128,
            header_size: 92,
            made_for: 64 * mib,
            parts: vec![
                part(1, 1, 4, "EFI"),
                part(2, 4, 20, "root"),
                part(3, 20, 40, "dead"),
                part(4, 40, 60, "tank"),
            ],
        }
    }

    /// The blocks of one array.
    pub fn array_blocks(&self) -> u64 {
        (u64::from(self.slots) * 128).div_ceil(u64::from(self.block))
    }

    /// The disk with this table, boot code in front of it and nothing else.
    pub fn build(&self) -> ModelDisk {
        let mut disk = ModelDisk::new(self.block, self.blocks);
        disk.set(0, &self.boot_sector());
        let array = self.array();
        let last = self.made_for - 1;
        let first_usable = 2 + self.array_blocks();
        let last_usable = last - self.array_blocks() - 1;
        for (own, other, array_lba) in [(1, last, 2), (last, 1, last_usable + 1)] {
            let mut header = vec![0u8; self.header_size.max(92) as usize];
            header[0..8].copy_from_slice(b"EFI PART");
            header[8..12].copy_from_slice(&0x0001_0000u32.to_le_bytes());
            header[12..16].copy_from_slice(&self.header_size.to_le_bytes());
            for (at, value) in [
                (24, own),
                (32, other),
                (40, first_usable),
                (48, last_usable),
                (72, array_lba),
            ] {
                header[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
            }
            header[56..72].fill(0xd5);
            header[80..84].copy_from_slice(&self.slots.to_le_bytes());
            header[84..88].copy_from_slice(&128u32.to_le_bytes());
            header[88..92].copy_from_slice(&crc32(&array).to_le_bytes());
            let crc = crc32(&header);
            header[16..20].copy_from_slice(&crc.to_le_bytes());
            disk.set(own * u64::from(self.block), &header);
            disk.set(array_lba * u64::from(self.block), &array);
        }
        disk
    }

    fn boot_sector(&self) -> Vec<u8> {
        let mut sector: Vec<u8> = (0..440).map(|at| at as u8 | 1).collect();
        sector.resize(512, 0);
        sector[446 + 4] = 0xee;
        sector[446 + 8] = 1;
        let size = u32::try_from(self.made_for - 1).unwrap_or(u32::MAX);
        sector[446 + 12..446 + 16].copy_from_slice(&size.to_le_bytes());
        sector[510..512].copy_from_slice(&[0x55, 0xaa]);
        sector
    }

    fn array(&self) -> Vec<u8> {
        let mut array = vec![0u8; self.slots as usize * 128];
        for part in &self.parts {
            let slot = &mut array[(part.number as usize - 1) * 128..][..128];
            slot[0..16].fill(0xa0 ^ part.number as u8);
            slot[16..32].fill(0x10 ^ part.number as u8);
            slot[32..40].copy_from_slice(&part.first.to_le_bytes());
            slot[40..48].copy_from_slice(&part.last.to_le_bytes());
            slot[48..56].copy_from_slice(&part.attributes.to_le_bytes());
            for (at, unit) in part.name.encode_utf16().take(36).enumerate() {
                slot[56 + 2 * at..58 + 2 * at].copy_from_slice(&unit.to_le_bytes());
            }
        }
        array
    }
}
