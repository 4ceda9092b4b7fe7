//! What a partition carries besides ZFS: file systems, volume managers, swap.
//!
//! Takes a disk and a range of bytes on it and gives the magics that stand where
//! util-linux's libblkid looks for them (`libblkid/src/superblocks/*.c`), under the
//! names `blkid` uses. Every magic of a file system is given, not only the first, so
//! that zeroing all of them leaves nothing for `blkid` to find. ZFS itself is read as
//! labels elsewhere. Reads only; a magic without the fields that `blkid` checks with it
//! is not reported.

use std::io;
use std::ops::Range;

use repave_plan::survey::SignatureFact;
use repave_plan::units::Bytes;

use crate::block_io::BlockRead;

mod table;

use table::{LUKS2_COPIES, PLAIN, SWAP_ENDS, SWAP_MAGICS};

/// What ends a boot sector.
const BOOT_SECTOR: [u8; 2] = [0x55, 0xaa];
/// Kinds whose first sector ends like one, besides FAT.
const OWN_BOOT_SECTOR: [&str; 4] = ["ntfs", "exfat", "BitLocker", "ReFS"];

/// Reads the signatures in a range of the disk (bytes), in the order of their offsets.
/// A range that reaches beyond the disk is `InvalidInput`.
pub fn read_signatures(dev: &dyn BlockRead, range: Range<u64>) -> io::Result<Vec<SignatureFact>> {
    if range.start > range.end || range.end > dev.len() {
        let text = format!(
            "bytes {} to {} are not on this disk",
            range.start, range.end
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut probe = Probe {
        dev,
        range,
        found: Vec::new(),
    };
    probe.plain()?;
    probe.ext()?;
    probe.swap()?;
    probe.luks()?;
    probe.lvm()?;
    probe.raid()?;
    probe.fat()?;
    probe.tables()?;
    let start = probe.range.start;
    let mut found = probe.found;
    found.sort_by_key(|(offset, _, _)| *offset);
    Ok(found
        .into_iter()
        .map(|(offset, kind, magic)| fact(kind, start + offset, &magic))
        .collect())
}

fn fact(kind: &str, offset: u64, magic: &[u8]) -> SignatureFact {
    SignatureFact {
        kind: kind.to_owned(),
        offset: Bytes(offset),
        magic: magic.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

struct Probe<'a> {
    dev: &'a dyn BlockRead,
    range: Range<u64>,
    /// Offset in the range, kind, magic.
    found: Vec<(u64, &'static str, Vec<u8>)>,
}

impl Probe<'_> {
    /// Bytes of the range; none where it ends before.
    fn bytes<const N: usize>(&self, offset: u64) -> io::Result<Option<[u8; N]>> {
        let mut bytes = [0; N];
        if offset.saturating_add(N as u64) > self.size() {
            return Ok(None);
        }
        self.dev.read_at(self.range.start + offset, &mut bytes)?;
        Ok(Some(bytes))
    }

    fn has(&self, offset: u64, magic: &[u8]) -> io::Result<bool> {
        let mut bytes = vec![0; magic.len()];
        if offset.saturating_add(magic.len() as u64) > self.size() {
            return Ok(false);
        }
        self.dev.read_at(self.range.start + offset, &mut bytes)?;
        Ok(bytes == magic)
    }

    fn size(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn push(&mut self, kind: &'static str, offset: u64, magic: &[u8]) {
        self.found.push((offset, kind, magic.to_vec()));
    }

    fn plain(&mut self) -> io::Result<()> {
        for (kind, offset, magic) in PLAIN {
            if self.has(*offset, magic)? {
                self.push(kind, *offset, magic);
            }
        }
        Ok(())
    }

    /// ext.c: one magic of two bytes, the kind follows from the features. The block
    /// size and revision are looked at too: two bytes alone turn up by chance.
    fn ext(&mut self) -> io::Result<()> {
        const MAGIC: [u8; 2] = [0x53, 0xef];
        let Some(sb) = self.bytes::<112>(1024)? else {
            return Ok(());
        };
        let word = |at: usize| u32::from_le_bytes([sb[at], sb[at + 1], sb[at + 2], sb[at + 3]]);
        if sb[56..58] != MAGIC || word(24) > 6 || word(76) > 1 {
            return Ok(());
        }
        let (compat, incompat, ro_compat) = (word(92), word(96), word(100));
        // What ext3 knows: filetype, recover and meta_bg; sparse_super, large_file and
        // btree_dir.
        let beyond_ext3 = incompat & !0x16 != 0 || ro_compat & !0x7 != 0;
        let kind = match (incompat & 0x8 != 0, beyond_ext3, compat & 0x4 != 0) {
            (true, _, _) => "jbd",
            (_, true, _) => "ext4",
            (_, _, true) => "ext3",
            _ => "ext2",
        };
        self.push(kind, 1024 + 56, &MAGIC);
        Ok(())
    }

    /// swap.c: the magic ends the first page, of whatever size pages are.
    fn swap(&mut self) -> io::Result<()> {
        for end in SWAP_ENDS {
            for (kind, magic) in SWAP_MAGICS {
                // All start ten bytes before the page's end.
                if self.has(end - 10, magic)? {
                    self.push(kind, end - 10, magic);
                }
            }
        }
        Ok(())
    }

    /// luks.c: a second header of LUKS2 says where it stands.
    fn luks(&mut self) -> io::Result<()> {
        if self.has(0, b"LUKS\xba\xbe")? {
            self.push("crypto_LUKS", 0, b"LUKS\xba\xbe");
        }
        for offset in LUKS2_COPIES {
            let place = self.bytes::<8>(offset + 256)?.map(u64::from_be_bytes);
            if place == Some(offset) && self.has(offset, b"SKUL\xba\xbe")? {
                self.push("crypto_LUKS", offset, b"SKUL\xba\xbe");
            }
        }
        Ok(())
    }

    /// lvm.c: a label in one of the first sectors, whose type is what is wiped.
    fn lvm(&mut self) -> io::Result<()> {
        for sector in [0, 1, 2, 3, 8] {
            let start = sector * 512;
            if self.has(start, b"LABELONE")? && self.has(start + 24, b"LVM2 001")? {
                self.push("LVM2_member", start + 24, b"LVM2 001");
            }
        }
        Ok(())
    }

    /// linux_raid.c: 0.90 and 1.0 count from the end, 1.1 and 1.2 from the start.
    fn raid(&mut self) -> io::Result<()> {
        const KIND: &str = "linux_raid_member";
        const MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();
        const RESERVED: u64 = 64 << 10;
        let size = self.size();
        if size > RESERVED {
            let at = size / RESERVED * RESERVED - RESERVED;
            let swapped = [MAGIC[3], MAGIC[2], MAGIC[1], MAGIC[0]];
            for magic in [MAGIC, swapped] {
                // The superblock of 0.90 has the version 0 behind its magic.
                if self.has(at, &magic)? && self.has(at + 4, &[0; 4])? {
                    self.push(KIND, at, &magic);
                }
            }
        }
        let from_end = (size / 4096 * 4096).checked_sub(8192);
        for at in from_end.into_iter().chain([0, 4096]) {
            let version_1 = self.has(at + 4, &1u32.to_le_bytes())?;
            let here = self.bytes::<8>(at + 144)?.map(u64::from_le_bytes) == Some(at / 512);
            if version_1 && here && self.has(at, &MAGIC)? {
                self.push(KIND, at, &MAGIC);
            }
        }
        Ok(())
    }

    /// vfat.c: texts, or a boot sector's jump and end when the fields behind it hold.
    fn fat(&mut self) -> io::Result<()> {
        let Some(boot) = self.bytes::<512>(0)? else {
            return Ok(());
        };
        if !is_fat(&boot) {
            return Ok(());
        }
        let texts: [(usize, &[u8]); 6] = [
            (0x52, b"MSWIN"),
            (0x52, b"FAT32   "),
            (0x36, b"MSDOS"),
            (0x36, b"FAT16   "),
            (0x36, b"FAT12   "),
            (0x36, b"FAT     "),
        ];
        let hits = texts
            .into_iter()
            .filter(|(at, text)| boot[*at..].starts_with(text));
        let boot_sector = boot[510..] == BOOT_SECTOR;
        let jump = boot_sector && matches!(boot[0], 0xeb | 0xe9);
        let ends = boot_sector.then_some((510, &boot[510..]));
        let all: Vec<_> = hits
            .chain(jump.then_some((0, &boot[..1])))
            .chain(ends)
            .collect();
        for (at, magic) in all {
            self.push("vfat", at as u64, magic);
        }
        Ok(())
    }

    /// A partition table inside the range: an image of a whole disk.
    fn tables(&mut self) -> io::Result<()> {
        for sector in [512, 4096] {
            if self.has(sector, b"EFI PART")? {
                self.push("gpt", sector, b"EFI PART");
            }
        }
        let Some(boot) = self.bytes::<512>(0)? else {
            return Ok(());
        };
        if boot[510..] != BOOT_SECTOR {
            return Ok(());
        }
        let kinds = self.found.iter().map(|(_, kind, _)| *kind);
        match kinds.clone().find(|kind| OWN_BOOT_SECTOR.contains(kind)) {
            // Boot code can look like a table once the magic in front of it is gone.
            Some(kind) => self.push(kind, 510, &BOOT_SECTOR),
            None if is_dos(&boot) && !kinds.clone().any(|kind| kind == "vfat") => {
                self.push("dos", 510, &BOOT_SECTOR);
            }
            None => {}
        }
        Ok(())
    }
}

/// dos.c: every entry's flag is 0 or 0x80; here at least one is in use as well.
fn is_dos(boot: &[u8; 512]) -> bool {
    let entries = boot[446..510].chunks(16);
    entries.clone().all(|entry| matches!(entry[0], 0 | 0x80))
        && entries
            .clone()
            .any(|entry| entry[4] != 0 && entry[12..16] != [0; 4])
}

/// The fields `fat_valid_superblock` looks at.
fn is_fat(boot: &[u8; 512]) -> bool {
    let sector = u16::from_le_bytes([boot[11], boot[12]]);
    let reserved = u16::from_le_bytes([boot[14], boot[15]]);
    let (cluster, fats, media) = (boot[13], boot[16], boot[21]);
    // OS/2's file systems put a FAT-like header in front of their own.
    let other = boot[0x36..].starts_with(b"JFS     ") || boot[0x36..].starts_with(b"HPFS    ");
    sector.is_power_of_two()
        && (512..=4096).contains(&sector)
        && cluster.is_power_of_two()
        && reserved != 0
        && fats != 0
        && (media == 0xf0 || media >= 0xf8)
        && !other
}

#[cfg(test)]
mod tests;
