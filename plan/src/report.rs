//! Stage *report*: what is true now.
//!
//! The type, its verdicts and their exit codes. The boot program fills it in and
//! writes it; agent and rollout read it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::intent::Volume;
use crate::refusal::Refusal;
use crate::step::{Outcome, StepName};
use crate::stop::Stop;
use crate::units::{BootId, Bytes, Digest, Extent, Guid, PartNo, PoolGuid, RunId, UnixTime};

/// The version of the report format.
pub const VERSION: u32 = 1;

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// Everything is done and proved.
    Done,
    /// Nothing was changed; the node boots on with its old pool.
    Refused(Refusal),
    /// Something was changed; k3s is kept out.
    Stopped(Stop),
    /// The intent did not run in the boot it was made for.
    NotRun {
        /// What is known of why.
        why: String,
    },
}

/// Exit code of a program that did what it should, or had nothing to do.
pub const EXIT_DONE: u8 = 0;
/// Exit code for a wrong call or an environment that does not allow the work.
pub const EXIT_USAGE: u8 = 2;
/// Exit code of [`Verdict::Refused`].
pub const EXIT_REFUSED: u8 = 10;
/// Exit code of [`Verdict::NotRun`], from `status` only.
pub const EXIT_NOT_RUN: u8 = 11;
/// Exit code of [`Verdict::Stopped`].
pub const EXIT_STOPPED: u8 = 20;

impl Verdict {
    /// The exit code that goes with it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Verdict::Done => EXIT_DONE,
            Verdict::Refused(_) => EXIT_REFUSED,
            Verdict::Stopped(_) => EXIT_STOPPED,
            Verdict::NotRun { .. } => EXIT_NOT_RUN,
        }
    }

    /// The verdict's word.
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Done => "Done",
            Verdict::Refused(_) => "Refused",
            Verdict::Stopped(_) => "Stopped",
            Verdict::NotRun { .. } => "NotRun",
        }
    }
}

/// What became of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The format's version: 1.
    pub version: u32,
    /// The run; absent when the intent could not be opened.
    pub run_id: Option<RunId>,
    /// The digest of the sealed intent's bytes.
    pub intent: Option<Digest>,
    /// How it ended.
    pub outcome: Verdict,
    /// The boot in which it ended; absent when its id could not be read.
    pub boot_id: Option<BootId>,
    /// When it ended.
    pub at: UnixTime,
    /// How often it was tried.
    pub attempts: u32,
    /// What became of each step, in order.
    pub steps: Vec<StepReport>,
    /// The pool's partition before.
    pub before: Option<PartitionReport>,
    /// The pool's partition now.
    pub after: Option<PartitionReport>,
    /// The guid of the pool that was destroyed.
    pub old_pool: Option<PoolGuid>,
    /// The guid of the pool that is there now.
    pub new_pool: Option<PoolGuid>,
    /// The volume datasets that were destroyed with the pool.
    pub volumes_lost: Vec<Volume>,
    /// What containerd kept and forgot; absent when nothing was cleared.
    pub containerd: Option<Cleared>,
    /// What a person should know.
    pub notes: Vec<String>,
    /// The one command that goes on from here, when it stopped.
    pub way_out: Option<String>,
}

/// What containerd kept and forgot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cleared {
    /// Images that containerd still lists, by name, with their size.
    pub images_kept: BTreeMap<String, Bytes>,
    /// Images that must be pulled again, by name, with the reason.
    pub images_dropped: BTreeMap<String, String>,
    /// Bytes that must be pulled again for them.
    pub bytes_to_pull: Bytes,
    /// What a person should know: a database that could not be read, files found under
    /// a mount point.
    pub notes: Vec<String>,
}

/// What became of one step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepReport {
    /// The step.
    pub step: StepName,
    /// What applying it did; absent when it is not done.
    pub outcome: Option<Outcome>,
    /// How long it took, in milliseconds.
    pub millis: u64,
    /// What was read back.
    pub proof: BTreeMap<String, String>,
}

/// A partition, for a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionReport {
    /// Its number.
    pub number: PartNo,
    /// Its place.
    pub extent: Extent,
    /// Its GUID.
    pub guid: Guid,
    /// Its size.
    pub size: Bytes,
}
