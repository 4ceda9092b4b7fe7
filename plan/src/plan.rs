//! The plan: what will happen, as plain data.
//!
//! Made once by [`crate::planner::plan`], then only read. All that the boot program
//! does is in [`Plan::steps`]; the rest is for people and for the approval.

use serde::{Deserialize, Serialize};

use crate::policy::Mode;
use crate::step::{KernelPart, Step, StepName};
use crate::units::{
    BlockSize, Bytes, DatasetName, Digest, Extent, Guid, MachineId, PartNo, PoolGuid, PoolName,
    VdevGuid,
};

/// The version of the plan format.
pub const VERSION: u32 = 1;

/// What will happen to one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The format's version: 1.
    pub version: u32,
    /// The digest of the policy it follows.
    pub policy: Digest,
    /// Whether the pool is destroyed.
    pub mode: Mode,
    /// The machine.
    pub machine_id: MachineId,
    /// The disk.
    pub disk: PlanDisk,
    /// The pool.
    pub pool: PoolName,
    /// Its guid now.
    pub pool_guid: PoolGuid,
    /// The guid of its one leaf now.
    pub vdev_guid: VdevGuid,
    /// The partitions that are removed or merged, as they are.
    pub touched: Vec<Touched>,
    /// The pool's partition as it shall be.
    pub new: Touched,
    /// The partitions that stay bit for bit.
    pub untouched: Vec<Touched>,
    /// The steps, in their order.
    pub steps: Vec<Step>,
    /// The image that must be booted.
    pub image: Option<Digest>,
    /// The dataset that carries containerd's snapshots, when the pool does.
    pub snapshots_on: Option<DatasetName>,
    /// What will be lost.
    pub lost: Vec<Loss>,
    /// What a person should know before approving.
    pub warnings: Vec<String>,
}

/// A plan as far as a disk alone decides it: for people, never sealed or armed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preview {
    /// The format's version: that of a plan.
    pub version: u32,
    /// The digest of the policy it follows.
    pub policy: Digest,
    /// Whether the pool would be destroyed.
    pub mode: Mode,
    /// The disk.
    pub disk: PlanDisk,
    /// The pool, as the policy names it.
    pub pool: PoolName,
    /// Its guid, from the label.
    pub pool_guid: PoolGuid,
    /// The guid of its one leaf, from the label.
    pub vdev_guid: VdevGuid,
    /// The partitions that would be removed or merged, as they are.
    pub touched: Vec<Touched>,
    /// The pool's partition as it would be.
    pub new: Touched,
    /// The partitions that would stay bit for bit.
    pub untouched: Vec<Touched>,
    /// The steps that the disk alone decides, in their order.
    pub steps: Vec<Step>,
    /// The losses that are known.
    pub lost: Vec<Loss>,
    /// What a person should know.
    pub warnings: Vec<String>,
    /// What could not be known.
    pub unknown: Vec<String>,
}

/// The disk a plan is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanDisk {
    /// The kernel's name when the plan was made. For people.
    pub name: String,
    /// Serial number.
    pub serial: Option<String>,
    /// WWN.
    pub wwn: Option<String>,
    /// Size.
    pub size: Bytes,
    /// Logical block size.
    pub block: BlockSize,
    /// The table's GUID.
    pub guid: Guid,
}

/// A partition in a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Touched {
    /// Its number.
    pub number: PartNo,
    /// Its name.
    pub name: String,
    /// Its type.
    pub type_guid: Guid,
    /// Its GUID.
    pub guid: Guid,
    /// Its place.
    pub extent: Extent,
    /// What is in it, in a few words for people.
    pub holds: String,
}

/// Something that will be lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// What: a partition, or the datasets below a parent.
    pub what: String,
    /// How many.
    pub count: u64,
    /// How much.
    pub bytes: Bytes,
    /// The datasets, when the loss is of datasets.
    pub datasets: Vec<DatasetName>,
}

impl Plan {
    /// The steps' names, in order.
    pub fn step_names(&self) -> Vec<StepName> {
        self.steps.iter().map(Step::name).collect()
    }

    /// The pool's partition as the kernel shall know it.
    pub fn new_part(&self) -> KernelPart {
        KernelPart {
            number: self.new.number,
            extent: self.new.extent,
        }
    }

    /// The extents that the run may write labels in: what is removed or merged, and
    /// the new partition.
    pub fn writable(&self) -> Vec<Extent> {
        self.touched
            .iter()
            .map(|t| t.extent)
            .chain([self.new.extent])
            .collect()
    }
}
