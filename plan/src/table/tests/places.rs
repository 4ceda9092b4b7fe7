//! Where the merged partition and the shadow array go.

use crate::units::Guid;

use super::*;

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
