//! Changes and images written and read back, and other programs' forms of them.

use crate::units::Digest;

use super::*;

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
