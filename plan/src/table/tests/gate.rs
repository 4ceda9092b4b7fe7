//! What passes the gate, to exact values, and what each broken thing is called.

use crate::units::Guid;

use super::*;

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
