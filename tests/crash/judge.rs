//! One case judged at every cut.
//!
//! Takes a [`Case`], gives a [`Row`]. Besides the plain run it cuts a resumed run
//! (from every state that a first cut left) and a run that took over from a process
//! that was killed, whose writes are in the cache but not on the medium.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;

use anyhow::Context as _;
use repave_boot::block_io::BlockWrite;
use repave_boot::model_disk::{ModelDisk, Op};
use repave_survey::block_io::BlockRead;

use super::cuts::{Cut, Sampling, cuts};
use super::summary::Row;
use super::{Case, Options};

/// What went wrong, in states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Losses {
    /// What must hold at every moment did not: for a table, Linux finds no valid
    /// primary that lists what stays.
    pub unsafe_states: usize,
    /// The resumed run failed or came to other bytes than the uncut one.
    pub not_resumed: usize,
    /// A second resume changed something.
    pub not_settled: usize,
    /// The step had returned and yet the state was not the final one.
    pub not_durable: usize,
    /// The state lies between no two neighbouring milestones.
    pub out_of_order: usize,
}

impl Losses {
    /// All of them.
    pub fn total(&self) -> usize {
        self.unsafe_states
            + self.not_resumed
            + self.not_settled
            + self.not_durable
            + self.out_of_order
    }
}

/// Judges every cut of a case.
pub fn judge(case: &dyn Case, options: &Options) -> anyhow::Result<Row> {
    Judge::new(case, None, options)?.run()
}

/// Judges the case with its n-th flush taken out: the control that each of them is
/// needed. The first one is taken out of the run that takes over from a killed
/// process, which is what it is for.
pub fn judge_without_flush(case: &dyn Case, n: usize, options: &Options) -> anyhow::Result<Row> {
    Judge::new(case, Some(n), options)?.run()
}

/// How many flushes the uncut run makes.
pub(super) fn flushes(case: &dyn Case) -> anyhow::Result<usize> {
    let mut disk = case.start().clone();
    case.apply(&mut disk)?;
    Ok(disk.ops().iter().filter(|op| **op == Op::Flush).count())
}

struct Judge<'c> {
    case: &'c dyn Case,
    swallow: Option<usize>,
    sampling: Sampling,
    /// What an uncut run ends in.
    last: ModelDisk,
    /// States judged already, by content.
    seen: HashMap<u64, Losses>,
    row: Row,
}

impl<'c> Judge<'c> {
    fn new(
        case: &'c dyn Case,
        swallow: Option<usize>,
        options: &Options,
    ) -> anyhow::Result<Judge<'c>> {
        let mut last = case.start().clone();
        case.apply(&mut last)
            .with_context(|| format!("{} on {} without a cut", case.step(), case.name()))?;
        last.forget();
        Ok(Judge {
            case,
            swallow,
            sampling: Sampling::new(options.seed, options.samples),
            last,
            seen: HashMap::new(),
            row: Row::new(case, swallow),
        })
    }

    fn run(mut self) -> anyhow::Result<Row> {
        let start = self.case.start().clone();
        let ops = self.record(&start, self.swallow);
        let mut first = self.cut(&start, &ops, 0)?;
        // A cut of the resumed run, from every state that the first cut left.
        first.retain(|disk| *disk != self.last);
        for disk in &first {
            let ops = self.record(disk, None);
            self.cut(disk, &ops, 0)?;
        }
        // The process was killed instead, at every moment, and another one took over
        // with the first one's writes still in the cache.
        for k in 1..=ops.len() {
            let mut cached = start.clone();
            for op in &ops[..k] {
                if let Op::Write { offset, bytes } = op {
                    cached.set(*offset, bytes);
                }
            }
            let then = self.record(&cached, self.swallow.filter(|n| *n == 0));
            let all = [&ops[..k], &then].concat();
            self.cut(&start, &all, k)?;
        }
        self.row.distinct = self.seen.len();
        Ok(self.row)
    }

    /// Runs the step from this content and gives what it did, also when it failed:
    /// that it cannot go on is counted where the state is looked at.
    fn record(&self, from: &ModelDisk, swallow: Option<usize>) -> Vec<Op> {
        let mut disk = from.clone();
        disk.forget();
        let mut dev = WithoutFlush {
            inner: &mut disk,
            countdown: swallow,
        };
        let _ = self.case.apply(&mut dev);
        disk.ops().to_vec()
    }

    /// Judges every cut; gives the states that had not been seen before.
    fn cut(
        &mut self,
        start: &ModelDisk,
        ops: &[Op],
        from: usize,
    ) -> anyhow::Result<Vec<ModelDisk>> {
        let mut fresh = Vec::new();
        let mut sampling = self.sampling.clone();
        cuts(start, ops, from, &mut sampling, &mut |cut| {
            let new = self.count(&cut);
            if new {
                fresh.push(cut.disk);
            }
            Ok(())
        })?;
        self.sampling = sampling;
        Ok(fresh)
    }

    fn count(&mut self, cut: &Cut) -> bool {
        let mut hasher = DefaultHasher::new();
        cut.disk.content().hash(&mut hasher);
        let key = hasher.finish();
        let new = !self.seen.contains_key(&key);
        let mut losses = match self.seen.get(&key) {
            Some(losses) => *losses,
            None => self.look(&cut.disk),
        };
        self.seen.insert(key, losses);
        if cut.returned && cut.disk != self.last {
            losses.not_durable = 1;
        }
        self.row.add(&losses);
        new
    }

    fn look(&mut self, disk: &ModelDisk) -> Losses {
        let mut losses = Losses::default();
        if let Err(err) = self.case.safe(disk) {
            losses.unsafe_states = 1;
            self.row.first_loss.get_or_insert(format!("{err:#}"));
        }
        if !between_milestones(disk, self.case.milestones()) {
            losses.out_of_order = 1;
        }
        let mut resumed = disk.clone();
        if let Err(err) = self.case.apply(&mut resumed) {
            losses.not_resumed = 1;
            self.row.first_loss.get_or_insert(format!("{err:#}"));
            return losses;
        }
        if resumed != self.last {
            losses.not_resumed = 1;
            return losses;
        }
        resumed.forget();
        let again = self.case.apply(&mut resumed);
        let wrote = resumed.ops().iter().any(|op| *op != Op::Flush);
        if again.is_err() || wrote {
            losses.not_settled = 1;
        }
        losses
    }
}

/// Whether every block is as in one of two neighbouring milestones.
fn between_milestones(disk: &ModelDisk, milestones: &[ModelDisk]) -> bool {
    milestones.is_empty()
        || milestones.windows(2).any(|pair| {
            let blocks = disk
                .content()
                .keys()
                .chain(pair[0].content().keys())
                .chain(pair[1].content().keys());
            blocks.into_iter().all(|lba| {
                let is = disk.content().get(lba);
                is == pair[0].content().get(lba) || is == pair[1].content().get(lba)
            })
        })
}

/// A disk whose n-th flush is taken for done without being done.
struct WithoutFlush<'d> {
    inner: &'d mut ModelDisk,
    countdown: Option<usize>,
}

impl BlockRead for WithoutFlush<'_> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn block(&self) -> u32 {
        self.inner.block()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }
}

impl BlockWrite for WithoutFlush<'_> {
    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.countdown {
            Some(0) => {
                self.countdown = None;
                Ok(())
            }
            Some(n) => {
                self.countdown = Some(n - 1);
                self.inner.flush()
            }
            None => self.inner.flush(),
        }
    }
}
