//! Why nothing was changed.
//!
//! A [`Refusal`] is a decision of repave, made while everything is as it was. Each
//! names the fact, what was expected and found, and the way out; each has a short
//! name that `docs/recovery.md` explains. What ends a run after the point of no
//! return is never one of these: see [`crate::stop`].

use serde::{Deserialize, Serialize};

use crate::names::names;
use crate::units::{BootId, Bytes, Digest, UnixTime};

/// A refusal: nothing was changed and the node goes on as before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "refusal", rename_all = "kebab-case")]
pub enum Refusal {
    /// No disk carries what the policy or the intent names.
    #[error("no disk matches: {wanted}")]
    NoDisk {
        /// What was looked for.
        wanted: String,
    },
    /// More than one disk carries it.
    #[error("{} disks match {wanted}: {}", disks.len(), disks.join(", "))]
    SeveralDisks {
        /// What was looked for.
        wanted: String,
        /// The disks, by name and serial.
        disks: Vec<String>,
    },
    /// The disk or a partition is used by something.
    #[error("{what} is in use: {by}")]
    InUse {
        /// The disk or partition.
        what: String,
        /// What uses it.
        by: String,
    },
    /// The partition table is not one that repave edits.
    #[error("the partition table of {disk} is not safe to edit: {why}")]
    Table {
        /// The disk.
        disk: String,
        /// The rule it breaks.
        why: String,
    },
    /// A partition is not what the policy says it is.
    #[error("partition {part}: {fact} is {found}, the policy says {expected}")]
    Partition {
        /// The partition: number and name, or what was looked for.
        part: String,
        /// The fact that differs.
        fact: String,
        /// What the policy says.
        expected: String,
        /// What is there.
        found: String,
    },
    /// There is no safe place for the new table while it is being committed.
    #[error(
        "there is no free place on {disk} for the new entry array: neither {need} of zeroed \
         blocks in front of the first partition nor room inside a removed partition"
    )]
    NoShadow {
        /// The disk.
        disk: String,
        /// How much is needed.
        need: Bytes,
    },
    /// A label of a pool nobody named lies where something will be destroyed.
    #[error(
        "{place} carries a ZFS label of pool {pool} (guid {guid}), which the plan does not name"
    )]
    ForeignLabel {
        /// The partition or place.
        place: String,
        /// The pool's name as the label gives it.
        pool: String,
        /// The pool's guid as the label gives it.
        guid: String,
    },
    /// The pool is not one that can be repaved.
    #[error("pool {pool} cannot be repaved: {why}")]
    Pool {
        /// The pool.
        pool: String,
        /// Why not.
        why: String,
    },
    /// A dataset of the skeleton cannot be made again as it was.
    #[error("dataset {dataset} cannot be recreated: {why}")]
    Dataset {
        /// The dataset.
        dataset: String,
        /// Why not.
        why: String,
    },
    /// The host lacks something the boot run or the way back needs.
    #[error("{what}: {found}")]
    Host {
        /// The thing that is wrong.
        what: String,
        /// How it was found.
        found: String,
        /// What to do about it.
        way_out: String,
    },
    /// containerd was not found, or is placed so that it cannot be cleared.
    #[error("containerd: {why}")]
    Containerd {
        /// Why.
        why: String,
        /// What to do about it.
        way_out: String,
    },
    /// A fact the plan needs could not be seen.
    #[error("the plan is incomplete: {what}")]
    Incomplete {
        /// What could not be seen.
        what: String,
    },
    /// The intent does not have the bytes that were sealed.
    #[error("the intent is damaged: {why}")]
    IntentDamaged {
        /// What is wrong with it.
        why: String,
    },
    /// The intent was written by a newer program.
    #[error("the intent has format version {found}, this program knows {known}")]
    NewerFormat {
        /// The version in the file.
        found: u32,
        /// The newest version this program knows.
        known: u32,
    },
    /// The intent was made for another machine.
    #[error("the intent is for machine {expected}, this is {found}")]
    OtherMachine {
        /// The machine id in the intent.
        expected: String,
        /// This machine's id.
        found: String,
    },
    /// The machine was not rebooted since it was armed.
    #[error("this is still boot {boot}, in which the intent was armed")]
    SameBoot {
        /// The boot id.
        boot: BootId,
    },
    /// The intent is too old.
    #[error("the intent was good until {not_after:?}, the clock says {now:?}")]
    Stale {
        /// Until when it was good.
        not_after: UnixTime,
        /// The clock.
        now: UnixTime,
    },
    /// The clock is earlier than the moment of arming.
    #[error("the clock says {now:?}, the intent was armed at {armed:?}")]
    ClockBeforeArming {
        /// When it was armed.
        armed: UnixTime,
        /// The clock.
        now: UnixTime,
    },
    /// Another image is booted than the intent wants.
    #[error("image {expected} should be booted, {found} is")]
    OtherImage {
        /// The digest in the intent.
        expected: Digest,
        /// The digest that is booted, or `none`.
        found: String,
    },
    /// This run was acted on before.
    #[error("run {run_id} was acted on before")]
    AlreadyRun {
        /// The run.
        run_id: String,
    },
    /// A bound fact does not hold any more.
    #[error("{fact} was {expected} when the plan was made and is {found} now")]
    FactChanged {
        /// The fact.
        fact: String,
        /// Its value in the intent.
        expected: String,
        /// Its value now.
        found: String,
    },
    /// The digest given for approval is not that of the plan as it is now.
    #[error("the plan's digest is {expected}, the approval names {found}")]
    NotApproved {
        /// The digest of the plan made now.
        expected: Digest,
        /// The digest that was given.
        found: Digest,
    },
}

names! {
    Refusal:
    NoDisk => "no-disk",
    SeveralDisks => "several-disks",
    InUse => "in-use",
    Table => "table",
    Partition => "partition",
    NoShadow => "no-shadow",
    ForeignLabel => "foreign-label",
    Pool => "pool",
    Dataset => "dataset",
    Host => "host",
    Containerd => "containerd",
    Incomplete => "incomplete",
    IntentDamaged => "intent-damaged",
    NewerFormat => "newer-format",
    OtherMachine => "other-machine",
    SameBoot => "same-boot",
    Stale => "stale",
    ClockBeforeArming => "clock-before-arming",
    OtherImage => "other-image",
    AlreadyRun => "already-run",
    FactChanged => "fact-changed",
    NotApproved => "not-approved",
}

impl Refusal {
    /// What a person does about it: one sentence.
    pub fn way_out(&self) -> String {
        match self {
            Refusal::NoDisk { .. } => {
                "check [disk] in the policy against `repave-agent survey`".to_owned()
            }
            Refusal::SeveralDisks { .. } => {
                "detach or wipe the copy, or name the disk's serial in the policy".to_owned()
            }
            Refusal::InUse { what, .. } => format!("free {what}, then plan again"),
            Refusal::Table { .. } => {
                "look at it with `sgdisk --verify`, repair it, then plan again".to_owned()
            }
            Refusal::Partition { .. } => {
                "make the policy say what is there, if that is what you mean to remove".to_owned()
            }
            Refusal::NoShadow { .. } => {
                "leave the disk as it is: its table cannot be replaced in one write".to_owned()
            }
            Refusal::ForeignLabel { guid, .. } => format!(
                "if that pool is dead, name it in the policy or clear it with \
                 `repave-boot clear-labels DEVICE --pool-guid {guid}`"
            ),
            Refusal::Pool { .. } | Refusal::Dataset { .. } => {
                "change the pool or take the dataset out of the policy, then plan again".to_owned()
            }
            Refusal::Host { way_out, .. } | Refusal::Containerd { way_out, .. } => way_out.clone(),
            Refusal::Incomplete { .. } => {
                "make the plan on the node itself, as root, with the pool imported".to_owned()
            }
            Refusal::OtherImage { .. } => {
                "boot the image that the approval was given for, or plan again on this one"
                    .to_owned()
            }
            Refusal::NotApproved { expected, .. } => {
                format!("read the plan again and, if it is right, approve {expected}")
            }
            Refusal::NewerFormat { .. } => {
                "install the program that wrote it, or plan and arm again".to_owned()
            }
            Refusal::IntentDamaged { .. }
            | Refusal::OtherMachine { .. }
            | Refusal::SameBoot { .. }
            | Refusal::Stale { .. }
            | Refusal::ClockBeforeArming { .. }
            | Refusal::AlreadyRun { .. }
            | Refusal::FactChanged { .. } => "plan and arm again".to_owned(),
        }
    }
}
