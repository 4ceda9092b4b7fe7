//! From a planned step to the code that looks, applies and proves it.

use std::collections::BTreeMap;

use repave_plan::step::{Outcome, Step, StepState};

use crate::host::HostError;
use crate::kernel_table::KernelTableError;
use crate::label_clear::ClearError;
use crate::state_dir::RecordError;
use crate::table_write::{TableWriteError, apply_table, prove_table, table_state};
use crate::zfs::ZfsError;

use super::scene::Scene;
use super::{containerd_clear, kernel_table, label_clear, pool_create};

/// Why a step could not be looked at, applied or proved.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The labels.
    #[error(transparent)]
    Labels(#[from] ClearError),
    /// The table.
    #[error(transparent)]
    Table(#[from] TableWriteError),
    /// The kernel's view.
    #[error(transparent)]
    Kernel(#[from] KernelTableError),
    /// The pool.
    #[error(transparent)]
    Zfs(#[from] ZfsError),
    /// Something else of the host.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The run's records.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The step was applied and the result is not the planned one.
    #[error("prove {what}: {found}")]
    NotProved {
        /// What was to be proved.
        what: &'static str,
        /// What was found.
        found: String,
    },
}

/// What the disk says of a step.
pub fn state(scene: &mut Scene, step: &Step) -> Result<StepState, StepError> {
    match step {
        Step::LabelClear(clear) => label_clear::state(scene, clear),
        Step::TableWrite(write) => Ok(table_state(&write.change, scene.disk()?)?),
        Step::KernelTable(table) => kernel_table::state(scene, table),
        Step::PoolCreate(create) => pool_create::state(scene, create),
        Step::ContainerdClear(clear) => containerd_clear::state(scene, clear),
    }
}

/// Applies a step whose state is `Before`.
pub fn apply(scene: &mut Scene, step: &Step) -> Result<Outcome, StepError> {
    match step {
        Step::LabelClear(clear) => label_clear::apply(scene, clear),
        Step::TableWrite(write) => Ok(apply_table(&write.change, scene.disk()?)?),
        Step::KernelTable(table) => kernel_table::apply(scene, table),
        Step::PoolCreate(create) => pool_create::apply(scene, create),
        Step::ContainerdClear(clear) => containerd_clear::apply(scene, clear),
    }
}

/// Reads back that a step is done; gives what was read, for the journal.
pub fn prove(scene: &mut Scene, step: &Step) -> Result<BTreeMap<String, String>, StepError> {
    match step {
        Step::LabelClear(clear) => label_clear::prove(scene, clear),
        Step::TableWrite(write) => {
            prove_table(&write.change, scene.disk()?)?;
            let new = write.change.new_image();
            Ok(BTreeMap::from([
                ("primary".to_owned(), new.primary_digest().to_string()),
                ("backup".to_owned(), new.backup_digest().to_string()),
            ]))
        }
        Step::KernelTable(table) => kernel_table::prove(scene, table),
        Step::PoolCreate(create) => pool_create::prove(scene, create),
        Step::ContainerdClear(clear) => containerd_clear::prove(scene, clear),
    }
}
