//! What sgdisk changes although nobody asked: there our bytes are the original ones.

use std::path::Path;

use repave_boot::device::DiskDev;
use repave_boot::model_disk::gpt::GptLayout;
use repave_boot::table_write::{apply_table, read_table_image};
use repave_plan::table::{
    EntrySpec, MergeMode, TableChange, TableEdit, crc32, edit, merged_spec, parse_table,
};
use repave_plan::units::{Extent, Lba, PartNo};
use repave_survey::block_io::BlockRead as _;

use super::run::{Attached, tool};

/// A disk with something unusual on it.
struct Row {
    name: &'static str,
    block: usize,
    header_size: u32,
    patch: fn(&mut [u8], usize),
    /// Where sgdisk's result is not ours, measured with sgdisk 1.0.9.
    normalised: &'static [&'static str],
}

/// Bytes behind both headers, from `from` on.
fn behind_headers(disk: &mut [u8], block: usize, from: usize) {
    let last = disk.len() - block;
    for header in [block, last] {
        disk[header + from..header + block].fill(0x5a);
    }
}

/// The same bytes in a slot of both arrays.
fn in_slots(disk: &mut [u8], block: usize, at: usize, bytes: &[u8]) {
    let last = disk.len() - block;
    for array in [2 * block, last - 128 * 128] {
        disk[array + at..array + at + bytes.len()].copy_from_slice(bytes);
    }
}

const ROWS: &[Row] = &[
    Row {
        name: "bytes behind the header",
        block: 512,
        header_size: 92,
        patch: |disk, block| behind_headers(disk, block, 100),
        normalised: &[],
    },
    Row {
        name: "a header of 512 bytes with something in it",
        block: 512,
        header_size: 512,
        patch: |disk, block| behind_headers(disk, block, 100),
        normalised: &[],
    },
    Row {
        name: "bytes behind the header",
        block: 4096,
        header_size: 92,
        patch: |disk, block| behind_headers(disk, block, 100),
        normalised: &["primary header 512..=4095", "backup header 512..=4095"],
    },
    Row {
        name: "bytes behind a name's NUL",
        block: 512,
        header_size: 92,
        patch: |disk, block| in_slots(disk, block, 128 + 56 + 60, b"A"),
        normalised: &[],
    },
    Row {
        name: "a lone surrogate in a name",
        block: 512,
        header_size: 92,
        patch: |disk, block| in_slots(disk, block, 128 + 56, &[0x00, 0xd8]),
        normalised: &[],
    },
    Row {
        name: "something in an unused slot",
        block: 512,
        header_size: 92,
        patch: |disk, block| in_slots(disk, block, 50 * 128 + 32, b"left over"),
        normalised: &[],
    },
    Row {
        name: "a protective MBR of the largest size",
        block: 512,
        header_size: 92,
        patch: |disk, _| disk[458..462].fill(0xff),
        normalised: &["MBR 448..=461"],
    },
    Row {
        name: "a protective entry in the second slot, bootable",
        block: 512,
        header_size: 92,
        patch: |disk, _| {
            disk.copy_within(446..462, 462);
            disk[446..462].fill(0);
            disk[462] = 0x80;
        },
        normalised: &[],
    },
    Row {
        name: "something in the MBR of a 4096-byte block",
        block: 4096,
        header_size: 92,
        patch: |disk, block| disk[600..block].fill(0x33),
        normalised: &["MBR 600..=4095"],
    },
];

#[test]
fn what_sgdisk_normalises_stays_as_it_was() {
    std::thread::scope(|scope| {
        let rows: Vec<_> = ROWS
            .iter()
            .map(|row| (row, scope.spawn(|| edit_twice(row))))
            .collect();
        let found: Vec<(&Row, Vec<String>)> = rows
            .into_iter()
            .map(|(row, handle)| (row, handle.join().unwrap()))
            .collect();
        let wrong: Vec<_> = found
            .iter()
            .filter(|(row, found)| found != row.normalised)
            .map(|(row, found)| (row.name, row.block, found))
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    });
}

/// Edits the disk with sgdisk and with us; our result differs from the original in
/// the edit alone. Gives the places where sgdisk's result is not ours.
fn edit_twice(row: &Row) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let (theirs, ours) = (dir.path().join("theirs"), dir.path().join("ours"));
    let (block, was) = (row.block, unusual(row));
    std::fs::write(&theirs, &was).unwrap();
    std::fs::write(&ours, &was).unwrap();
    let put = edit_ours(&ours, block as u32);
    let disk = Attached::new(&theirs, block as u32);
    let args = [
        "-a1".to_owned(),
        "-d3".to_owned(),
        "-d4".to_owned(),
        format!("-n3:{}:{}", put.extent.first.0, put.extent.last.0),
        format!("-t3:{}", put.type_guid),
        format!("-u3:{}", put.guid),
        format!("-c3:{}", put.name_raw),
        disk.path.clone(),
    ];
    tool(
        "sgdisk",
        &args.iter().map(String::as_str).collect::<Vec<_>>(),
    );

    let (a, b) = (
        std::fs::read(&theirs).unwrap(),
        std::fs::read(&ours).unwrap(),
    );
    let last = was.len() - block;
    let (array, backup) = (2 * block, last - 128 * 128);
    for at in (0..was.len()).filter(|at| b[*at] != was[*at]) {
        let slots = |from: usize| (from + 256..from + 512).contains(&at);
        let sums = |h: usize| (h + 16..h + 20).contains(&at) || (h + 88..h + 92).contains(&at);
        let edited = slots(array) || slots(backup) || sums(block) || sums(last);
        assert!(edited, "{}: byte {at} was not ours to change", row.name);
    }
    runs(&a, &b)
        .into_iter()
        .map(|(from, to)| {
            let (what, base) = match from {
                at if at < block => ("MBR", 0),
                at if at < array => ("primary header", block),
                at if at >= last => ("backup header", last),
                at if at >= backup => ("backup array", backup),
                _ => ("primary array", array),
            };
            format!("{what} {}..={}", from - base, to - base)
        })
        .collect()
}

/// The disk with its patch and all checksums right.
fn unusual(row: &Row) -> Vec<u8> {
    let layout = GptLayout {
        header_size: row.header_size,
        ..GptLayout::worker(row.block as u32)
    };
    let built = layout.build();
    let mut disk = vec![0u8; built.len() as usize];
    built.read_at(0, &mut disk).unwrap();
    (row.patch)(&mut disk, row.block);
    let (array, last) = (2 * row.block, disk.len() - row.block);
    let crc = crc32(&disk[array..array + 128 * 128]);
    for header in [row.block, last] {
        let sector = &mut disk[header..header + row.header_size as usize];
        sector[88..92].copy_from_slice(&crc.to_le_bytes());
        sector[16..20].fill(0);
        let crc = crc32(sector);
        sector[16..20].copy_from_slice(&crc.to_le_bytes());
    }
    disk
}

fn edit_ours(image: &Path, block: u32) -> EntrySpec {
    let mut disk = DiskDev::open(image, Some(block)).unwrap();
    let old = read_table_image(&disk).unwrap();
    let table = parse_table(&old).unwrap();
    let put = merged_spec(&table, PartNo(4), &[PartNo(3)], MergeMode::Recreate).unwrap();
    let change = TableEdit {
        remove: vec![PartNo(3), PartNo(4)],
        put: put.clone(),
        relocate_backup: false,
    };
    let new = edit(&old, &change).unwrap();
    let first = (table.primary_array.last.0 + 1).next_multiple_of(8);
    let shadow = Extent {
        first: Lba(first),
        last: Lba(first + table.primary_array.blocks() - 1),
    };
    let change = TableChange::new(old, new, shadow).unwrap();
    apply_table(&change, &mut disk).unwrap();
    put
}

/// Offsets of the bytes that differ between two images, in runs.
fn runs(a: &[u8], b: &[u8]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for at in (0..a.len()).filter(|at| a[*at] != b[*at]) {
        match runs.last_mut() {
            Some((_, end)) if at <= *end + 8 => *end = at,
            _ => runs.push((at, at)),
        }
    }
    runs
}
