//! What a request may ask for: a pool that stays, signatures, and nonsense.

use repave_plan::step::SignatureWipe;
use repave_plan::units::{Extent, Lba};

use super::*;

/// The disk of a growing pool: its partition, and a dead one behind it.
fn growing() -> (ModelDisk, Range<u64>, Range<u64>) {
    let mut before = disk(400 * MIB);
    let pool = put(&mut before, "solo", 10 * MIB);
    let dead = pool.end..pool.end + AUX_SIZE;
    (before, pool, dead)
}

#[test]
fn growing_keeps_the_pools_labels_and_clears_the_new_places() {
    let (mut before, pool, dead) = growing();
    put(&mut before, "spare", dead.start);
    let mut request = request(&[dead.clone(), pool.start..dead.end]);
    (request.pools, request.kept, request.vdevs) = (vec![], vec![SOLO], vec![SPARE]);
    request.forbidden = vec![pool.clone()];
    let after = assert_clears(before.clone(), &request, &cleared_parts(&dead));
    assert_eq!(
        read_labels(&after, pool.clone()).unwrap().labels().count(),
        4
    );
    // Even a request that forgot to forbid the extent writes no kept label.
    request.forbidden = vec![];
    let after = assert_clears(before.clone(), &request, &cleared_parts(&dead));
    assert_eq!(
        read_labels(&after, pool.clone()).unwrap().labels().count(),
        4
    );
    // Nor what is left of one beside a whole one.
    before.set(pool.start + 256 * KIB + 16 * KIB, &[0; 16]);
    assert_clears(before, &request, &cleared_parts(&dead));
}

#[test]
fn growing_writes_nothing_that_reaches_into_a_kept_label() {
    let (mut before, pool, _) = growing();
    // A place of another layout whose ring would be the kept label's first half.
    let odd = pool.start + 640 * KIB..pool.end - 256 * KIB;
    let mut request = request(&[pool.clone(), odd.clone()]);
    (request.pools, request.kept) = (vec![], vec![SOLO]);
    let ring = label_places(&odd)[3].1 + 128 * KIB;
    assert_eq!(ring, label_places(&pool)[2].1);
    before.set(ring, &0x00ba_b10c_u64.to_le_bytes());
    let wanted = label_places(&pool)[2].1;
    let mut after = before.clone();
    apply(&mut after, &request).unwrap();
    prove(&mut after, &request).unwrap();
    let label = wanted..wanted + 256 * KIB;
    assert!(bytes(&after, label.clone()) == bytes(&before, label));
    assert_eq!(read_labels(&after, pool).unwrap().labels().count(), 4);
}

#[test]
fn signatures_go_byte_for_byte_in_blocks_of_either_size() {
    for block in [512, 4096] {
        let mut before = ModelDisk::new(block, 64 * MIB / u64::from(block));
        before.set(MIB, &vec![0x99; 64 << 10]);
        before.set(MIB + 1080, &[0x53, 0xef]);
        before.set(MIB + 4086, b"SWAPSPACE2");
        let mut request = one(&(MIB..32 * MIB));
        request.signatures = vec![
            signed(MIB + 1080, &[0x53, 0xef]),
            signed(MIB + 4086, b"SWAPSPACE2"),
        ];
        let zeros = [MIB + 1080..MIB + 1082, MIB + 4086..MIB + 4096];
        let after = assert_clears(before, &request, &zeros);
        // One that is gone already, or became something else, stays as it is.
        let mut half = after.clone();
        half.set(MIB + 1080, &[0x53, 0xef]);
        assert_clears(half, &request, &zeros[..1]);
        let mut changed = after;
        changed.set(MIB + 1080, &[0x53, 0xee]);
        assert_done(&mut changed, &request);
    }
}

#[test]
fn a_signature_inside_a_label_goes_with_it() {
    let mut before = disk(SOLO_SIZE);
    let pool = put(&mut before, "solo", 0);
    let mut request = one(&pool);
    request.signatures = vec![signed(128 * KIB, &0x00ba_b10c_u64.to_le_bytes())];
    assert_clears(before, &request, &cleared_parts(&pool));
}

#[test]
fn requests_that_contradict_themselves_or_the_disk_are_refused() {
    let good = one(&(MIB..64 * MIB));
    let edit = |change: fn(&mut ClearRequest)| {
        let mut bad = good.clone();
        change(&mut bad);
        bad
    };
    for (wanted, bad) in [
        (
            "no extent of this disk",
            edit(|r| r.extents.push(MIB..SOLO_SIZE + 512)),
        ),
        (
            "no extent of this disk",
            edit(|r| r.extents.push(Range { start: 5, end: 5 })),
        ),
        (
            "not whole blocks of 512",
            edit(|r| r.extents.push(100..MIB)),
        ),
        (
            "not whole blocks of 512",
            edit(|r| r.extents.push(0..MIB + 1)),
        ),
        ("to be erased and to be kept", edit(|r| r.kept.push(SOLO))),
        (
            "is in no extent",
            edit(|r| r.signatures.push(signed(64 * MIB - 1, &[1, 2]))),
        ),
        (
            "is in no extent",
            edit(|r| r.signatures.push(signed(u64::MAX, &[1, 2]))),
        ),
        (
            "must not be written",
            edit(|r| {
                r.forbidden.push(2 * MIB..2 * MIB + 1);
                r.signatures.push(signed(2 * MIB + 510, &[1, 2]));
            }),
        ),
    ] {
        let mut disk = disk(SOLO_SIZE);
        let error = apply(&mut disk, &bad).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
        assert!(state(&disk, &bad).is_err());
        assert_eq!(disk.ops(), []);
    }
}

#[test]
fn a_planned_step_becomes_a_request_in_bytes() {
    let step = LabelClear {
        extents: vec![Extent {
            first: Lba(256),
            last: Lba(511),
        }],
        pool_guids: vec![SOLO],
        vdev_guids: vec![SPARE],
        kept_pool_guids: vec![PoolGuid(9)],
        signatures: vec![SignatureWipe {
            kind: "ext4".to_owned(),
            offset: MIB + 1080,
            magic: "53eF".to_owned(),
        }],
    };
    let head = 0..34 * 512;
    let got = ClearRequest::of(&step, BlockSize(4096), vec![head.clone()]).unwrap();
    let wanted = ClearRequest {
        extents: std::iter::once(MIB..2 * MIB).collect(),
        pools: vec![SOLO],
        vdevs: vec![SPARE],
        kept: vec![PoolGuid(9)],
        forbidden: vec![head],
        signatures: vec![signed(MIB + 1080, &[0x53, 0xef])],
    };
    assert_eq!(got, wanted);
    for magic in ["", "5", "53e", "5g", "\u{e9}"] {
        let mut bad = step.clone();
        bad.signatures[0].magic = magic.to_owned();
        let error = ClearRequest::of(&bad, BlockSize(512), vec![]).unwrap_err();
        assert!(matches!(error, ClearError::Request { .. }), "{magic:?}");
    }
}
