//! What the boot run does, as plain data.
//!
//! Stage: part of the plan. A [`Step`] holds all that its executor needs, so that
//! the executor decides nothing. [`StepState`] is what a look at the disk says of a
//! step, and never what a record says.

use serde::{Deserialize, Serialize};

use crate::policy::ClearMode;
use crate::recipe::Recipe;
use crate::table::TableChange;
use crate::units::{Extent, Guid, PartNo, PoolGuid, PoolName, VdevGuid};

/// A step's name: in journals, logs, reports and the documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepName {
    /// Old ZFS labels and signatures are cleared.
    LabelClear,
    /// The new partition table is committed.
    TableWrite,
    /// The kernel's view is brought to the table.
    KernelTable,
    /// The pool and its skeleton are made.
    PoolCreate,
    /// containerd forgets the lost snapshots.
    ContainerdClear,
}

impl StepName {
    /// The name as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            StepName::LabelClear => "label-clear",
            StepName::TableWrite => "table-write",
            StepName::KernelTable => "kernel-table",
            StepName::PoolCreate => "pool-create",
            StepName::ContainerdClear => "containerd-clear",
        }
    }
}

impl std::fmt::Display for StepName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One step of the boot run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Step {
    /// See [`StepName::LabelClear`].
    LabelClear(LabelClear),
    /// See [`StepName::TableWrite`].
    TableWrite(TableWrite),
    /// See [`StepName::KernelTable`].
    KernelTable(KernelTable),
    /// See [`StepName::PoolCreate`].
    PoolCreate(PoolCreate),
    /// See [`StepName::ContainerdClear`].
    ContainerdClear(ContainerdClear),
}

impl Step {
    /// The step's name.
    pub fn name(&self) -> StepName {
        match self {
            Step::LabelClear(_) => StepName::LabelClear,
            Step::TableWrite(_) => StepName::TableWrite,
            Step::KernelTable(_) => StepName::KernelTable,
            Step::PoolCreate(_) => StepName::PoolCreate,
            Step::ContainerdClear(_) => StepName::ContainerdClear,
        }
    }
}

/// Which labels and signatures go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelClear {
    /// The extents that are destroyed or merged, and the new partition's.
    pub extents: Vec<Extent>,
    /// The pools whose labels are erased; a label of any other pool stops the run.
    pub pool_guids: Vec<PoolGuid>,
    /// Labels without a pool guid (spare, cache) that are erased, by their vdev guid.
    pub vdev_guids: Vec<VdevGuid>,
    /// Pools whose labels are never erased (the pool that grows).
    pub kept_pool_guids: Vec<PoolGuid>,
    /// Other signatures to wipe.
    pub signatures: Vec<SignatureWipe>,
}

/// A signature that is wiped: its magic bytes are overwritten with zeros.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignatureWipe {
    /// What it is a signature of, as blkid names it.
    pub kind: String,
    /// Offset of the magic from the start of the disk, in bytes.
    pub offset: u64,
    /// The magic bytes that are expected there, in hexadecimal.
    pub magic: String,
}

/// The table before and after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableWrite {
    /// Both copies as they are, both as they shall be, and the place of the new array
    /// while LBA 1 points at it.
    pub change: TableChange,
}

/// What the kernel must be told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelTable {
    /// The partitions that vanish or change, as the kernel knows them now.
    pub delete: Vec<KernelPart>,
    /// The partition that appears.
    pub add: Option<KernelPart>,
    /// The partition whose end moves while it may be in use (grow mode only).
    pub resize: Option<KernelPart>,
    /// The new partition's GUID: its device is waited for under this name.
    pub partuuid: Guid,
}

/// A partition as the kernel counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelPart {
    /// Its number.
    pub number: PartNo,
    /// Its place on the disk, in logical blocks.
    pub extent: Extent,
}

/// The pool to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolCreate {
    /// What to make.
    pub recipe: Recipe,
    /// The partition to make it on.
    pub partuuid: Guid,
}

/// What containerd must forget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerdClear {
    /// containerd's root directory.
    pub root: String,
    /// The snapshotter whose snapshots died with the pool.
    pub snapshotter: String,
    /// How much is cleared.
    pub mode: ClearMode,
    /// The pool that carried the snapshots.
    pub pool: PoolName,
}

/// What the disk says of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepState {
    /// Nothing of it, or a part of it, is done: apply it.
    Before,
    /// It is done, whoever did it.
    After,
    /// Neither: it must not be applied.
    Neither {
        /// What was found, for a person.
        found: String,
    },
}

/// What applying a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The step was applied.
    Changed,
    /// The disk already was as the step wants it.
    AlreadyDone,
}
