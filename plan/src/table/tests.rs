//! Tests of the table as a value, on images built by hand here: a builder that
//! shares no code with the parser beyond the checksum.

use proptest::prelude::*;

use crate::units::{BlockSize, Digest, Extent, Guid, Lba, PartNo};

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

#[test]
fn a_good_table_parses_to_exact_values() {
    for (block, first_usable, array) in [(512, 34, ext(2, 33)), (4096, 6, ext(2, 5))] {
        let disk = Disk::worker(block);
        let table = parse_table(&disk.image()).unwrap();
        assert_eq!(table.first_usable, Lba(first_usable));
        assert_eq!(table.primary_array, array);
        assert_eq!(table.backup_lba, Lba(disk.blocks - 1));
        assert_eq!(table.last_usable, Lba(disk.blocks - 2 - array.blocks()));
        assert_eq!(table.disk_guid, Guid([0xd5; 16]));
        assert_eq!(table.slots, 128);
        let p3 = table.entry(PartNo(3)).unwrap();
        let mib = 1024 * 1024 / u64::from(block);
        assert_eq!(p3.extent, ext(20 * mib, 40 * mib - 1));
        assert_eq!(p3.guid, Guid([0x13; 16]));
        assert_eq!(p3.attributes, 1 << 60 | 3);
        assert_eq!(p3.name, "p\u{1f600}");
        assert_eq!(p3.name_raw.0[8..10], [9, 3]);
        assert_eq!(table.entries.len(), 4);
    }
}

#[test]
fn other_counts_header_sizes_and_holes_parse() {
    for (slots, header_size, numbers) in [
        (56, 92, vec![1, 2, 4, 7]),
        (128, 512, vec![1, 128]),
        (256, 92, vec![2, 200]),
        (1, 92, vec![1]),
    ] {
        let disk = Disk {
            slots,
            header_size,
            parts: numbers
                .iter()
                .enumerate()
                .map(|(at, n)| (*n, 2048 * (1 + at as u64), 2048 * (2 + at as u64) - 1))
                .collect(),
            ..Disk::worker(512)
        };
        let table = parse_table(&disk.image()).unwrap();
        let found: Vec<u32> = table.entries.iter().map(|e| e.number.0).collect();
        assert_eq!(found, numbers);
        assert_eq!(table.slots, slots);
    }
}

/// Each row breaks one thing on a good disk; the gate must name exactly that.
#[test]
fn the_gate_names_what_is_wrong() {
    type Break = fn(&mut Vec<u8>, &Disk);
    let rows: Vec<(&str, Break, &str)> = vec![
        (
            "no signature",
            |d, _| d[512] = 0,
            "find a GPT header in the primary copy",
        ),
        (
            "revision 2",
            |d, _| patch_header(d, 512, 1, 8, &0x0002_0000u32.to_le_bytes()),
            "read revision 0x00020000 of the primary header (only 0x00010000 is known)",
        ),
        (
            "header size 91",
            |d, _| patch_header(d, 512, 1, 12, &91u32.to_le_bytes()),
            "use the primary header's size of 91 bytes (92 to 512)",
        ),
        (
            "header size 513",
            |d, _| patch_header(d, 512, 1, 12, &513u32.to_le_bytes()),
            "use the primary header's size of 513 bytes (92 to 512)",
        ),
        (
            "header bit",
            |d, _| d[512 + 60] ^= 1,
            "match the primary header's checksum",
        ),
        (
            "own address",
            |d, _| patch_header(d, 512, 1, 24, &2u64.to_le_bytes()),
            "find the primary header's own address LBA 1 in it: found LBA 2",
        ),
        (
            "entry size 256",
            |d, _| patch_header(d, 512, 1, 84, &256u32.to_le_bytes()),
            "use entries of 256 bytes in the primary copy (only 128 is known)",
        ),
        (
            "no entries",
            |d, _| patch_header(d, 512, 1, 80, &0u32.to_le_bytes()),
            "use an array of 0 entries in the primary copy (1 to 1024)",
        ),
        (
            "4 billion entries",
            |d, _| patch_header(d, 512, 1, 80, &u32::MAX.to_le_bytes()),
            "use an array of 4294967295 entries in the primary copy (1 to 1024)",
        ),
        (
            "primary array bit",
            |d, _| d[1024 + 127 * 128] ^= 1,
            "match the primary array's checksum",
        ),
        (
            "backup array bit",
            |d, k| d[(k.blocks as usize - 33) * 512] ^= 1,
            "match the backup array's checksum",
        ),
        (
            "backup header bit",
            |d, k| d[(k.blocks as usize - 1) * 512 + 60] ^= 1,
            "match the backup header's checksum",
        ),
        (
            "backup names another primary",
            |d, k| patch_header(d, 512, k.blocks - 1, 32, &2u64.to_le_bytes()),
            "find the other copy's address LBA 1 in the backup header: found LBA 2",
        ),
        (
            "backup beyond the end",
            |d, k| patch_header(d, 512, 1, 32, &k.blocks.to_le_bytes()),
            "find the backup table inside the disk, which ends at LBA 131071: it is at LBA 131072",
        ),
        (
            "array far away",
            |d, _| patch_header(d, 512, 1, 72, &50_000u64.to_le_bytes()),
            "find the primary copy's entry array in the first or last MiB of the disk",
        ),
        (
            "array at the last address of all",
            |d, _| patch_header(d, 512, 1, 72, &(u64::MAX - 31).to_le_bytes()),
            "find the primary copy's entry array in the first or last MiB of the disk",
        ),
        (
            "other disk GUID",
            |d, k| patch_header(d, 512, k.blocks - 1, 56, &[1; 16]),
            "find the same disk GUID in both copies of the table",
        ),
        (
            "other first usable",
            |d, k| patch_header(d, 512, k.blocks - 1, 40, &35u64.to_le_bytes()),
            "find the same first usable block in both copies of the table",
        ),
        (
            "other last usable",
            |d, k| patch_header(d, 512, k.blocks - 1, 48, &(k.blocks - 35).to_le_bytes()),
            "find the same last usable block in both copies of the table",
        ),
        (
            "old and new both whole", // case S6
            |d, k| {
                let from = (k.blocks as usize - 33) * 512;
                d[from + 40] ^= 1;
                let crc = crc32(&d[from..from + 128 * 128]);
                patch_header(d, 512, k.blocks - 1, 88, &crc.to_le_bytes());
            },
            "find the same entries in both copies of the table",
        ),
        (
            "array new, header old", // case S7
            |d, _| d[1024 + 40] ^= 1,
            "match the primary array's checksum",
        ),
        (
            "no MBR signature",
            |d, _| d[510] = 0,
            "find a protective MBR",
        ),
        ("no 0xee", |d, _| d[446 + 4] = 0x83, "find a protective MBR"),
        (
            "0xee at LBA 2",
            |d, _| d[446 + 8] = 2,
            "find a protective MBR",
        ),
        (
            "two 0xee",
            |d, _| d[462 + 4] = 0xee,
            "find a protective MBR",
        ),
        (
            "hybrid",
            |d, _| d[462 + 4] = 0x0c,
            "use a hybrid MBR (it also has an entry of type 0x0c)",
        ),
        (
            "MBR size",
            |d, _| d[446 + 12..446 + 16].copy_from_slice(&7u32.to_le_bytes()),
            "find 131071 blocks in the protective MBR: found 7",
        ),
        (
            "usable range over the array",
            |d, k| {
                for lba in [1, k.blocks - 1] {
                    patch_header(d, 512, lba, 40, &33u64.to_le_bytes());
                }
            },
            "find the primary array outside the usable range LBA 33 to",
        ),
        (
            "usable range over the backup array", // case R3
            |d, k| {
                for lba in [1, k.blocks - 1] {
                    patch_header(d, 512, lba, 48, &(k.blocks - 33).to_le_bytes());
                }
            },
            "find the backup array outside the usable range LBA 34 to LBA 131039",
        ),
        (
            "inverted",
            |d, k| patch_slot(d, k, 2, 32, &41_000u64.to_le_bytes()),
            "use p2, which ends before it begins",
        ),
        (
            "before the usable range",
            |d, k| patch_slot(d, k, 1, 32, &33u64.to_le_bytes()),
            "use p1, which is not inside the usable range LBA 34 to LBA 131038",
        ),
        (
            "behind the usable range",
            |d, k| patch_slot(d, k, 4, 40, &131_039u64.to_le_bytes()),
            "use p4, which is not inside the usable range LBA 34 to LBA 131038",
        ),
        (
            "overlap",
            |d, k| patch_slot(d, k, 3, 40, &81_920u64.to_le_bytes()),
            "use p3 and p4, which overlap",
        ),
        (
            "duplicate GUID",
            |d, k| patch_slot(d, k, 4, 16, &[0x12; 16]),
            "use p2 and p4, which have the same GUID 12121212-1212-1212-1212-121212121212",
        ),
    ];
    for (name, breaks, expected) in rows {
        let disk = Disk::worker(512);
        let mut bytes = disk.bytes();
        breaks(&mut bytes, &disk);
        let err = parse_table(&read(&bytes, 512)).unwrap_err().to_string();
        assert!(err.starts_with(expected), "{name}: {err}");
    }
}

#[test]
fn an_mbr_of_the_largest_size_passes() {
    let mut bytes = Disk::worker(512).bytes();
    bytes[446 + 12..446 + 16].fill(0xff);
    assert!(parse_table(&read(&bytes, 512)).is_ok());
}

#[test]
fn one_broken_copy_leaves_the_other_classified() {
    let disk = Disk::worker(512);
    let mut bytes = disk.bytes();
    bytes[1024 + 40] ^= 1;
    let image = read(&bytes, 512);
    assert!(matches!(
        classify_copy(&image, Copy::Primary),
        CopyState::Invalid {
            why: TableError::ArrayCrc {
                copy: Copy::Primary,
                ..
            }
        }
    ));
    assert!(matches!(
        classify_copy(&image, Copy::Backup),
        CopyState::Valid { header, array, .. }
            if header == Lba(131_071) && array == ext(131_039, 131_070)
    ));
}

#[test]
fn an_edit_changes_two_slots_and_the_checksums_only() {
    for block in [512, 4096] {
        let disk = Disk::worker(block);
        let old = disk.image();
        let new = edit(&old, &merge(&old, 4, &[3])).unwrap();
        let mib = 1024 * 1024 / u64::from(block);
        let table = parse_table(&new).unwrap();
        let p3 = table.entry(PartNo(3)).unwrap();
        assert_eq!(p3.extent, ext(20 * mib, table.last_usable.0));
        assert_eq!(p3.type_guid, Guid([0xa4; 16]));
        assert_eq!(p3.name_raw.0[8..10], [9, 4]);
        assert_eq!(table.entry(PartNo(4)), None);
        let header = block as usize;
        let array = 2 * header;
        let allowed = |at: usize| {
            (header + 16..header + 20).contains(&at)
                || (header + 88..header + 92).contains(&at)
                || (array + 2 * 128..array + 4 * 128).contains(&at)
        };
        for (at, (a, b)) in old.head.iter().zip(&new.head).enumerate() {
            assert!(a == b || allowed(at), "head byte {at} changed");
        }
        let header = old.tail.len() - block as usize;
        for (at, (a, b)) in old.tail.iter().zip(&new.tail).enumerate() {
            let allowed = (2 * 128..4 * 128).contains(&at)
                || (header + 16..header + 20).contains(&at)
                || (header + 88..header + 92).contains(&at);
            assert!(a == b || allowed, "tail byte {at} changed");
        }
        assert_eq!(old.tail_first, new.tail_first);
    }
}

#[test]
fn an_edit_refuses_what_it_must_not_do() {
    let old = Disk::worker(512).image();
    let good = merge(&old, 4, &[3]);
    let put = |number: u32, first: u64, last: u64| EntrySpec {
        number: PartNo(number),
        extent: ext(first, last),
        ..good.put.clone()
    };
    let rows = [
        (vec![9], put(3, 81_920, 90_000), "find p9 in the table"),
        (
            vec![3],
            put(200, 40_960, 50_000),
            "find a slot for p200 in a table of 128",
        ),
        (
            vec![3],
            put(0, 40_960, 50_000),
            "find a slot for p0 in a table of 128",
        ),
        (
            vec![4],
            put(3, 81_920, 90_000),
            "write p3: the slot holds another partition, 13131313-1313-1313-1313-131313131313",
        ),
        // Over root, and beyond the end: the result does not pass the gate.
        (
            vec![3, 4],
            put(3, 40_000, 90_000),
            "accept the table as it would be",
        ),
        (
            vec![3, 4],
            put(3, 40_960, 131_039),
            "accept the table as it would be",
        ),
    ];
    for (remove, put, expected) in rows {
        let err = edit(
            &old,
            &TableEdit {
                remove: remove.into_iter().map(PartNo).collect(),
                put,
                relocate_backup: false,
            },
        )
        .unwrap_err();
        assert_eq!(err.to_string(), expected);
    }
}

#[test]
fn a_grown_disk_is_refused_or_relocated() {
    // Cases R2 and S8.
    let mib = 2048;
    let disk = Disk {
        blocks: 80 * mib,
        ..Disk::worker(512)
    };
    let old = disk.image();
    assert_eq!(
        parse_table(&old),
        Err(TableError::BackupNotAtEnd {
            found: Lba(64 * mib - 1),
            last: Lba(80 * mib - 1)
        })
    );
    assert!(parse_table_with(&old, BackupPlace::MayMove).is_ok());
    let moved = relocate(&old).unwrap();
    let table = parse_table(&moved).unwrap();
    assert_eq!(table.last_usable, Lba(80 * mib - 34));
    assert_eq!(table.backup_array, ext(80 * mib - 33, 80 * mib - 2));
    assert_eq!(
        moved.head[446 + 12..450 + 12],
        (80 * mib as u32 - 1).to_le_bytes()
    );
    assert_eq!(moved.head[..446], old.head[..446]);
    assert_eq!(relocate(&moved).unwrap(), moved);

    let put = merged_spec(&table, PartNo(4), &[PartNo(3)], MergeMode::Recreate).unwrap();
    assert_eq!(put.extent.last, Lba(80 * mib - 34));
    let mut change = TableEdit {
        remove: vec![PartNo(3), PartNo(4)],
        put,
        relocate_backup: false,
    };
    assert!(matches!(
        edit(&old, &change),
        Err(EditError::Before {
            source: TableError::BackupNotAtEnd { .. }
        })
    ));
    change.relocate_backup = true;
    let new = edit(&old, &change).unwrap();
    assert_eq!(parse_table(&new).unwrap().entries.len(), 3);
}

#[test]
fn merging_takes_the_neighbours_and_the_free_space_behind() {
    let mib = 2048;
    let disk = |parts: &[(u32, u64, u64)]| {
        let parts = parts.iter().map(|(n, a, b)| (*n, *a, *b)).collect();
        let image = Disk {
            parts,
            ..Disk::worker(512)
        }
        .image();
        parse_table(&image).unwrap()
    };
    let end = 64 * mib - 34;
    let rec = MergeMode::Recreate;
    type Row = (
        Vec<(u32, u64, u64)>,
        u32,
        Vec<u32>,
        MergeMode,
        Result<(u64, u64), &'static str>,
    );
    let rows: Vec<Row> = vec![
        // dead in front, free space behind (case S1)
        (
            vec![(2, mib, 2 * mib - 1), (3, 2 * mib, 9), (4, 40 * mib, 9)],
            4,
            vec![3],
            rec,
            Ok((2 * mib, end)),
        ),
        // dead behind
        (
            vec![(3, 2 * mib, 9), (4, 40 * mib, 9)],
            3,
            vec![4],
            rec,
            Ok((2 * mib, end)),
        ),
        // a partition behind stops the growth; its number does not matter
        (
            vec![(3, 2 * mib, 9), (4, 20 * mib, 9), (1, 50 * mib, 9)],
            4,
            vec![3],
            rec,
            Ok((2 * mib, 50 * mib - 1)),
        ),
        // both sides
        (
            vec![(3, 2 * mib, 9), (4, 20 * mib, 9), (5, 40 * mib, 9)],
            4,
            vec![3, 5],
            rec,
            Ok((2 * mib, end)),
        ),
        // free space between is taken
        (
            vec![(3, 2 * mib, 9), (4, 30 * mib, 9)],
            4,
            vec![3],
            rec,
            Ok((2 * mib, end)),
        ),
        // an unaligned start moves up to the next MiB
        (
            vec![(3, 2 * mib + 8, 9), (4, 40 * mib, 9)],
            4,
            vec![3],
            rec,
            Ok((3 * mib, end)),
        ),
        (
            vec![(3, 2 * mib, 9), (4, 40 * mib, 9)],
            3,
            vec![4],
            MergeMode::Grow,
            Ok((2 * mib, end)),
        ),
        // growing keeps even an unaligned start
        (
            vec![(3, 2 * mib + 8, 9), (4, 40 * mib, 9)],
            3,
            vec![4],
            MergeMode::Grow,
            Ok((2 * mib + 8, end)),
        ),
        (
            vec![(3, 2 * mib, 9), (4, 40 * mib, 9)],
            4,
            vec![3],
            MergeMode::Grow,
            Err("grow p4 over p3, which lies in front of it"),
        ),
        (
            vec![(3, 2 * mib, 9), (5, 30 * mib, 9), (4, 40 * mib, 9)],
            4,
            vec![3],
            rec,
            Err("merge p3 with p4: p5 lies between them"),
        ),
        (
            vec![(3, 2 * mib, 9), (5, 30 * mib, 9), (4, 40 * mib, 9)],
            3,
            vec![4],
            MergeMode::Grow,
            Err("merge p4 with p3: p5 lies between them"),
        ),
        (
            vec![(3, 2 * mib, 9)],
            3,
            vec![],
            rec,
            Err("find a partition to merge with p3"),
        ),
        (
            vec![(3, 2 * mib, 9)],
            3,
            vec![3],
            rec,
            Err("merge p3 with itself"),
        ),
        (
            vec![(3, 2 * mib, 9)],
            3,
            vec![4],
            rec,
            Err("find p4 in the table"),
        ),
        (
            vec![(3, 2 * mib, 9)],
            4,
            vec![3],
            rec,
            Err("find p4 in the table"),
        ),
    ];
    for (parts, pool, dead, mode, expected) in rows {
        // An end of 9 stands for "10 MiB long".
        let parts: Vec<_> = parts
            .into_iter()
            .map(|(n, a, b)| (n, a, if b == 9 { a + 10 * mib - 1 } else { b }))
            .collect();
        let dead: Vec<PartNo> = dead.into_iter().map(PartNo).collect();
        let got = merged_extent(&disk(&parts), PartNo(pool), &dead, mode);
        let got = got
            .map(|e| (e.first.0, e.last.0))
            .map_err(|e| e.to_string());
        assert_eq!(got, expected.map_err(str::to_owned), "{parts:?}");
    }
}

#[test]
fn the_merged_slot_is_the_pools_under_the_lowest_number() {
    let table = parse_table(&Disk::worker(512).image()).unwrap();
    let spec = |mode, pool: u32, dead: u32| {
        merged_spec(&table, PartNo(pool), &[PartNo(dead)], mode).unwrap()
    };
    let made = spec(MergeMode::Recreate, 4, 3);
    assert_eq!(made.number, PartNo(3));
    assert_eq!(made.type_guid, Guid([0xa4; 16]));
    assert_eq!(made.attributes, 1 << 60 | 4);
    assert_eq!(made, spec(MergeMode::Recreate, 4, 3));
    assert_ne!(made.guid, Guid([0x14; 16]));
    assert_ne!(
        made.guid,
        derived_guid(table.disk_guid, Guid([0x14; 16]), ext(1, 2))
    );
    let grown = spec(MergeMode::Grow, 3, 4);
    assert_eq!((grown.number, grown.guid), (PartNo(3), Guid([0x13; 16])));
}

fn changed(disk: &Disk) -> (TableImage, TableImage) {
    let old = disk.image();
    let new = edit(&old, &merge(&old, 4, &[3])).unwrap();
    (old, new)
}

#[test]
fn the_shadow_goes_where_nothing_is() {
    let (old, new) = changed(&Disk::worker(512));
    let mib = 2048;
    let place = |zero: &[Extent], removed: &[Extent]| {
        shadow_place(&old, &new, zero, removed).map(|e| (e.first.0, e.last.0))
    };
    // Aligned to 4 KiB behind the array, in front of p1.
    assert_eq!(place(&[ext(34, mib - 1)], &[]), Some((40, 71)));
    // The part of a run that lies over the array or in p1 does not count.
    assert_eq!(place(&[ext(0, 5000)], &[]), Some((40, 71)));
    assert_eq!(place(&[ext(34, 70)], &[]), None);
    // A second run, when the first is too small.
    assert_eq!(place(&[ext(34, 70), ext(73, 200)], &[]), Some((80, 111)));
    // Inside what is destroyed, but not where labels of the new partition will be.
    let guard = LABEL_GUARD / 512;
    let dead = ext(20 * mib, 40 * mib - 1);
    assert_eq!(
        place(&[], &[dead]),
        Some((20 * mib + guard, 20 * mib + guard + 31))
    );
    assert_eq!(place(&[], &[ext(20 * mib, 24 * mib - 1)]), None);
    assert_eq!(place(&[], &[ext(60 * mib, 64 * mib - 34)]), None);
    // Never on root, even when somebody claims that it is removed.
    assert_eq!(place(&[], &[ext(4 * mib, 20 * mib - 1)]), None);
    assert_eq!(place(&[], &[]), None);

    let (old, new) = changed(&Disk::worker(4096));
    let place = shadow_place(&old, &new, &[ext(6, 255)], &[]);
    assert_eq!(place, Some(ext(6, 9)));
}

#[test]
fn the_shadow_header_points_there_and_is_whole() {
    let (old, new) = changed(&Disk::worker(512));
    let sector = shadow_header(&new, ext(40, 71)).unwrap();
    let get = |at: usize| u64::from_le_bytes(sector[at..at + 8].try_into().unwrap());
    assert_eq!((get(72), get(40)), (40, 72));
    // All else is the new header's.
    for (at, (a, b)) in new.head[512..1024].iter().zip(&sector).enumerate() {
        let may = [16..20, 40..48, 72..80].iter().any(|r| r.contains(&at));
        assert!(a == b || may, "byte {at}");
    }
    // The table read through it is the new one.
    let disk = Disk::worker(512);
    let mut bytes = disk.bytes();
    bytes[..old.head.len()].copy_from_slice(&old.head);
    bytes[512..1024].copy_from_slice(&sector);
    bytes[40 * 512..72 * 512].copy_from_slice(&new.head[1024..34 * 512]);
    assert!(matches!(
        classify_copy(&read(&bytes, 512), Copy::Primary),
        CopyState::Valid { array, .. } if array == ext(40, 71)
    ));
    // In a destroyed extent the usable range stays as it is.
    let sector = shadow_header(&new, ext(60_000, 60_031)).unwrap();
    assert_eq!(u64::from_le_bytes(sector[40..48].try_into().unwrap()), 34);
}

#[test]
fn a_change_is_checked_when_it_is_read_back() {
    let (old, new) = changed(&Disk::worker(512));
    let make = |old: &TableImage, new: &TableImage, shadow| {
        TableChange::new(old.clone(), new.clone(), shadow)
    };
    let change = make(&old, &new, ext(40, 71)).unwrap();
    assert!(change.shadow_in_gap().unwrap());
    let json = serde_json::to_string(&change).unwrap();
    assert_eq!(serde_json::from_str::<TableChange>(&json).unwrap(), change);
    assert!(json.len() < 16_000, "{} bytes", json.len());

    let inside = make(&old, &new, ext(60_000, 60_031)).unwrap();
    assert!(!inside.shadow_in_gap().unwrap());

    for (shadow, reason) in [
        (ext(40, 72), "it is not the size of the array"),
        (ext(33, 64), "it touches a copy of the table"),
        (ext(131_039, 131_070), "it touches a copy of the table"),
        (ext(0, u64::MAX), "it touches a copy of the table"),
        (ext(2048, 2079), "it lies on a partition that stays"),
    ] {
        let err = make(&old, &new, shadow).unwrap_err();
        assert!(err.to_string().ends_with(reason), "{err}");
    }
    let mut other = new.clone();
    other.head[0] ^= 1;
    let err = make(&old, &other, ext(40, 71)).unwrap_err();
    assert_eq!(err, ChangeError::Differs { what: "boot code" });
    let small = Disk {
        slots: 56,
        ..Disk::worker(512)
    };
    let err = make(&old, &changed(&small).1, ext(40, 71)).unwrap_err();
    assert_eq!(
        err,
        ChangeError::Differs {
            what: "number of entries"
        }
    );
}

#[test]
fn images_round_trip_through_json_and_refuse_nonsense() {
    let image = Disk::worker(4096).image();
    let json = serde_json::to_value(&image).unwrap();
    assert_eq!(
        serde_json::from_value::<TableImage>(json.clone()).unwrap(),
        image
    );
    assert_eq!(image.primary_digest(), Digest::of(&image.head));
    let set = |path: &str, value: serde_json::Value| {
        let mut json = json.clone();
        *json.pointer_mut(path).unwrap() = value;
        serde_json::from_value::<TableImage>(json)
            .unwrap_err()
            .to_string()
    };
    for (path, value, expected) in [
        (
            "/block",
            1024.into(),
            "use a logical block size of 1024 bytes",
        ),
        (
            "/disk_blocks",
            5.into(),
            "find room for a partition table on 5 blocks",
        ),
        (
            "/disk_blocks",
            u64::MAX.into(),
            "find room for a partition table on",
        ),
        (
            "/head/first",
            1.into(),
            "take the head of a table image: it does not begin",
        ),
        (
            "/head/blocks",
            u64::MAX.into(),
            "take the head of a table image: it is larger",
        ),
        (
            "/head/blocks",
            2.into(),
            "take the head of a table image: a block lies outside",
        ),
        (
            "/head/data/1",
            "00".into(),
            "take the head of a table image: a block is not its size",
        ),
        (
            "/tail/first",
            (1u64 << 40).into(),
            "take the tail of a table image: a block lies outside",
        ),
    ] {
        let err = set(path, value);
        assert!(err.starts_with(expected), "{path}: {err}");
    }
}

#[test]
fn the_backup_file_reads_back() {
    for block in [512, 4096] {
        let image = Disk::worker(block).image();
        let file = export_sgdisk(&image).unwrap();
        assert_eq!(file.len(), 3 * 512 + 128 * 128);
        let back = import_sgdisk(&file, BlockSize(block), image.disk_blocks).unwrap();
        let (a, b) = (parse_table(&back).unwrap(), parse_table(&image).unwrap());
        assert_eq!(a, b);
        if block == 512 {
            assert_eq!(back, image);
        }
        let cut = import_sgdisk(&file[..file.len() - 1], BlockSize(block), image.disk_blocks);
        assert!(matches!(cut, Err(BackupFileError::Length { .. })));
    }
}

/// gptman as a second opinion on what we encode.
#[test]
fn gptman_reads_the_same_table() {
    for block in [512u32, 4096] {
        let disk = Disk::worker(block);
        let (_, new) = changed(&disk);
        let mut bytes = disk.bytes();
        bytes[..new.head.len()].copy_from_slice(&new.head);
        let at = new.tail_first.0 as usize * block as usize;
        bytes[at..at + new.tail.len()].copy_from_slice(&new.tail);
        let theirs =
            gptman::GPT::read_from(&mut std::io::Cursor::new(&bytes), u64::from(block)).unwrap();
        let ours = parse_table(&new).unwrap();
        assert_eq!(theirs.header.disk_guid, ours.disk_guid.0);
        assert_eq!(theirs.header.first_usable_lba, ours.first_usable.0);
        assert_eq!(theirs.header.last_usable_lba, ours.last_usable.0);
        let used: Vec<_> = theirs
            .iter()
            .filter(|(_, p)| p.is_used())
            .map(|(n, p)| {
                (
                    n,
                    p.unique_partition_guid,
                    p.starting_lba,
                    p.ending_lba,
                    p.attribute_bits,
                )
            })
            .collect();
        let mine: Vec<_> = ours
            .entries
            .iter()
            .map(|e| {
                (
                    e.number.0,
                    e.guid.0,
                    e.extent.first.0,
                    e.extent.last.0,
                    e.attributes,
                )
            })
            .collect();
        assert_eq!(used, mine);
    }
}

proptest! {
    /// Whatever is merged, entries that are not merged stay bit for bit, the result
    /// passes the gate and holds the slot that was asked for.
    #[test]
    fn untouched_entries_never_change(
        wide in any::<bool>(),
        slots in prop::sample::select(vec![8u32, 56, 128, 256]),
        cuts in prop::collection::btree_set(1u64..60, 3..9),
        order in any::<prop::sample::Index>(),
        pick in any::<prop::sample::Index>(),
    ) {
        let block = if wide { 4096 } else { 512 };
        let mib = 1024 * 1024 / u64::from(block);
        let cuts: Vec<u64> = cuts.into_iter().collect();
        let count = cuts.len() - 1;
        let shift = order.index(count);
        let parts: Vec<(u32, u64, u64)> = (0..count)
            .map(|at| (((at + shift) % count) as u32 + 1, cuts[at] * mib, cuts[at + 1] * mib - 1))
            .collect();
        let disk = Disk { slots, parts: parts.clone(), ..Disk::worker(block) };
        let old = disk.image();
        let before = parse_table(&old).unwrap();
        let at = pick.index(count - 1);
        let (pool, dead) = (parts[at].0, parts[at + 1].0);
        let change = merge(&old, pool, &[dead]);
        let new = edit(&old, &change).unwrap();
        let after = parse_table(&new).unwrap();
        for entry in &before.entries {
            if entry.number.0 != pool && entry.number.0 != dead {
                prop_assert_eq!(after.entry(entry.number), Some(entry));
            }
        }
        prop_assert_eq!(after.entries.len(), before.entries.len() - 1);
        prop_assert_eq!(after.entry(change.put.number).unwrap().spec(), change.put);
        prop_assert_eq!(&new.head[..446], &old.head[..446]);
        let array = |image: &TableImage| image.blocks(after.primary_array).map(<[u8]>::to_vec);
        let (a, b) = (array(&old).unwrap(), array(&new).unwrap());
        for slot in 0..slots as usize {
            let number = slot as u32 + 1;
            if number != pool && number != dead {
                prop_assert_eq!(&a[slot * 128..][..128], &b[slot * 128..][..128]);
            }
        }
    }

    /// No image makes the parser panic, and one that passes is edited and parsed
    /// again to what was asked for.
    #[test]
    fn a_damaged_image_is_an_error_or_a_table(
        flips in prop::collection::vec((0usize..34 * 512, any::<u8>()), 0..6),
        fix in any::<bool>(),
    ) {
        let disk = Disk::worker(512);
        let mut bytes = disk.bytes();
        for (at, value) in flips {
            bytes[at] ^= value;
        }
        if fix {
            patch_header(&mut bytes, 512, 1, 20, &[0; 4]);
        }
        let image = read(&bytes, 512);
        let _ = classify_copy(&image, Copy::Primary);
        if let Ok(table) = parse_table(&image) {
            prop_assert_eq!(table.slots, 128);
        }
    }
}
