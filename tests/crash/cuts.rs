//! Every disk that a power cut can leave behind.
//!
//! Takes a disk and what was done to it, gives the disks. Between two flushes the
//! medium may hold any subset of the blocks written, in any order; a block is whole,
//! old or new. Every subset is tried up to twelve blocks; above that all prefixes,
//! all suffixes, all single blocks and all but one, and a number drawn at random.

use std::collections::BTreeMap;

use repave_boot::model_disk::{ModelDisk, Op};
use repave_survey::block_io::BlockRead as _;

/// Up to so many blocks between two flushes every subset is tried.
const EXHAUSTIVE: usize = 12;

/// One moment.
#[derive(Debug, Clone)]
pub struct Cut {
    /// What the disk holds.
    pub disk: ModelDisk,
    /// Whether everything had been done and reported when the power went.
    pub returned: bool,
}

/// Draws subsets; the same seed draws the same.
#[derive(Debug, Clone)]
pub struct Sampling {
    state: u64,
    samples: usize,
}

impl Sampling {
    /// From this seed, so many subsets where not all are tried.
    pub fn new(seed: u64, samples: usize) -> Sampling {
        Sampling {
            state: seed,
            samples,
        }
    }

    /// SplitMix64 (Steele, Lea, Flood 2014): small and good enough to draw bits.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The blocks written since the last flush, each with its versions in order.
type Pending = BTreeMap<u64, Vec<Vec<u8>>>;

/// Visits every cut of these operations on this disk, from the moment on at which
/// `from` of them had been issued.
pub fn cuts(
    start: &ModelDisk,
    ops: &[Op],
    from: usize,
    sampling: &mut Sampling,
    visit: &mut dyn FnMut(Cut) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let block = u64::from(start.block());
    let mut durable = start.clone();
    let mut pending = Pending::new();
    for (at, op) in ops.iter().enumerate() {
        match op {
            Op::Write { offset, bytes } => {
                for (lba, bytes) in (offset / block..).zip(bytes.chunks(block as usize)) {
                    pending.entry(lba).or_default().push(bytes.to_vec());
                }
            }
            Op::Flush => {
                if at >= from {
                    subsets(&durable, &pending, block, sampling, false, visit)?;
                }
                for (lba, versions) in std::mem::take(&mut pending) {
                    if let Some(last) = versions.last() {
                        durable.set(lba * block, last);
                    }
                }
            }
        }
    }
    // What is still not flushed when the step has returned may go at any later time.
    subsets(&durable, &pending, block, sampling, true, visit)
}

fn subsets(
    durable: &ModelDisk,
    pending: &Pending,
    block: u64,
    sampling: &mut Sampling,
    returned: bool,
    visit: &mut dyn FnMut(Cut) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut build = |choice: &dyn Fn(usize, usize) -> usize| {
        let mut disk = durable.clone();
        for (at, (lba, versions)) in pending.iter().enumerate() {
            // 0 is "not written"; n is the n-th version.
            if let Some(bytes) = choice(at, versions.len())
                .checked_sub(1)
                .and_then(|n| versions.get(n))
            {
                disk.set(lba * block, bytes);
            }
        }
        visit(Cut { disk, returned })
    };
    let count = pending.len();
    if count <= EXHAUSTIVE {
        // A counter whose digits are the choices, each in its own base.
        let mut digits = vec![0usize; count];
        let bases: Vec<usize> = pending.values().map(|v| v.len() + 1).collect();
        loop {
            build(&|at, _| digits[at])?;
            let Some(at) = (0..count).find(|at| digits[*at] + 1 < bases[*at]) else {
                return Ok(());
            };
            digits[at] += 1;
            digits[..at].fill(0);
        }
    }
    for n in 0..=count {
        build(&|at, last| if at < n { last } else { 0 })?;
        build(&|at, last| if at >= n { last } else { 0 })?;
        build(&|at, last| if at == n { last } else { 0 })?;
        build(&|at, last| if at == n { 0 } else { last })?;
    }
    for _ in 0..sampling.samples {
        let draws: Vec<u64> = (0..count).map(|_| sampling.next()).collect();
        build(&|at, last| (draws[at] % (last as u64 + 1)) as usize)?;
    }
    Ok(())
}
