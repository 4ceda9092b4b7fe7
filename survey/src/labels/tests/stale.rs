//! Labels of earlier layouts: where they come to sight, and that they are found.

use super::*;

fn names(found: &[StaleLabel]) -> Vec<(u64, u8, Range<u64>)> {
    let name = |label: &StaleLabel| (label.place.offset, label.place.index, label.extent.clone());
    found.iter().map(name).collect()
}

#[test]
fn stale_labels_of_other_layouts_are_found_and_named() {
    let (start, end) = (100 * MIB, 100 * MIB + SOLO.size);
    let disk_len = end + 64 * MIB + 17 * KIB;
    let disk = disk_with_pool(start, disk_len);
    let pool = start..end;
    let all = [
        (start, 0, pool.clone()),
        (start + 256 * KIB, 1, pool.clone()),
        (end - 512 * KIB, 2, pool.clone()),
        (end - 256 * KIB, 3, pool.clone()),
    ];
    // Grown at the end: the old front labels come to sight on the new partition.
    let set = read_labels(&disk, start..end + 64 * MIB).unwrap();
    assert_eq!(set.labels().count(), 2);
    assert_eq!(
        set.places
            .iter()
            .filter(|p| p.verdict == Verdict::Clear)
            .count(),
        2
    );
    // Grown at the front: the old tail labels do, and the checksum tells.
    let set = read_labels(&disk, 30 * MIB..end).unwrap();
    assert_eq!(
        set.labels()
            .map(|info| info.checksum_ok)
            .collect::<Vec<_>>(),
        [false, false]
    );
    // All four are found, each with the extent it was written for.
    let starts = [MIB, 30 * MIB, start];
    let ends = [30 * MIB, start, end, end + 64 * MIB];
    let found = scan_stale(&disk, 0..disk_len, &starts, &ends).unwrap();
    assert_eq!(names(&found), all);
    for label in &found {
        let Verdict::Label(info) = &label.place.verdict else {
            panic!("{label:?}");
        };
        assert_eq!(info.pool_name.as_deref(), Some("solo"));
    }
    // Only inside the range; and only where a start or an end leads.
    let front = scan_stale(&disk, start..start + MIB, &starts, &ends).unwrap();
    assert_eq!(names(&front), all[..2]);
    let without = scan_stale(&disk, 0..disk_len, &[MIB], &[start]).unwrap();
    assert_eq!(names(&without), []);
    // The end alone leads to the tail: the checksum then fits none of the extents.
    let tail = scan_stale(&disk, 0..disk_len, &[MIB], &[end]).unwrap();
    let index: Vec<_> = tail.iter().map(|label| label.place.index).collect();
    assert_eq!(index, [2, 3]);
}

#[test]
fn a_whole_disk_ghost_under_a_table_is_found() {
    let mut disk = disk_with_pool(0, SOLO.size);
    // The table's last entries lie on the first label's nvlist.
    disk.put(512, &[0; 33 * 512]);
    let found = scan_stale(&disk, 0..SOLO.size, &[MIB], &[SOLO.size - MIB]).unwrap();
    let kinds: Vec<_> = found
        .iter()
        .map(|label| {
            (
                label.place.index,
                matches!(label.place.verdict, Verdict::Label(_)),
            )
        })
        .collect();
    assert_eq!(kinds, [(0, false), (1, true), (2, true), (3, true)]);
    assert!(found.iter().all(|label| label.extent == (0..SOLO.size)));
    // A start in the middle of a label sees its ring, and is not told as a second thing.
    let odd = scan_stale(&disk, 0..SOLO.size, &[100 * KIB], &[SOLO.size - 96 * KIB]).unwrap();
    assert_eq!(odd, found);
    // Without a sealed label there, it is all there is to be told of.
    let mut unsealed = SparseDisk::new(SOLO.size);
    unsealed.put(
        100 * KIB + RING_START as u64,
        &0x00ba_b10c_u64.to_le_bytes(),
    );
    let odd = scan_stale(&unsealed, 0..SOLO.size, &[100 * KIB], &[SOLO.size]).unwrap();
    let both = [(0, 0, 0..SOLO.size), (100 * KIB, 0, 100 * KIB..SOLO.size)];
    assert_eq!(names(&odd), both);
    let starts: Vec<u64> = (0..100).map(|i| i * MIB).collect();
    let ends: Vec<u64> = (0..100).map(|i| 101 * MIB + i * 256 * KIB).collect();
    assert!(scan_stale(&disk, 0..SOLO.size, &starts, &ends).is_ok());
    let starts: Vec<u64> = (0..3000).map(|i| i * 512).collect();
    let error = scan_stale(&disk, 0..SOLO.size, &starts, &ends).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}
