//! `repave-boot status`: what is armed, what was begun, and what to do next.
//!
//! Reads the state directory only; changes nothing and opens no disk.

use repave_plan::chain::chain;
use repave_plan::intent::open;
use repave_plan::journal::{Record, attempts};
use repave_plan::report::{EXIT_DONE, EXIT_NOT_RUN, EXIT_REFUSED, EXIT_STOPPED, Report, Verdict};
use repave_plan::step::StepName;
use repave_plan::units::{BootId, RunId};
use serde::Serialize;

use crate::host::{Host, HostError};
use crate::recovery::find_intent;
use crate::state_dir::{DISARMED, INTENT_COPY, Journal, REPORT, StateDir};

/// What the state directory says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// `idle`, `armed`, `not-run`, `stopped`, `refused` or `done`.
    pub state: &'static str,
    /// The run it is about.
    pub run_id: Option<RunId>,
    /// The step at which it stands, when it was begun.
    pub step: Option<StepName>,
    /// How often it was tried.
    pub attempts: u32,
    /// Why it is in this state.
    pub reason: Option<String>,
    /// The entry of the recovery document.
    pub entry: Option<String>,
    /// The one command that goes on from here.
    pub next: Option<String>,
}

impl Status {
    /// The exit code that goes with it.
    pub fn exit_code(&self) -> u8 {
        match self.state {
            "stopped" => EXIT_STOPPED,
            "not-run" => EXIT_NOT_RUN,
            "refused" => EXIT_REFUSED,
            _ => EXIT_DONE,
        }
    }

    /// The lines for a person.
    pub fn lines(&self) -> String {
        let mut text = format!("state: {}\n", self.state);
        let mut put = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                text.push_str(&format!("{name}: {value}\n"));
            }
        };
        put("run", self.run_id.as_ref().map(ToString::to_string));
        put("step", self.step.map(|step| step.to_string()));
        put(
            "attempts",
            (self.attempts > 0).then(|| self.attempts.to_string()),
        );
        put("reason", self.reason.clone());
        put(
            "see",
            self.entry
                .as_ref()
                .map(|entry| format!("docs/recovery.md, {entry}")),
        );
        put("to go on", self.next.clone());
        text
    }
}

/// Reads the status.
pub fn status(
    host: &dyn Host,
    state: &StateDir,
    boot: Option<&BootId>,
) -> Result<Status, HostError> {
    if let Some(changed) = host.read(&state.changed())? {
        return Ok(begun(host, state, &changed));
    }
    if let Some(sealed) = host.read(&state.intent())? {
        let (run_id, reason) = match open(&sealed) {
            Ok(intent) => (Some(intent.run_id), None),
            Err(refusal) => (None, Some(refusal.to_string())),
        };
        let next = "reboot to run it, or `repave-agent disarm`".to_owned();
        return Ok(Status {
            run_id,
            reason,
            next: Some(next),
            ..idle("armed")
        });
    }
    last_run(host, state, boot)
}

fn idle(state: &'static str) -> Status {
    Status {
        state,
        run_id: None,
        step: None,
        attempts: 0,
        reason: None,
        entry: None,
        next: None,
    }
}

fn begun(host: &dyn Host, state: &StateDir, changed: &[u8]) -> Status {
    let intent = match find_intent(host, state, changed) {
        Ok((intent, _)) => intent,
        Err(stop) => {
            return Status {
                reason: Some(stop.to_string()),
                entry: Some(stop.name().to_owned()),
                next: Some(stop.command().to_owned()),
                ..idle("stopped")
            };
        }
    };
    let mut status = Status {
        run_id: Some(intent.run_id.clone()),
        ..idle("stopped")
    };
    status.next = Some("repave-boot resume".to_owned());
    match Journal::open(host, state, &intent.run_id) {
        Ok(journal) => {
            status.attempts = attempts(journal.records());
            for record in journal.records() {
                match record {
                    Record::Begin { step, .. } => status.step = Some(*step),
                    Record::Stopped { name, message, .. } => {
                        status.reason = Some(message.clone());
                        status.entry = Some(name.clone());
                    }
                    _ => {}
                }
            }
        }
        Err(error) => status.reason = Some(chain(&error)),
    }
    if let Some(Report {
        outcome: Verdict::Stopped(stop),
        ..
    }) = read_report(host, state, &intent.run_id)
    {
        status.next = Some(stop.command().to_owned());
    }
    status
        .reason
        .get_or_insert_with(|| "the run was cut short, most likely by power".to_owned());
    status
}

fn read_report(host: &dyn Host, state: &StateDir, run: &RunId) -> Option<Report> {
    let bytes = host.read(&state.run_file(run, REPORT)).ok()??;
    serde_json::from_slice(&bytes).ok()
}

/// The newest run: run ids begin with their time, so the last name is the newest.
fn last_run(host: &dyn Host, state: &StateDir, boot: Option<&BootId>) -> Result<Status, HostError> {
    let names = host.list(&state.runs())?.unwrap_or_default();
    let Some(run) = names
        .iter()
        .filter_map(|n| n.parse::<RunId>().ok())
        .next_back()
    else {
        return Ok(idle("idle"));
    };
    let mut status = Status {
        run_id: Some(run.clone()),
        ..idle("idle")
    };
    if let Some(report) = read_report(host, state, &run) {
        status.attempts = report.attempts;
        match report.outcome {
            Verdict::Done => status.state = "done",
            Verdict::Refused(refusal) => {
                status.state = "refused";
                status.entry = Some(refusal.name().to_owned());
                status.next = Some(refusal.way_out());
                status.reason = Some(refusal.to_string());
            }
            Verdict::Stopped(stop) => status.reason = Some(stop.to_string()),
            Verdict::NotRun { why } => {
                status.state = "not-run";
                status.reason = Some(why);
            }
        }
        return Ok(status);
    }
    // Armed once, no report, and the intent is gone: the boot it was meant for came
    // and went. In the boot that armed it, it was disarmed.
    let sealed = host.read(&state.run_file(&run, INTENT_COPY))?;
    if host.read(&state.run_file(&run, DISARMED))?.is_some() {
        status.reason = Some("the last run was disarmed".to_owned());
        return Ok(status);
    }
    if let Some(Ok(intent)) = sealed.map(|sealed| open(&sealed))
        && boot != Some(&intent.armed_boot)
    {
        status.state = "not-run";
        status.reason = Some(
            "the intent was gone after the boot it was made for, and no run was recorded"
                .to_owned(),
        );
        status.next = Some("see `journalctl -u repave-boot -u repave-late`; arm again".to_owned());
    }
    Ok(status)
}
