//! Edits, relocation and the properties that must hold for all of them.

use proptest::prelude::*;

use crate::units::Guid;

use super::*;

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
