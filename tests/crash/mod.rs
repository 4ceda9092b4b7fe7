//! Power cuts: every moment at which the power can go, replayed.
//!
//! Takes [`Case`]s (a disk, a step, what must hold at every moment), runs the step's
//! own code on a recording model disk, builds the disk of every cut and judges it.
//! Nothing here touches a device. `cargo xtask cuts` prints the [`Summary`].

mod cuts;
mod images;
mod judge;
mod kernel_gpt;
mod summary;
mod table_cases;
#[cfg(test)]
mod tests;

use repave_boot::block_io::BlockWrite;
use repave_boot::model_disk::ModelDisk;

pub use cuts::{Cut, Sampling, cuts};
pub use images::{KernelImage, kernel_images};
pub use judge::{Losses, judge, judge_without_flush};
pub use kernel_gpt::{Scanned, scan};
pub use summary::{Row, Summary};
pub use table_cases::table_cases;

/// One step on one disk.
pub trait Case {
    /// The step's name.
    fn step(&self) -> &'static str;

    /// What is special about this disk.
    fn name(&self) -> &str;

    /// The disk before the step.
    fn start(&self) -> &ModelDisk;

    /// The step itself, from whatever state the disk is in.
    fn apply(&self, dev: &mut dyn BlockWrite) -> anyhow::Result<()>;

    /// What must hold at every moment, whatever the power does.
    fn safe(&self, disk: &ModelDisk) -> anyhow::Result<()>;

    /// The disks that the step passes through when every structure it writes is
    /// taken as one, the start first. A cut must lie between two neighbours. Empty
    /// when the step writes places whose order does not matter.
    fn milestones(&self) -> &[ModelDisk];

    /// Whether each of its flushes is taken out in turn, as a control.
    fn is_control(&self) -> bool;
}

/// How to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where sampling begins; printed, so that a run can be repeated.
    pub seed: u64,
    /// How many subsets are drawn where there are too many to try them all.
    pub samples: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: 1,
            samples: 512,
        }
    }
}

/// Replays every cut of every case, then the controls: the same harness must find
/// something to say about other orders and about ours with one flush taken out.
pub fn run(cases: &[Box<dyn Case>], options: &Options) -> anyhow::Result<Summary> {
    let mut summary = Summary::new(options);
    for case in cases {
        summary.rows.push(judge(case.as_ref(), options)?);
    }
    for case in cases.iter().filter(|c| c.is_control()) {
        for n in 0..judge::flushes(case.as_ref())? {
            let row = judge_without_flush(case.as_ref(), n, options)?;
            summary.controls.push(row);
        }
    }
    for other in table_cases::other_orders()? {
        summary.controls.push(judge(other.as_ref(), options)?);
    }
    Ok(summary)
}
