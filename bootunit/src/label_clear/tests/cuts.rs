//! Every moment at which the power can go while labels are cleared: after each flush,
//! and between two flushes every choice of the writes that reached the disk, torn at
//! the block size. From each of them the second run ends with the uncut run's bytes.

use super::*;

/// Torn states per choice of writes, besides the whole ones.
const TORN: usize = 2;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// The writes between flushes, in order.
fn epochs(ops: &[Op]) -> Vec<Vec<(u64, Vec<u8>)>> {
    let mut epochs = vec![vec![]];
    for op in ops {
        match op {
            Op::Flush => epochs.push(vec![]),
            Op::Write { offset, bytes } => {
                epochs.last_mut().unwrap().push((*offset, bytes.clone()));
            }
        }
    }
    assert_eq!(
        epochs.pop(),
        Some(vec![]),
        "the last flush is behind the last write"
    );
    epochs
}

fn resume_everywhere(before: &ModelDisk, request: &ClearRequest) -> usize {
    let mut uncut = before.clone();
    uncut.forget();
    apply(&mut uncut, request).unwrap();
    let block = before.block() as usize;
    let mut random = Random(0x51ee_d0f5);
    println!("seed {:#x}", random.0);
    let (mut base, mut states) = (before.clone(), 0);
    for writes in epochs(uncut.ops()) {
        assert!(
            writes.len() <= 12,
            "{} writes are too many to try every choice",
            writes.len()
        );
        for choice in 0..1u32 << writes.len() {
            for torn in 0..=TORN {
                let mut cut = base.clone();
                for (index, (offset, bytes)) in writes.iter().enumerate() {
                    if choice & (1 << index) == 0 {
                        continue;
                    }
                    for (number, part) in bytes.chunks(block).enumerate() {
                        if torn == 0 || random.next().is_multiple_of(2) {
                            cut.set(offset + (number * block) as u64, part);
                        }
                    }
                }
                assert_resumes(cut, request, &uncut);
                states += 1;
            }
        }
        for (offset, bytes) in &writes {
            base.set(*offset, bytes);
        }
    }
    states
}

fn assert_resumes(mut cut: ModelDisk, request: &ClearRequest, uncut: &ModelDisk) {
    match state(&cut, request).unwrap() {
        StepState::Before => assert_eq!(apply(&mut cut, request).unwrap(), Outcome::Changed),
        StepState::After => {}
        StepState::Neither { found } => panic!("{found}"),
    }
    assert!(cut == *uncut, "a cut ends with other bytes");
    prove(&mut cut, request).unwrap();
}

#[test]
fn every_cut_resumes_to_the_same_bytes() {
    for block in [512, 4096] {
        let mut before = ModelDisk::new(block, 300 * MIB / u64::from(block));
        let pool = put(&mut before, "solo", 100 * MIB);
        before.set(2 * MIB + 1080, &[0x53, 0xef]);
        let mut all = request(&[2 * MIB..100 * MIB, pool.clone(), 2 * MIB..pool.end]);
        all.signatures = vec![signed(2 * MIB + 1080, &[0x53, 0xef])];
        let states = resume_everywhere(&before, &all);
        // 5 writes before the first flush, 4 behind it.
        assert_eq!(states, (32 + 16) * (TORN + 1));
    }
}

#[test]
fn every_cut_of_a_cache_device_and_of_remnants_resumes() {
    let mut before = disk(AUX_SIZE);
    let extent = put(&mut before, "cache", 0);
    let mut cache = one(&extent);
    cache.vdevs = vec![CACHE];
    assert_eq!(resume_everywhere(&before, &cache), (32 + 16) * (TORN + 1));

    let mut before = disk(SOLO_SIZE);
    let pool = put(&mut before, "solo", 0);
    let mut remnants = one(&pool);
    for (index, offset) in label_places(&pool) {
        before.set(offset + 16 * KIB, &[0; 16]);
        // The slots that are left: all; some; the first, whose magic is also listed.
        let gone = [0..0, 0..10, 1..32, 0..31][usize::from(index)].clone();
        for slot in gone {
            before.set(offset + 128 * KIB + slot * 4096, &[0; 8]);
        }
        if index == 2 {
            let magic = 0x00ba_b10c_u64.to_le_bytes();
            remnants.signatures = vec![signed(offset + 128 * KIB, &magic)];
        }
    }
    assert!(resume_everywhere(&before, &remnants) > 0);
}

#[test]
fn every_cut_of_a_ghost_under_a_table_resumes() {
    let mut before = disk(SOLO_SIZE);
    put(&mut before, "solo", 0);
    before.set(0, &vec![0x11; 34 * 512]);
    before.set(SOLO_SIZE - 33 * 512, &vec![0x22; 33 * 512]);
    let mut ghost = one(&(0..SOLO_SIZE));
    ghost.forbidden = vec![0..34 * 512, SOLO_SIZE - 33 * 512..SOLO_SIZE];
    assert!(resume_everywhere(&before, &ghost) > 0);
}
