//! The boot run: from what is armed, or was begun, to a node that may go on.
//!
//! `changed` decides which of two programs this is. While it is absent every doubt is
//! a refusal that disarms and lets the node boot on. Once it exists nothing is
//! refused and nothing disarms: the run goes on where the disk says it is, or stops.

use repave_plan::bound::find_disk;
use repave_plan::chain::chain;
use repave_plan::intent::{Intent, open};
use repave_plan::journal::{self, Record};
use repave_plan::policy::Mode;
use repave_plan::refusal::Refusal;
use repave_plan::step::Step;
use repave_plan::stop::Stop;
use repave_plan::survey::Survey;
use repave_plan::table::export_sgdisk;
use repave_plan::units::{BootId, Digest, RunId};

use crate::cache_file;
use crate::engine::run_steps;
use crate::host::{Host, HostError};
use crate::preflight::preflight;
use crate::recovery::{self, Attempts};
use crate::report::{refused_report, stopped_report};
use crate::state_dir::{
    Changed, INTENT_COPY, JOURNAL, Journal, REPORT, RecordError, StateDir, TABLE_COPIES,
    write_report,
};
use crate::steps::Scene;
use crate::verify::verify;

/// How the boot run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// There is no intent and nothing was begun.
    NothingArmed,
    /// Nothing was changed.
    Refused(Refusal),
    /// Something was changed; k3s stays out.
    Stopped(Stop),
    /// Every step is done; the finish unit closes the run.
    StepsDone,
}

/// The boot run.
pub fn run(host: &dyn Host, state: &StateDir, attempts: Attempts) -> Result<Ended, HostError> {
    if let Some(changed) = host.read(&state.changed())? {
        return Ok(resume(host, state, &changed, attempts));
    }
    match host.read(&state.intent())? {
        Some(sealed) => Ok(first_run(host, state, &sealed)),
        None => Ok(Ended::NothingArmed),
    }
}

fn first_run(host: &dyn Host, state: &StateDir, sealed: &[u8]) -> Ended {
    let (run, result) = match open(sealed) {
        Ok(intent) => (
            Some(intent.run_id.clone()),
            prepare(host, state, &intent, sealed),
        ),
        Err(refusal) => (None, Err(refusal)),
    };
    let (intent, survey, node) = match result {
        Ok(ready) => ready,
        Err(refusal) => return refuse(host, state, run.as_ref(), sealed, refusal),
    };
    // ORDER: `changed` is durable before the first destructive write, so that whatever
    // the power does from here on, the next boot resumes and k3s waits. Pinned by
    // `changed_is_durable_before_the_first_write`.
    if let Err(error) = mark_changed(host, state, &intent.run_id) {
        let refusal = Refusal::Host {
            what: "the point of no return cannot be recorded".to_owned(),
            found: chain(&error),
            way_out: "make room in the state directory, then plan and arm again".to_owned(),
        };
        return refuse(host, state, run.as_ref(), sealed, refusal);
    }
    finish_steps(host, state, &intent, &survey, &node, sealed)
}

/// All of a first run that may still refuse.
fn prepare(
    host: &dyn Host,
    state: &StateDir,
    intent: &Intent,
    sealed: &[u8],
) -> Result<(Intent, Survey, String), Refusal> {
    let run = &intent.run_id;
    let environment = |what: &str, error: &dyn std::error::Error| Refusal::Host {
        what: what.to_owned(),
        found: chain(error),
        way_out: "see the journal of this boot; then plan and arm again".to_owned(),
    };
    for name in [JOURNAL, REPORT] {
        let known = host
            .read(&state.run_file(run, name))
            .map_err(|e| environment("the records of this run cannot be read", &e))?;
        if known.is_some() {
            return Err(Refusal::AlreadyRun {
                run_id: run.to_string(),
            });
        }
    }
    let survey = host
        .survey()
        .map_err(|e| environment("this machine cannot be surveyed", &e))?;
    // ORDER: the attempt is recorded before the intent is judged, so that an approval
    // is spent even when the power goes during the judging: a run with a journal is
    // never begun again. Pinned by `an_approval_is_spent_by_its_first_look`.
    begin_attempt(host, state, intent, &boot_of(&survey), sealed)
        .map_err(|e| environment("the attempt cannot be recorded", &e))?;
    let disk = verify(intent, &survey, host.now())?;
    preflight(host, state, intent, disk)?;
    save_tables(host, state, intent).map_err(|e| environment("the tables cannot be saved", &e))?;
    let node = disk.node.clone();
    Ok((intent.clone(), survey, node))
}

fn boot_of(survey: &Survey) -> Option<BootId> {
    survey.host.as_ref().map(|host| host.boot_id.clone())
}

fn begin_attempt(
    host: &dyn Host,
    state: &StateDir,
    intent: &Intent,
    boot: &Option<BootId>,
    sealed: &[u8],
) -> Result<Journal, RecordError> {
    let mut journal = Journal::open(host, state, &intent.run_id)?;
    if let Some(boot_id) = boot.clone() {
        let record = Record::Attempt {
            version: journal::VERSION,
            run_id: intent.run_id.clone(),
            intent: Digest::of(sealed),
            boot_id,
            at: host.now(),
        };
        journal.append(host, record)?;
    }
    Ok(journal)
}

/// The run's own copies: of the intent, which `intent.json` does not outlive, and of
/// both tables, in the format that sgdisk restores.
fn save_tables(host: &dyn Host, state: &StateDir, intent: &Intent) -> Result<(), SaveError> {
    for step in &intent.plan.steps {
        let Step::TableWrite(write) = step else {
            continue;
        };
        let images = [write.change.old(), write.change.new_image()];
        for (image, name) in images.into_iter().zip(TABLE_COPIES) {
            let bytes = export_sgdisk(image)?;
            host.write(&state.run_file(&intent.run_id, name), &bytes)?;
        }
    }
    Ok(())
}

#[derive(Debug, thiserror::Error)]
enum SaveError {
    #[error(transparent)]
    Table(#[from] repave_plan::table::BackupFileError),
    #[error(transparent)]
    Host(#[from] HostError),
}

fn mark_changed(host: &dyn Host, state: &StateDir, run: &RunId) -> Result<(), RecordError> {
    let bytes = serde_json::to_vec(&Changed {
        run_id: run.clone(),
    })
    .map_err(|source| RecordError::Json {
        what: "the point of no return",
        source,
    })?;
    Ok(host.write(&state.changed(), &bytes)?)
}

/// Nothing was changed: disarm, put the cache file back, report, boot on.
fn refuse(
    host: &dyn Host,
    state: &StateDir,
    run: Option<&RunId>,
    sealed: &[u8],
    refusal: Refusal,
) -> Ended {
    // ORDER: disarmed before anything else that could fail, so that a refusal never
    // comes back at the next boot.
    if let Err(error) = host.remove(&state.intent()) {
        tracing::error!(err = %chain(&error), "the intent cannot be removed");
    }
    if let Some(run) = run
        && let Err(error) = restore_cache(host, state, run)
    {
        tracing::error!(err = %chain(&error), "the cache file cannot be put back");
    }
    if let Err(error) = refused_report(host, state, run, sealed, &refusal) {
        tracing::error!(err = %chain(&error), "the report cannot be written");
    }
    host.say(&format!("refused ({}): {refusal}", refusal.name()));
    host.say("nothing was changed; the node boots on with its old pool");
    host.say(&format!("way out: {}", refusal.way_out()));
    tracing::error!(refusal = refusal.name(), err = %refusal, "refused, nothing was changed");
    Ended::Refused(refusal)
}

/// Puts the cache file back. Not when the run has its report already: then its copy is
/// of a time long gone, and the pools of today are not in it.
fn restore_cache(host: &dyn Host, state: &StateDir, run: &RunId) -> Result<(), HostError> {
    match host.read(&state.run_file(run, REPORT))? {
        Some(_) => Ok(()),
        None => cache_file::restore(host, state, run),
    }
}

/// Goes on with a run that has changed something.
fn resume(host: &dyn Host, state: &StateDir, changed: &[u8], allowed: Attempts) -> Ended {
    let (intent, sealed) = match recovery::find_intent(host, state, changed) {
        Ok(found) => found,
        Err(stop) => return stopped(host, state, None, stop),
    };
    let run = intent.run_id.clone();
    let journal = match recovery::may_go_on(host, state, &intent, allowed) {
        Ok(()) => Ok(()),
        Err(stop) => Err(stop),
    };
    let ready = journal.and_then(|()| {
        let environment = |e: &dyn std::error::Error| Stop::Environment { why: chain(e) };
        let survey = host.survey().map_err(|e| environment(&e))?;
        begin_attempt(host, state, &intent, &boot_of(&survey), &sealed)
            .map_err(|e| environment(&e))?;
        cache_file::restore(host, state, &run).map_err(|e| environment(&e))?;
        crate::zfs::Zfs::new(host, &intent.programs)
            .load()
            .map_err(|e| environment(&e))?;
        let node = match find_disk(&intent.bound, &survey) {
            Ok(disk) => disk.node.clone(),
            Err(refusal) => {
                return Err(Stop::DiskLost {
                    why: refusal.to_string(),
                });
            }
        };
        Ok((survey, node))
    });
    match ready {
        Ok((survey, node)) => finish_steps(host, state, &intent, &survey, &node, &sealed),
        Err(stop) => stopped(host, state, Some((&intent, &sealed)), stop),
    }
}

fn finish_steps(
    host: &dyn Host,
    state: &StateDir,
    intent: &Intent,
    survey: &Survey,
    node: &str,
    sealed: &[u8],
) -> Ended {
    let result = Journal::open(host, state, &intent.run_id)
        .map_err(|e| Stop::Environment { why: chain(&e) })
        .and_then(|mut journal| {
            let boot = boot_of(survey).ok_or_else(|| Stop::Environment {
                why: "the id of this boot cannot be read".to_owned(),
            })?;
            let mut scene = Scene::new(host, state, intent, node);
            run_steps(&mut scene, &mut journal, &boot)
        });
    if result.is_ok() && intent.plan.mode == Mode::Recreate {
        let plan = &intent.plan;
        if let Err(error) = cache_file::forget(host, plan.pool.as_str(), plan.pool_guid) {
            tracing::warn!(err = %chain(&error), "the old pool stays in the cache file");
        }
    }
    match result {
        Ok(()) => Ended::StepsDone,
        Err(stop) => stopped(host, state, Some((intent, sealed)), stop),
    }
}

/// Says why, records it and keeps k3s out.
pub(crate) fn stopped(
    host: &dyn Host,
    state: &StateDir,
    run: Option<(&Intent, &[u8])>,
    stop: Stop,
) -> Ended {
    if let Some((intent, sealed)) = run {
        let recorded = Journal::open(host, state, &intent.run_id).and_then(|mut journal| {
            let record = Record::Stopped {
                name: stop.name().to_owned(),
                message: stop.to_string(),
                at: host.now(),
            };
            journal.append(host, record)?;
            let report = stopped_report(host, intent, sealed, journal.records(), &stop);
            write_report(host, state, &intent.run_id, &report)
        });
        if let Err(error) = recorded {
            tracing::error!(err = %chain(&error), "the stop cannot be recorded");
        }
    }
    if let Err(error) = recovery::post_notice(host, &stop) {
        tracing::error!(err = %chain(&error), "the notice cannot be posted");
    }
    host.say(&format!("STOPPED ({}): {stop}", stop.name()));
    host.say("something was changed; k3s is kept out until this run is finished");
    host.say(&format!("to go on: {}", stop.command()));
    tracing::error!(stop = stop.name(), err = %stop, "stopped, k3s is kept out");
    Ended::Stopped(stop)
}

/// Where the run's copy of a sealed intent is.
pub(crate) fn intent_copy(state: &StateDir, run: &RunId) -> std::path::PathBuf {
    state.run_file(run, INTENT_COPY)
}
