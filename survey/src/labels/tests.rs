//! Against genuine labels and what `zdb -l` says of them, and against what is left of
//! labels after cuts, moves and other people's writes.

mod stale;

use super::fixtures::{CACHE, DRAID, Fixture, MIRROR, SOLO, SPARE, SparseDisk, seal, set_number};
use super::info::{CONFIG_START, ParsedLabel, RING_START};
use super::nvlist::Endian;
use super::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn parsed_info(parsed: &ParsedLabel) -> &LabelInfo {
    match &parsed.verdict {
        Verdict::Label(info) => info,
        other => panic!("{other:?}"),
    }
}

/// What `zdb -l` printed, as far as a label's facts go. Its indent tells the levels.
fn facts_of_zdb(text: &str) -> Vec<String> {
    let wanted = |line: &str| {
        let (key, _) = line.trim().split_once(": ").unwrap_or((line.trim(), ""));
        match line.len() - line.trim_start().len() {
            4 => [
                "name",
                "state",
                "txg",
                "pool_guid",
                "hostname",
                "top_guid",
                "guid",
                "vdev_children",
            ]
            .contains(&key),
            8 => {
                key == "type"
                    || key == "ashift"
                    || key.starts_with("com.")
                    || key.starts_with("org.")
            }
            _ => key == "path",
        }
    };
    text.lines()
        .filter(|line| wanted(line))
        .map(|line| line.trim().to_owned())
        .collect()
}

/// The same facts in the order and the form of `zdb -l`.
fn facts_of_label(info: &LabelInfo) -> Vec<String> {
    let mut facts = Vec::new();
    let mut push = |key: &str, value: Option<String>| {
        facts.extend(value.map(|value| format!("{key}: {value}")));
    };
    let quoted = |text: &String| format!("'{text}'");
    let state = |state| match state {
        LabelState::Active => 0,
        LabelState::Exported => 1,
        LabelState::Destroyed => 2,
        LabelState::Spare => 3,
        LabelState::L2cache => 4,
    };
    push("name", info.pool_name.as_ref().map(quoted));
    push("state", Some(state(info.state).to_string()));
    push("txg", info.txg.map(|v| v.to_string()));
    push("pool_guid", info.pool_guid.map(|v| v.to_string()));
    push("hostname", info.hostname.as_ref().map(quoted));
    push("top_guid", info.top_guid.map(|v| v.to_string()));
    push("guid", Some(info.vdev_guid.to_string()));
    push("vdev_children", info.vdev_children.map(|v| v.to_string()));
    if let Some(tree) = &info.tree {
        push("type", Some(quoted(&tree.kind)));
        push("ashift", info.ashift.map(|v| v.to_string()));
        for leaf in &tree.leaves {
            push("path", leaf.path.as_ref().map(quoted));
        }
    }
    facts.extend(info.features_for_read.iter().cloned());
    facts
}

#[test]
fn genuine_labels_read_as_zdb_reads_them() {
    // Uberblocks and newest txg: `zdb -lu`. An auxiliary device has one, of txg 0.
    for (fixture, leaves, uberblocks, newest) in [
        (SOLO, 1, 32, 434),
        (MIRROR, 2, 127, 284),
        (DRAID, 16, 32, 226),
        (SPARE, 0, 1, 0),
        (CACHE, 0, 1, 0),
    ] {
        let name = fixture.name;
        let mut disk = SparseDisk::new(fixture.size + 3 * MIB);
        fixture.put(&mut disk, MIB);
        let set = read_labels(&disk, MIB..MIB + fixture.size).unwrap();
        assert_eq!(set.labels().count(), 4, "{name}");
        assert_eq!(set.l2arc_header, name == "cache");
        for place in &set.places {
            let Verdict::Label(info) = &place.verdict else {
                panic!("{name}: {place:?}");
            };
            assert_eq!(facts_of_label(info), facts_of_zdb(fixture.zdb), "{name}");
            assert!(info.checksum_ok, "{name} label {}", place.index);
            assert_eq!(info.endian, Endian::Little);
            assert_eq!(
                info.tree.as_ref().map_or(0, |tree| tree.leaves.len()),
                leaves,
                "{name}"
            );
            assert_eq!(place.uberblocks, uberblocks, "{name}");
            let ring = place.newest.as_ref().unwrap();
            assert_eq!(ring.txg, newest, "{name}");
            // ZFS does not seal the one uberblock of an auxiliary device.
            assert_eq!(ring.checksum_ok, newest != 0, "{name}");
        }
        let offsets: Vec<u64> = set.places.iter().map(|place| place.offset).collect();
        let end = MIB + fixture.size;
        assert_eq!(
            offsets,
            [MIB, MIB + 256 * KIB, end - 512 * KIB, end - 256 * KIB],
            "{name}"
        );
    }
}

#[test]
fn places_come_from_the_size_rounded_down_to_256_kib() {
    let mut disk = SparseDisk::new(SOLO.size + 100 * KIB);
    SOLO.put(&mut disk, 0);
    let set = read_labels(&disk, 0..SOLO.size + 100 * KIB).unwrap();
    assert_eq!(set.labels().filter(|info| info.checksum_ok).count(), 4);
    // A quarter more and the last two places are others.
    let mut disk = SparseDisk::new(SOLO.size + 256 * KIB);
    SOLO.put(&mut disk, 0);
    let set = read_labels(&disk, 0..SOLO.size + 256 * KIB).unwrap();
    let found: Vec<_> = set
        .places
        .iter()
        .map(|p| matches!(p.verdict, Verdict::Label(_)))
        .collect();
    // The old L3 stands where L2 now is.
    assert_eq!(found, [true, true, true, false]);
    let moved = parse_label(&SOLO.label(3), SOLO.size);
    assert!(!parsed_info(&moved).checksum_ok);

    for (size, count) in [(0, 0), (MIB - 1, 0), (MIB, 4), (MIB + 1, 4)] {
        assert_eq!(label_places(&(0..size)).len(), count, "{size} bytes");
    }
    for bad in [0..SOLO.size + 256 * KIB + 1, Range { start: 2, end: 1 }] {
        let error = read_labels(&disk, bad.clone()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{bad:?}");
    }
}

#[test]
fn a_label_needs_a_guid_and_a_state_of_at_most_4_but_no_txg_and_no_checksum() {
    let edited = |name: &str, value| {
        let mut label = SOLO.label(0);
        set_number(&mut label, name, value, 0);
        parse_label(&label, 0)
    };
    for (number, state) in [
        (0, LabelState::Active),
        (1, LabelState::Exported),
        (2, LabelState::Destroyed),
        (3, LabelState::Spare),
        (4, LabelState::L2cache),
    ] {
        assert_eq!(parsed_info(&edited("state", number)).state, state);
    }
    assert_eq!(parsed_info(&edited("txg", 0)).txg, Some(0));
    for (name, value) in [("state", 5), ("state", u64::MAX), ("guid", 0)] {
        let parsed = edited(name, value);
        assert!(
            matches!(parsed.verdict, Verdict::Remnant(_)),
            "{name} {value}: {parsed:?}"
        );
        assert_eq!(parsed.ring.count, 32);
    }
    let moved = parse_label(&SOLO.label(0), 256 * KIB);
    assert!(!parsed_info(&moved).checksum_ok);
    let mut flipped = SOLO.label(0);
    flipped[RING_START - 50] ^= 1;
    assert!(!parsed_info(&parse_label(&flipped, 0)).checksum_ok);
}

#[test]
fn a_big_endian_writer_is_told_by_header_checksum_and_ring() {
    let mut label = SOLO.label(2);
    let on_vdev = SOLO.size - 512 * KIB;
    label[CONFIG_START + 1] = 0;
    seal(
        &mut label[CONFIG_START..RING_START],
        on_vdev + CONFIG_START as u64,
        Endian::Big,
    );
    for slot in label[RING_START..].chunks_exact_mut(4096) {
        for word in slot[..40].chunks_exact_mut(8) {
            word.reverse();
        }
    }
    let at = on_vdev + RING_START as u64;
    let ring = &mut label[RING_START..];
    let newest = (0..32)
        .max_by_key(|i| ring[i * 4096 + 16..][..8].to_vec())
        .unwrap();
    seal(
        &mut ring[newest * 4096..][..4096],
        at + newest as u64 * 4096,
        Endian::Big,
    );
    let parsed = parse_label(&label, on_vdev);
    let info = parsed_info(&parsed);
    assert_eq!((info.endian, info.checksum_ok), (Endian::Big, true));
    let newest = parsed.ring.newest.unwrap();
    assert_eq!(
        (newest.txg, newest.endian, newest.checksum_ok),
        (434, Endian::Big, true)
    );
}

#[test]
fn what_is_left_of_a_label_is_a_remnant_until_nothing_is_left() {
    let pool: PoolGuid = "11653465990387255776".parse().unwrap();
    let zeroed = |range: Range<usize>| {
        let mut label = SOLO.label(0);
        label[range].fill(0);
        parse_label(&label, 0)
    };
    let remnant = |parsed: &ParsedLabel| match &parsed.verdict {
        Verdict::Remnant(remnant) => (remnant.pool_guid, parsed.ring.count, parsed.anchor),
        other => panic!("{other:?}"),
    };
    let size = LABEL_SIZE as usize;
    // util-linux 2.41's wipefs: 16 bytes of the nvlist.
    let wiped = zeroed(CONFIG_START..CONFIG_START + 16);
    assert_eq!(remnant(&wiped), (None, 32, Some(RING_START)));
    // Its slots are of 4 KiB, which nothing says any more.
    assert!(wiped.ring.newest.as_ref().unwrap().checksum_ok);
    // A cut between clearing the body and the first sector: zeros end a list.
    let cut = zeroed(CONFIG_START + 512..size);
    assert_eq!(parsed_info(&cut).pool_guid, Some(pool));
    // A list that runs into foreign bytes instead of zeros.
    let mut torn = SOLO.label(0);
    torn[CONFIG_START + 512..].fill(0xee);
    let torn = parse_label(&torn, 0);
    assert_eq!(remnant(&torn), (Some(pool), 0, Some(CONFIG_START)));
    // The slots in front are gone.
    let late = zeroed(CONFIG_START..RING_START + 3 * 4096 + 1);
    assert_eq!(remnant(&late), (None, 28, Some(RING_START + 4 * 4096)));
    // util-linux 2.38's wipefs leaves the nvlist: still a label.
    assert_eq!(parsed_info(&zeroed(RING_START..size)).pool_guid, Some(pool));
    assert_eq!(zeroed(CONFIG_START..size).verdict, Verdict::Clear);
    // Bytes that look like a header are no label and no remnant.
    let mut stray = vec![0; size];
    stray[CONFIG_START..CONFIG_START + 4].copy_from_slice(&[1, 0, 0, 0]);
    assert_eq!(parse_label(&stray, 0).verdict, Verdict::Clear);
    assert_eq!(parse_label(&stray[..300], 0).verdict, Verdict::Clear);
    // Nor when what follows is no list.
    stray[CONFIG_START + 7] = 9;
    assert_eq!(parse_label(&stray, 0).verdict, Verdict::Clear);
}

/// Disk of the cases: root, a dead partition, the pool behind it.
fn disk_with_pool(start: u64, len: u64) -> SparseDisk {
    let mut disk = SparseDisk::new(len);
    SOLO.put(&mut disk, start);
    disk
}

#[test]
fn twenty_thousand_mutated_labels_are_told_without_a_panic() {
    let mut seed: u64 = 0x005e_ed1a_be15;
    println!("seed {seed:#x}");
    let mut random = move || {
        // xorshift64
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let (mut labels, mut remnants) = (0, 0);
    for fixture in [SOLO, MIRROR, DRAID, SPARE, CACHE] {
        let genuine = fixture.label(0);
        // Most of the configuration is zeros: aim at what is not.
        let used = (CONFIG_START..RING_START - 40)
            .rfind(|at| genuine[*at] != 0)
            .unwrap()
            + 1;
        for _ in 0..4_000 {
            let mut label = genuine.clone();
            for _ in 0..1 + random() % 4 {
                let at = CONFIG_START + random() as usize % (used - CONFIG_START);
                label[at] = match random() % 4 {
                    0 => 0xff,
                    1 => 0,
                    2 => label[at] ^ (1 << (random() % 8)),
                    _ => random() as u8,
                };
            }
            match parse_label(&label, 0).verdict {
                Verdict::Label(info) => {
                    assert_ne!(info.vdev_guid.0, 0);
                    assert!(!info.checksum_ok || label == genuine);
                    labels += 1;
                }
                Verdict::Remnant(_) => remnants += 1,
                Verdict::Clear => panic!("the ring is whole"),
            }
        }
    }
    assert_eq!(labels + remnants, 20_000);
    assert!(
        labels > 1_000 && remnants > 1_000,
        "{labels} labels, {remnants} remnants"
    );
}

#[test]
fn a_label_set_round_trips_through_json_and_refuses_unknown_fields() {
    let mut disk = SparseDisk::new(MIRROR.size);
    MIRROR.put(&mut disk, 0);
    disk.put(CONFIG_START as u64, &[0; 16]);
    disk.put(256 * KIB, &[0; 256 << 10]);
    let set = read_labels(&disk, 0..MIRROR.size).unwrap();
    let json = serde_json::to_value(&set).unwrap();
    assert_eq!(json["places"][0]["verdict"]["is"], "remnant");
    assert_eq!(json["places"][1]["verdict"]["is"], "clear");
    assert_eq!(
        json["places"][2]["verdict"]["pool_guid"],
        "16980057469459331999"
    );
    assert_eq!(
        serde_json::from_value::<LabelSet>(json.clone()).unwrap(),
        set
    );
    for path in ["", "/places/0", "/places/0/verdict", "/places/2/verdict"] {
        let mut copy = json.clone();
        copy.pointer_mut(path).unwrap()["surprise"] = 1.into();
        assert!(
            serde_json::from_value::<LabelSet>(copy).is_err(),
            "{path:?}"
        );
    }
}

#[test]
fn the_table_shows_places_devices_and_remarks() {
    let mut disk = SparseDisk::new(MIRROR.size);
    MIRROR.put(&mut disk, 0);
    disk.put(CONFIG_START as u64, &[0; 16]);
    disk.put(256 * KIB, &[0; 256 << 10]);
    let mut unsealed = MIRROR.label(2);
    let name = unsealed.windows(4).position(|w| w == b"mirr").unwrap();
    unsealed[name] = 0x1b;
    disk.put(MIRROR.size - 512 * KIB, &unsealed);
    let set = read_labels(&disk, 0..MIRROR.size).unwrap();
    let wanted = "\
LABEL  OFFSET     IS       POOL  POOL GUID             VDEV GUID            STATE   TXG
0      0          remnant  -     -                     -                    -       -
1      262144     clear    -     -                     -                    -       -
2      133693440  label    ?irr  16980057469459331999  8496674305079402748  active  284
3      133955584  label    mirr  16980057469459331999  8496674305079402748  active  284
mirror of 2 devices:
  file 8496674305079402748 /tmp/labels-lab/z2/mirr.0a
  file 2230392479710720175 /tmp/labels-lab/z2/mirr.1a
label 0: 127 uberblocks left; no XDR nvlist header
label 2: its checksum is not that of this place
";
    assert_eq!(render(&set), wanted);
    assert_eq!(
        render(&read_labels(&disk, 0..MIB - 1).unwrap()),
        "1048575 bytes: too small for ZFS labels\n"
    );
}

#[test]
fn pool_guids_are_named_once_each_and_clear_is_clear() {
    let mut disk = disk_with_pool(0, SOLO.size);
    let set = |disk: &SparseDisk| read_labels(disk, 0..SOLO.size).unwrap();
    assert_eq!(set(&disk).pool_guids(), [PoolGuid(11653465990387255776)]);
    assert!(!set(&disk).is_clear());
    let mut other = SOLO.label(1);
    set_number(&mut other, "pool_guid", 7, 256 * KIB);
    disk.put(256 * KIB, &other);
    disk.put(CONFIG_START as u64 + 512, &[0; 240 << 10][512..]);
    assert_eq!(
        set(&disk).pool_guids(),
        [PoolGuid(11653465990387255776), PoolGuid(7)]
    );
    for (_, offset) in label_places(&(0..SOLO.size)) {
        disk.put(offset, &[0; 256 << 10]);
    }
    assert!(set(&disk).is_clear());
    assert_eq!(set(&disk).pool_guids(), []);
}

#[test]
fn the_header_of_a_cache_device_needs_its_magic_and_its_room() {
    let mut disk = SparseDisk::new(CACHE.size);
    CACHE.put(&mut disk, 0);
    let header = |disk: &SparseDisk, end| read_labels(disk, 0..end).unwrap().l2arc_header;
    assert!(header(&disk, CACHE.size));
    assert!(header(&disk, L2ARC_HEADER + 512));
    assert!(!header(&disk, L2ARC_HEADER + 511));
    disk.put(L2ARC_HEADER, b"ZFSCACHE");
    assert!(header(&disk, CACHE.size));
    disk.put(L2ARC_HEADER, b"ZFSCACHF");
    assert!(!header(&disk, CACHE.size));
}

/// Keeps the fixtures honest: none is another under a new name.
#[test]
fn the_fixtures_are_five_devices() {
    let guid = |fixture: Fixture| parsed_info(&parse_label(&fixture.label(3), 0)).vdev_guid;
    let guids = [SOLO, MIRROR, DRAID, SPARE, CACHE].map(guid);
    for (index, guid) in guids.iter().enumerate() {
        assert!(!guids[..index].contains(guid));
    }
}
