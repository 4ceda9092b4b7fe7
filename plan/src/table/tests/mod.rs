//! Tests of the table as a value, on images built by hand here: a builder that
//! shares no code with the parser beyond the checksum.

mod edits;
mod files;
mod gate;
mod places;

use crate::units::{BlockSize, Extent, Lba, PartNo};

use super::*;

/// What to build a disk from.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    pub block: u32,
    pub blocks: u64,
    pub slots: u32,
    pub header_size: u32,
    /// number, first, last
    pub parts: Vec<(u32, u64, u64)>,
    /// The size of the disk when its table was made; smaller than `blocks` when it
    /// has grown.
    pub made_for: u64,
}

impl Disk {
    /// 64 MiB with EFI, root, a dead partition and the pool's: the usual worker.
    pub fn worker(block: u32) -> Disk {
        let mib = 1024 * 1024 / u64::from(block);
        Disk {
            block,
            blocks: 64 * mib,
            slots: 128,
            header_size: 92,
            parts: vec![
                (1, mib, 4 * mib - 1),
                (2, 4 * mib, 20 * mib - 1),
                (3, 20 * mib, 40 * mib - 1),
                (4, 40 * mib, 60 * mib - 1),
            ],
            made_for: 64 * mib,
        }
    }

    fn array_blocks(&self) -> u64 {
        (u64::from(self.slots) * 128).div_ceil(u64::from(self.block))
    }

    pub fn bytes(&self) -> Vec<u8> {
        let block = self.block as usize;
        let mut disk = vec![0u8; self.blocks as usize * block];
        for (at, byte) in disk[..440].iter_mut().enumerate() {
            *byte = at as u8; // boot code
        }
        disk[440..444].copy_from_slice(&[1, 2, 3, 4]); // disk signature
        disk[446 + 4] = 0xee;
        disk[446 + 8..446 + 12].copy_from_slice(&1u32.to_le_bytes());
        let size = u32::try_from(self.made_for - 1).unwrap();
        disk[446 + 12..446 + 16].copy_from_slice(&size.to_le_bytes());
        disk[510..512].copy_from_slice(&[0x55, 0xaa]);
        let mut array = vec![0u8; self.slots as usize * 128];
        for (number, first, last) in &self.parts {
            let slot = &mut array[(*number as usize - 1) * 128..][..128];
            slot[0..16].fill(0xa0u8.wrapping_add(*number as u8));
            slot[16..32].fill(0x10u8.wrapping_add(*number as u8));
            slot[32..40].copy_from_slice(&first.to_le_bytes());
            slot[40..48].copy_from_slice(&last.to_le_bytes());
            slot[48..56].copy_from_slice(&(1u64 << 60 | u64::from(*number)).to_le_bytes());
            // A name with a pair outside the basic plane and bytes after its NUL.
            slot[56..66].copy_from_slice(&[
                b'p',
                0,
                0x3d,
                0xd8,
                0x00,
                0xde,
                0,
                0,
                9,
                *number as u8,
            ]);
        }
        let last = self.made_for - 1;
        let first_usable = 2 + self.array_blocks();
        let last_usable = last - self.array_blocks() - 1;
        for (own, other, array_lba) in [(1, last, 2), (last, 1, last_usable + 1)] {
            let at = array_lba as usize * block;
            disk[at..at + array.len()].copy_from_slice(&array);
            let h = &mut disk[own as usize * block..][..block];
            h.fill(0x5a); // bytes after the header, which must stay
            h[..92].fill(0);
            h[0..8].copy_from_slice(b"EFI PART");
            h[8..12].copy_from_slice(&0x0001_0000u32.to_le_bytes());
            h[12..16].copy_from_slice(&self.header_size.to_le_bytes());
            h[24..32].copy_from_slice(&own.to_le_bytes());
            h[32..40].copy_from_slice(&other.to_le_bytes());
            h[40..48].copy_from_slice(&first_usable.to_le_bytes());
            h[48..56].copy_from_slice(&last_usable.to_le_bytes());
            h[56..72].fill(0xd5);
            h[72..80].copy_from_slice(&array_lba.to_le_bytes());
            h[80..84].copy_from_slice(&self.slots.to_le_bytes());
            h[84..88].copy_from_slice(&128u32.to_le_bytes());
            h[88..92].copy_from_slice(&crc32(&array).to_le_bytes());
            let crc = crc32(&h[..self.header_size as usize]);
            h[16..20].copy_from_slice(&crc.to_le_bytes());
        }
        disk
    }

    pub fn image(&self) -> TableImage {
        read(&self.bytes(), self.block)
    }
}

fn read(disk: &[u8], block: u32) -> TableImage {
    let size = block as usize;
    TableImage::read(
        BlockSize(block),
        (disk.len() / size) as u64,
        |first: Lba, into: &mut [u8]| {
            let at = first.0 as usize * size;
            into.copy_from_slice(&disk[at..at + into.len()]);
            Ok::<(), std::convert::Infallible>(())
        },
    )
    .unwrap()
}

/// Changes bytes of one header and puts its checksum right again.
fn patch_header(disk: &mut [u8], block: u32, lba: u64, at: usize, bytes: &[u8]) {
    let h = &mut disk[lba as usize * block as usize..][..block as usize];
    h[at..at + bytes.len()].copy_from_slice(bytes);
    h[16..20].fill(0);
    let size = u32::from_le_bytes(h[12..16].try_into().unwrap()) as usize;
    let crc = crc32(&h[..size.min(block as usize)]);
    h[16..20].copy_from_slice(&crc.to_le_bytes());
}

/// Changes bytes of a slot in both arrays and puts all checksums right again.
fn patch_slot(disk: &mut [u8], d: &Disk, number: usize, at: usize, bytes: &[u8]) {
    let last = d.made_for - 1;
    for (header, array) in [(1, 2), (last, last - d.array_blocks())] {
        let from = array as usize * d.block as usize;
        let slot = from + (number - 1) * 128 + at;
        disk[slot..slot + bytes.len()].copy_from_slice(bytes);
        let crc = crc32(&disk[from..from + d.slots as usize * 128]);
        patch_header(disk, d.block, header, 88, &crc.to_le_bytes());
    }
}

fn ext(first: u64, last: u64) -> Extent {
    Extent {
        first: Lba(first),
        last: Lba(last),
    }
}

fn merge(image: &TableImage, pool: u32, dead: &[u32]) -> TableEdit {
    let table = parse_table(image).unwrap();
    let dead: Vec<PartNo> = dead.iter().copied().map(PartNo).collect();
    let put = merged_spec(&table, PartNo(pool), &dead, MergeMode::Recreate).unwrap();
    let mut remove = dead;
    remove.push(PartNo(pool));
    TableEdit {
        remove,
        put,
        relocate_backup: false,
    }
}

fn changed(disk: &Disk) -> (TableImage, TableImage) {
    let old = disk.image();
    let new = edit(&old, &merge(&old, 4, &[3])).unwrap();
    (old, new)
}
