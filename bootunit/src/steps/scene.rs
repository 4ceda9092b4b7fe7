//! What the steps of one attempt share: the host, the intent, and the disk, which is
//! open and locked from the first look until the kernel has the new table.

use std::ops::Range;

use repave_plan::intent::Intent;
use repave_plan::step::Step;
use repave_plan::table::TableChange;
use repave_plan::units::{Extent, RunId};

use crate::host::{Host, HostError, LockedDisk};
use crate::state_dir::StateDir;
use crate::zfs::Zfs;

/// One attempt's surroundings.
pub struct Scene<'a> {
    /// The world.
    pub host: &'a dyn Host,
    /// Where records go.
    pub state: &'a StateDir,
    /// The run's intent.
    pub intent: &'a Intent,
    node: String,
    disk: Option<Box<dyn LockedDisk>>,
}

impl<'a> Scene<'a> {
    /// A scene on the disk at this node.
    pub fn new(
        host: &'a dyn Host,
        state: &'a StateDir,
        intent: &'a Intent,
        node: impl Into<String>,
    ) -> Self {
        Self {
            host,
            state,
            intent,
            node: node.into(),
            disk: None,
        }
    }

    /// The run.
    pub fn run_id(&self) -> &RunId {
        &self.intent.run_id
    }

    /// The ZFS programs.
    pub fn zfs(&self) -> Zfs<'a> {
        Zfs::new(self.host, &self.intent.programs)
    }

    /// The disk, opened and locked when it is not yet.
    pub fn disk(&mut self) -> Result<&mut dyn LockedDisk, HostError> {
        let disk = match self.disk.take() {
            Some(disk) => disk,
            None => self.host.open_disk(&self.node)?,
        };
        Ok(self.disk.insert(disk).as_mut())
    }

    /// Closes the disk and lets udev have it: while the lock is held udev makes no link
    /// for a new partition.
    pub fn release_disk(&mut self) {
        self.disk = None;
    }

    /// The planned change of the table.
    pub fn table_change(&self) -> Option<&'a TableChange> {
        self.intent.plan.steps.iter().find_map(|step| match step {
            Step::TableWrite(write) => Some(&write.change),
            _ => None,
        })
    }

    /// An extent as a byte range of the disk.
    pub fn bytes(&self, extent: &Extent) -> Range<u64> {
        let block = self.intent.plan.disk.block;
        let start = extent.offset(block).0;
        start..start + extent.bytes(block).0
    }
}
