//! The engine: the planned steps, one after another, each asked of the disk first.
//!
//! Takes a scene and the run's journal; gives nothing or a [`Stop`]. It decides
//! nothing: the order is the plan's, `Before` is applied, `After` is already done,
//! `Neither` stops. Nothing here is ever a refusal, because something was changed.

use repave_plan::chain::chain;
use repave_plan::journal::Record;
use repave_plan::step::{Outcome, Step, StepName, StepState};
use repave_plan::stop::Stop;
use repave_plan::units::BootId;

use crate::kernel_table::KernelTableError;
use crate::state_dir::{Journal, RecordError};
use crate::steps::{Scene, StepError, apply, prove, state};

/// Runs every step of the plan.
pub fn run_steps(scene: &mut Scene, journal: &mut Journal, boot: &BootId) -> Result<(), Stop> {
    for step in &scene.intent.plan.steps {
        run_step(scene, journal, boot, step)?;
    }
    Ok(())
}

fn run_step(
    scene: &mut Scene,
    journal: &mut Journal,
    boot: &BootId,
    step: &Step,
) -> Result<(), Stop> {
    let name = step.name();
    let host = scene.host;
    let record = |journal: &mut Journal, record: Record| {
        journal
            .append(host, record)
            .map_err(|e: RecordError| Stop::Environment { why: chain(&e) })
    };
    tracing::info!(step = name.as_str(), "step begins");
    host.say(&format!("{name}: begins"));
    let started = host.millis();
    record(
        journal,
        Record::Begin {
            step: name,
            at: host.now(),
        },
    )?;
    let found = state(scene, step).map_err(|e| failed(name, &e))?;
    let outcome = match found {
        StepState::Before => apply(scene, step).map_err(|e| failed(name, &e))?,
        StepState::After => Outcome::AlreadyDone,
        StepState::Neither { found } => return Err(Stop::Neither { step: name, found }),
    };
    let facts = prove(scene, step).map_err(|e| not_proved(name, &e))?;
    record(journal, Record::Proof { step: name, facts })?;
    let millis = host.millis().saturating_sub(started);
    let done = Record::Done {
        step: name,
        outcome,
        boot_id: boot.clone(),
        millis,
        at: host.now(),
    };
    record(journal, done)?;
    tracing::info!(step = name.as_str(), ?outcome, millis, "step is done");
    host.say(&format!("{name}: done ({outcome:?}, {millis} ms)"));
    Ok(())
}

fn failed(step: StepName, error: &StepError) -> Stop {
    match error {
        StepError::Kernel(stale @ KernelTableError::Busy { .. }) => Stop::KernelStale {
            found: chain(stale),
        },
        other => Stop::StepFailed {
            step,
            why: chain(other),
        },
    }
}

fn not_proved(step: StepName, error: &StepError) -> Stop {
    match error {
        StepError::NotProved { .. } | StepError::Table(_) | StepError::Labels(_) => {
            Stop::NotProved {
                step,
                found: chain(error),
            }
        }
        other => failed(step, other),
    }
}
