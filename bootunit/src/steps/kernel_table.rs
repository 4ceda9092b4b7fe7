//! Kernel-table in its surroundings: the disk is still locked while the kernel is told,
//! and let go of as soon as it knows.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use repave_plan::step::{KernelTable, Outcome, StepState};

use crate::kernel_table::{apply_kernel, kernel_state};
use crate::zfs::device_of;

use super::dispatch::StepError;
use super::scene::Scene;

/// How long udev may take to link the new partition by its PARTUUID: 0.43 s were
/// measured, and a udev under load may be late.
pub const LINK_LIMIT: Duration = Duration::from_secs(60);

pub(super) fn state(scene: &mut Scene, table: &KernelTable) -> Result<StepState, StepError> {
    let block = scene.intent.plan.disk.block;
    Ok(kernel_state(scene.disk()?.kernel(), table, block)?)
}

pub(super) fn apply(scene: &mut Scene, table: &KernelTable) -> Result<Outcome, StepError> {
    let block = scene.intent.plan.disk.block;
    Ok(apply_kernel(scene.disk()?.kernel(), table, block)?)
}

pub(super) fn prove(
    scene: &mut Scene,
    table: &KernelTable,
) -> Result<BTreeMap<String, String>, StepError> {
    let block = scene.intent.plan.disk.block;
    match kernel_state(scene.disk()?.kernel(), table, block)? {
        StepState::After => {}
        StepState::Before => {
            let found = "it has the old partitions".to_owned();
            return Err(StepError::NotProved {
                what: "the kernel's view",
                found,
            });
        }
        StepState::Neither { found } => {
            return Err(StepError::NotProved {
                what: "the kernel's view",
                found,
            });
        }
    }
    // ORDER: the lock is released before the link is waited for; udev makes no link
    // while it is held (systemd-udevd tries again every 0.2 s and gives up after 3 min).
    scene.release_disk();
    let device = device_of(table.partuuid);
    scene.host.wait_for(Path::new(&device), LINK_LIMIT)?;
    Ok(BTreeMap::from([("device".to_owned(), device)]))
}
