//! On genuine labels (made by `ztest`, see the fixtures of repave-survey) and a model
//! disk that remembers every write. `S1` and so on are the disk states of the tests'
//! list of cases: S1 a plain clear, S2 tail labels only, S3 an odd size, S4 spare and
//! cache devices, S5 another pool, S9 a cut after the clear.

mod cuts;
mod hand;
mod requests;
mod tools;

use std::io::Read as _;

use repave_survey::labels::{LABEL_SIZE, label_places, read_labels};

use super::*;
use crate::model_disk::{ModelDisk, Op};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Sizes of the fixtures' devices in bytes.
const SOLO_SIZE: u64 = 128 * MIB;
const AUX_SIZE: u64 = 160 * MIB;
/// What `zdb -l` says of them.
const SOLO: PoolGuid = PoolGuid(11653465990387255776);
const SPARE: VdevGuid = VdevGuid(12487304203683739613);
const CACHE: VdevGuid = VdevGuid(5302068312520739604);

fn fixture(name: &str) -> (u64, Vec<u8>) {
    macro_rules! packed {
        ($name:literal) => {
            &include_bytes!(concat!(
                "../../../survey/src/labels/fixtures/",
                $name,
                ".gz"
            ))[..]
        };
    }
    let (size, packed) = match name {
        "solo" => (SOLO_SIZE, packed!("solo")),
        "spare" => (AUX_SIZE, packed!("spare")),
        "cache" => (AUX_SIZE, packed!("cache")),
        other => panic!("{other}"),
    };
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed)
        .read_to_end(&mut bytes)
        .unwrap();
    (size, bytes)
}

/// Puts a fixture's labels on a disk, as those of a vdev that starts there, and says
/// where that vdev is.
fn put(disk: &mut ModelDisk, name: &str, start: u64) -> Range<u64> {
    let (size, bytes) = fixture(name);
    let extent = start..start + size;
    for (index, offset) in label_places(&extent) {
        let label = &bytes[usize::from(index) * LABEL_SIZE as usize..][..LABEL_SIZE as usize];
        disk.set(offset, label);
        // The pads in front of a label's configuration are never to be written.
        disk.set(offset + 8 * KIB - 5, b"pads!");
    }
    disk.set(extent.start + 4 * MIB, &bytes[4 * LABEL_SIZE as usize..]);
    extent
}

/// A disk of 512-byte blocks whose bytes around label places are not zero.
fn disk(len: u64) -> ModelDisk {
    ModelDisk::new(512, len / 512)
}

fn request(extents: &[Range<u64>]) -> ClearRequest {
    ClearRequest {
        extents: extents.to_vec(),
        pools: vec![SOLO],
        vdevs: vec![],
        kept: vec![],
        forbidden: vec![],
        signatures: vec![],
    }
}

fn signed(offset: u64, magic: &[u8]) -> Signature {
    Signature {
        kind: "ext4".to_owned(),
        offset,
        magic: magic.to_vec(),
    }
}

fn one(extent: &Range<u64>) -> ClearRequest {
    request(std::slice::from_ref(extent))
}

fn bytes(disk: &ModelDisk, range: Range<u64>) -> Vec<u8> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    disk.read_at(range.start, &mut bytes).unwrap();
    bytes
}

/// The disk as it is wanted: as before, with zeros in these ranges.
fn with_zeros(before: &ModelDisk, ranges: &[Range<u64>]) -> ModelDisk {
    let mut wanted = before.clone();
    for range in ranges {
        wanted.set(range.start, &vec![0; (range.end - range.start) as usize]);
    }
    wanted
}

fn cleared_part(offset: u64) -> Range<u64> {
    offset + 16 * KIB..offset + 256 * KIB
}

fn cleared_parts(extent: &Range<u64>) -> Vec<Range<u64>> {
    label_places(extent)
        .into_iter()
        .map(|(_, offset)| cleared_part(offset))
        .collect()
}

/// Runs the step and compares every byte of the disk; then runs it again.
fn assert_clears(mut disk: ModelDisk, request: &ClearRequest, zeros: &[Range<u64>]) -> ModelDisk {
    let wanted = with_zeros(&disk, zeros);
    assert_eq!(state(&disk, request).unwrap(), StepState::Before);
    assert_eq!(apply(&mut disk, request).unwrap(), Outcome::Changed);
    assert!(disk == wanted, "other bytes than the wanted ones changed");
    assert_eq!(disk.ops().last(), Some(&Op::Flush));
    assert_done(&mut disk, request);
    assert!(disk == wanted);
    disk
}

fn assert_done(disk: &mut ModelDisk, request: &ClearRequest) {
    disk.forget();
    prove(disk, request).unwrap();
    assert_eq!(disk.ops(), [Op::Flush], "a proof flushes before it reads");
    assert_eq!(state(disk, request).unwrap(), StepState::After);
    disk.forget();
    assert_eq!(apply(disk, request).unwrap(), Outcome::AlreadyDone);
    assert_eq!(disk.ops(), []);
}

/// The step must not be applied, and does not touch the disk when it is.
fn assert_foreign(mut disk: ModelDisk, request: &ClearRequest, wanted: &str) {
    let StepState::Neither { found } = state(&disk, request).unwrap() else {
        panic!("not seen: {wanted}");
    };
    assert!(found.contains(wanted), "{found}");
    let error = apply(&mut disk, request).unwrap_err();
    assert!(matches!(error, ClearError::Foreign { .. }), "{error}");
    assert_eq!(disk.ops(), []);
    assert_left(&mut disk, request, wanted);
}

fn assert_left(disk: &mut ModelDisk, request: &ClearRequest, wanted: &str) {
    let ClearError::Left { found } = prove(disk, request).unwrap_err() else {
        panic!("not seen: {wanted}");
    };
    assert!(found.contains(wanted), "{found}");
}

#[test]
fn a_proof_names_what_is_left() {
    let mut left = disk(SOLO_SIZE);
    let pool = put(&mut left, "solo", 0);
    let request = one(&pool);
    for (index, offset) in label_places(&pool) {
        let wanted = format!("label {index} at byte {offset}: pool \"solo\", guid {SOLO}, active");
        assert_left(&mut left, &request, &wanted);
        left.set(cleared_part(offset).start, &[0; 112 << 10]);
        let wanted = format!("what is left of label {index} at byte {offset}: 32 uberblocks");
        assert_left(&mut left, &request, &wanted);
        left.set(offset + 128 * KIB, &[0; 128 << 10]);
    }
    prove(&mut left, &request).unwrap();
    left.fail_after(0);
    assert!(matches!(
        prove(&mut left, &request),
        Err(ClearError::Flush(_))
    ));
}

#[test]
fn s1_four_labels_of_the_pool_are_cleared_and_nothing_else() {
    let mut before = disk(400 * MIB);
    let dead = MIB..100 * MIB;
    let pool = put(&mut before, "solo", 100 * MIB);
    let request = request(&[dead.clone(), pool.clone(), dead.start..pool.end]);
    let after = assert_clears(before, &request, &cleared_parts(&pool));
    assert!(read_labels(&after, pool).unwrap().is_clear());
}

#[test]
fn s2_the_first_4_mib_stay_byte_for_byte_when_no_label_is_there() {
    let mut before = disk(130 * MIB);
    let pool = put(&mut before, "solo", 0);
    let noise: Vec<u8> = (0..4 * MIB)
        .map(|i| ((i * 2654435761) >> 13) as u8)
        .collect();
    before.set(0, &noise);
    let tail = cleared_parts(&pool)[2..].to_vec();
    let after = assert_clears(before, &one(&pool), &tail);
    assert_eq!(bytes(&after, 0..4 * MIB), noise);
}

#[test]
fn s3_the_tail_behind_the_last_whole_256_kib_is_not_written() {
    let mut before = disk(SOLO_SIZE + 100 * KIB);
    let pool = put(&mut before, "solo", 0);
    before.set(SOLO_SIZE, &vec![0xa5; 100 << 10]);
    let extent = 0..SOLO_SIZE + 100 * KIB;
    assert_clears(before, &one(&extent), &cleared_parts(&pool));
}

#[test]
fn s4_auxiliary_labels_go_by_their_own_guid_and_a_cache_header_with_its_label() {
    let header = 4 * MIB..4 * MIB + 512;
    for (name, guid, header) in [
        ("spare", SPARE, None),
        ("cache", CACHE, Some(header.clone())),
    ] {
        let mut before = disk(AUX_SIZE);
        let extent = put(&mut before, name, 0);
        if header.is_none() {
            // A header without a cache label is somebody's data.
            before.set(4 * MIB, b"EHCACSFZ");
        }
        let mut request = one(&extent);
        assert_foreign(before.clone(), &request, &guid.to_string());
        request.vdevs = vec![guid];
        let zeros = [cleared_parts(&extent), header.into_iter().collect()].concat();
        assert_clears(before, &request, &zeros);
    }
}

#[test]
fn s4_the_rest_of_a_block_of_4096_around_the_cache_header_stays() {
    let mut before = ModelDisk::new(4096, AUX_SIZE / 4096);
    let extent = put(&mut before, "cache", 0);
    before.set(4 * MIB + 512, &[0x77; 8192]);
    let mut request = one(&extent);
    request.vdevs = vec![CACHE];
    let mut zeros = cleared_parts(&extent);
    zeros.push(4 * MIB..4 * MIB + 512);
    assert_clears(before, &request, &zeros);
}

#[test]
fn s5_a_label_of_another_pool_stops_before_any_write() {
    let mut before = disk(300 * MIB);
    let pool = put(&mut before, "solo", 100 * MIB);
    let mut other = one(&pool);
    other.pools = vec![PoolGuid(1)];
    assert_foreign(
        before.clone(),
        &other,
        "pool \"solo\", guid 11653465990387255776, active",
    );
    // One foreign label among listed ones is enough.
    let spare = put(&mut before, "spare", 0);
    let both = request(&[pool, spare.start..100 * MIB]);
    assert_foreign(before, &both, "spare device 12487304203683739613");
}

#[test]
fn s9_nothing_there_is_done() {
    let mut clear = disk(SOLO_SIZE);
    clear.set(20 * KIB, &[1; 4096]);
    assert_done(&mut clear, &one(&(0..SOLO_SIZE)));
    // Too small for labels: no place, nothing to do.
    assert_done(&mut clear, &one(&(0..512 * KIB)));
}

#[test]
fn remnants_are_cleared_too() {
    for (what, zeros) in [
        (
            "wipefs 2.41: 16 bytes of each nvlist",
            16 * KIB..16 * KIB + 16,
        ),
        ("wipefs 2.38: uberblock magics", 128 * KIB..256 * KIB),
        ("the front of the ring", 16 * KIB..130 * KIB),
        ("all but the first sector", 16 * KIB + 512..256 * KIB),
    ] {
        let mut before = disk(SOLO_SIZE);
        let pool = put(&mut before, "solo", 0);
        for (_, offset) in label_places(&pool) {
            let bytes = vec![0; (zeros.end - zeros.start) as usize];
            before.set(offset + zeros.start, &bytes);
        }
        println!("{what}");
        assert_clears(before, &one(&pool), &cleared_parts(&pool));
    }
}

#[test]
fn a_damaged_label_still_goes_by_its_pool() {
    let mut before = disk(SOLO_SIZE);
    let pool = put(&mut before, "solo", 0);
    for (_, offset) in label_places(&pool) {
        before.set(offset + 16 * KIB + 512, &[0xee; 240 * 1024 - 512]);
    }
    let mut other = one(&pool);
    other.pools = vec![];
    assert_foreign(before.clone(), &other, "pool guid 11653465990387255776");
    assert_clears(before, &one(&pool), &cleared_parts(&pool));
}

/// The old labels that would come to sight on the new, larger partition.
#[test]
fn labels_of_earlier_layouts_go_before_the_table_changes() {
    let mut before = disk(400 * MIB);
    let pool = put(&mut before, "solo", 100 * MIB);
    for (what, new, surfacing) in [
        ("end grown", pool.start..pool.end + 64 * MIB, [0, 1]),
        ("front grown", 30 * MIB..pool.end, [2, 3]),
    ] {
        let seen = read_labels(&before, new.clone()).unwrap();
        assert_eq!(seen.labels().count(), 2, "{what}");
        // Clearing the new extent alone leaves what hides inside it.
        let part = surfacing.map(|index| cleared_parts(&pool)[index].clone());
        let after = assert_clears(before.clone(), &one(&new), &part);
        assert_eq!(
            read_labels(&after, pool.clone()).unwrap().labels().count(),
            2,
            "{what}"
        );
        let after = assert_clears(
            before.clone(),
            &request(&[pool.clone(), new]),
            &cleared_parts(&pool),
        );
        assert!(
            read_labels(&after, pool.clone()).unwrap().is_clear(),
            "{what}"
        );
    }
}

#[test]
fn a_whole_disk_ghost_is_cleared_around_both_copies_of_the_table() {
    let mut before = disk(SOLO_SIZE);
    put(&mut before, "solo", 0);
    let head = 0..34 * 512;
    let tail = SOLO_SIZE - 33 * 512..SOLO_SIZE;
    before.set(0, &vec![0x11; 34 * 512]);
    before.set(tail.start, &vec![0x22; 33 * 512]);
    let mut request = one(&(0..SOLO_SIZE));
    request.forbidden = vec![head.clone(), tail.clone()];
    let mut zeros = cleared_parts(&(0..SOLO_SIZE));
    zeros[0].start = head.end;
    zeros[3].end = tail.start;
    let after = assert_clears(before, &request, &zeros);
    assert_eq!(bytes(&after, head), vec![0x11; 34 * 512]);
    assert_eq!(bytes(&after, tail), vec![0x22; 33 * 512]);
}

#[test]
fn a_forbidden_range_covers_whole_blocks_and_can_hide_a_whole_label() {
    let mut before = ModelDisk::new(4096, SOLO_SIZE / 4096);
    let pool = put(&mut before, "solo", 0);
    let mut request = one(&pool);
    // The whole of label 0 and one byte of label 3's last block.
    request.forbidden = vec![0..256 * KIB, SOLO_SIZE - 1..SOLO_SIZE];
    let mut zeros = cleared_parts(&pool)[1..].to_vec();
    zeros[2].end = SOLO_SIZE - 4096;
    assert_clears(before, &request, &zeros);
}

#[test]
fn a_disk_that_fails_is_an_error_and_a_second_run_finishes() {
    let mut before = disk(SOLO_SIZE);
    let pool = put(&mut before, "solo", 0);
    let request = one(&pool);
    let wanted = with_zeros(&before, &cleared_parts(&pool));
    let mut uncut = before.clone();
    apply(&mut uncut, &request).unwrap();
    for failing in 0..uncut.ops().len() {
        let mut disk = before.clone();
        disk.fail_after(failing);
        assert!(apply(&mut disk, &request).is_err(), "op {failing}");
        let mut disk = ModelDisk::clone(&disk);
        disk.fail_after(usize::MAX / 2);
        apply(&mut disk, &request).unwrap();
        assert!(disk == wanted, "op {failing}");
    }
}
