//! Why a run stopped after something was changed.
//!
//! A [`Stop`] keeps k3s out and says how to go on. It is never a refusal
//! (`crate::refusal`): after the first destructive write nothing is refused.

use serde::{Deserialize, Serialize};

use crate::names::names;
use crate::step::StepName;

/// Why the run stopped; the disk may be half-way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "stop", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Stop {
    /// The disk is in a state that the step neither starts from nor ends in.
    #[error("step {step}: the disk is neither as before nor as after it: {found}")]
    Neither {
        /// The step.
        step: StepName,
        /// What was found.
        found: String,
    },
    /// Applying a step failed.
    #[error("step {step} failed: {why}")]
    StepFailed {
        /// The step.
        step: StepName,
        /// The whole chain of causes.
        why: String,
    },
    /// A step was applied and reading back shows something else.
    #[error("step {step} was applied and cannot be proved: {found}")]
    NotProved {
        /// The step.
        step: StepName,
        /// What was found.
        found: String,
    },
    /// The table is written and the kernel would not take it.
    #[error("the table is written and the kernel still has the old one: {found}")]
    KernelStale {
        /// What the kernel has.
        found: String,
    },
    /// The disk of the intent is not there, or is not alone.
    #[error("the disk of this run cannot be found: {why}")]
    DiskLost {
        /// Why.
        why: String,
    },
    /// The run's own copy of the intent cannot be used.
    #[error("the intent of this run cannot be read: {why}")]
    IntentLost {
        /// Why.
        why: String,
    },
    /// The run was tried as often as it may be.
    #[error("the run was tried {attempts} times, which is the limit")]
    AttemptsUsedUp {
        /// How often.
        attempts: u32,
    },
    /// The machine lacks what the run needs to go on.
    #[error("the run cannot go on here: {why}")]
    Environment {
        /// Why.
        why: String,
    },
    /// All steps are done and the node is not as it should be.
    #[error("the run is done and cannot be closed: {found}")]
    NotReady {
        /// What was found.
        found: String,
    },
}

names! {
    Stop:
    Neither => "neither",
    StepFailed => "step-failed",
    NotProved => "not-proved",
    KernelStale => "kernel-stale",
    DiskLost => "disk-lost",
    IntentLost => "intent-lost",
    AttemptsUsedUp => "attempts-used-up",
    Environment => "environment",
    NotReady => "not-ready",
}

impl Stop {
    /// The one command that goes on from here.
    pub fn command(&self) -> &'static str {
        match self {
            Stop::AttemptsUsedUp { .. } => "repave-boot resume --once-more",
            _ => "repave-boot resume",
        }
    }
}
