//! The rules by which Linux finds partitions in a GPT, written again.
//!
//! Takes a disk, gives what the kernel would list. From Linux
//! `block/partitions/efi.c` (`find_valid_gpt`, `is_gpt_valid`, `is_pmbr_valid`,
//! `is_pte_valid`), read and not copied; it shares no code with repave's own parser,
//! not even the checksum.

use repave_survey::block_io::BlockRead;

/// What the kernel makes of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scanned {
    /// Partitions: number, first and last logical block.
    Gpt(Vec<(u32, u64, u64)>),
    /// Not taken for a GPT: **no partition at all**, not even root.
    Nothing {
        /// The rule that it failed.
        why: &'static str,
    },
}

/// `KMALLOC_MAX_SIZE`: a larger array is not read.
const ARRAY_MAX: u64 = 4 * 1024 * 1024;

/// `DISK_MAX_PARTS`: no more are taken.
const PARTS_MAX: u32 = 256;

/// Scans a disk like a kernel without `gpt` on its command line: the alternate
/// header is looked at only when the primary is valid, so it decides nothing.
pub fn scan(disk: &dyn BlockRead) -> Scanned {
    let nothing = |why| Scanned::Nothing { why };
    let block = u64::from(disk.block());
    let last = disk.len() / block - 1;
    let Some(mbr) = sector(disk, 0, 512) else {
        return nothing("LBA 0 cannot be read");
    };
    if mbr[510..512] != [0x55, 0xaa] {
        return nothing("no MBR signature");
    }
    let protective = mbr[446..510]
        .chunks(16)
        .any(|slot| slot[4] == 0xee && le(&slot[8..12]) == 1);
    if !protective {
        return nothing("no protective entry");
    }
    let Some(header) = sector(disk, block, block as usize) else {
        return nothing("LBA 1 cannot be read");
    };
    if &header[..8] != b"EFI PART" {
        return nothing("no signature");
    }
    let size = le(&header[12..16]) as usize;
    if size > block as usize || size < 92 {
        return nothing("header size");
    }
    let mut summed = header[..size].to_vec();
    summed[16..20].fill(0);
    if u64::from(checksum(&summed)) != le(&header[16..20]) {
        return nothing("header checksum");
    }
    let (first_usable, last_usable) = (le(&header[40..48]), le(&header[48..56]));
    if le(&header[24..32]) != 1 {
        return nothing("own address");
    }
    if first_usable > last || last_usable > last || last_usable < first_usable {
        return nothing("usable range");
    }
    let (count, entry) = (le(&header[80..84]), le(&header[84..88]));
    if entry != 128 || count * entry > ARRAY_MAX || count == 0 {
        return nothing("array's shape");
    }
    let array_lba = le(&header[72..80]);
    if array_lba > last {
        return nothing("array's address");
    }
    let Some(array) = sector(disk, array_lba * block, (count * entry) as usize) else {
        return nothing("array cannot be read");
    };
    if u64::from(checksum(&array)) != le(&header[88..92]) {
        return nothing("array checksum");
    }
    let entries = (1..PARTS_MAX).zip(array.chunks(128));
    Scanned::Gpt(
        entries
            .filter(|(_, e)| e[..16] != [0; 16])
            .map(|(n, e)| (n, le(&e[32..40]), le(&e[40..48])))
            .filter(|(_, first, end)| *first <= last && *end <= last)
            .collect(),
    )
}

fn sector(disk: &dyn BlockRead, offset: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0u8; len];
    disk.read_at(offset, &mut bytes).ok()?;
    Some(bytes)
}

fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// CRC-32, bit by bit.
fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let low = crc & 1;
            crc >>= 1;
            if low == 1 {
                crc ^= 0xedb8_8320;
            }
        }
    }
    !crc
}
