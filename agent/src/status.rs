//! `status`: what is armed and what became of the last run, from the state directory
//! alone. Opens no disk and changes nothing.

use anyhow::Context as _;
use repave_plan::intent::{Intent, MAX_SIZE, open};
use repave_plan::journal::{self, Record, attempts, parse_journal};
use repave_plan::report::{EXIT_DONE, EXIT_STOPPED, Report, Verdict};
use repave_plan::step::StepName;
use repave_plan::units::{BootId, RunId};
use repave_survey::host::read_boot_id;
use repave_systemd::paths::{CHANGED, INTENT, RUNS, run_dir};
use repave_systemd::{HostFiles, RootFiles};
use serde::Serialize;

use crate::cli::StatusArgs;
use crate::disarm::DISARMED;
use crate::host::open_root;
use crate::output::{print, print_json};
use crate::run_id::shown;

/// The largest report and `changed` that are read, in bytes.
const MAX_REPORT: u64 = 16 * 1024 * 1024;

/// Where a host stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Nothing is armed and nothing was ever run.
    Idle,
    /// The next boot will run.
    Armed,
    /// The last run was taken back before it ran.
    Disarmed,
    /// The intent did not run in the boot it was made for.
    NotRun,
    /// The disk was changed and the run is not closed.
    Stopped,
    /// The last run refused; nothing was changed.
    Refused,
    /// The last run is done.
    Done,
}

/// What the state directory says.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// Where the host stands.
    pub state: State,
    /// Whether `changed` is there: only this keeps containers out.
    pub changed: bool,
    /// The run it is about.
    pub run_id: Option<RunId>,
    /// The last step that was begun.
    pub step: Option<StepName>,
    /// How often the run was tried.
    pub attempts: u32,
    /// Why it is so.
    pub reason: Option<String>,
    /// The one command that goes on from here.
    pub way_out: Option<String>,
    /// The report of the run.
    pub report: Option<Report>,
}

impl Status {
    fn of(state: State) -> Status {
        Status {
            state,
            changed: false,
            run_id: None,
            step: None,
            attempts: 0,
            reason: None,
            way_out: None,
            report: None,
        }
    }

    fn exit_code(&self) -> u8 {
        match (self.state, &self.report) {
            (State::Stopped, _) => EXIT_STOPPED,
            (State::NotRun, _) => Verdict::NotRun { why: String::new() }.exit_code(),
            (State::Refused, Some(report)) => report.outcome.exit_code(),
            _ => EXIT_DONE,
        }
    }

    fn text(&self) -> String {
        let word = match self.state {
            State::Idle => "idle: nothing is armed",
            State::Armed => "armed: the next boot will run it",
            State::Disarmed => "disarmed: the last run was taken back",
            State::NotRun => "NotRun: the intent did not run in the boot it was made for",
            State::Stopped => "Stopped: the disk was changed and the run is not closed",
            State::Refused => "Refused: nothing was changed",
            State::Done => "Done",
        };
        let mut text = format!("state:    {word}\n");
        let mut line = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                text.push_str(&format!("{:10}{value}\n", format!("{name}:")));
            }
        };
        line("run", self.run_id.as_ref().map(ToString::to_string));
        line("step", self.step.map(|s| s.to_string()));
        line(
            "attempts",
            (self.attempts > 0).then(|| self.attempts.to_string()),
        );
        line("reason", self.reason.clone());
        line("way out", self.way_out.clone());
        text
    }
}

/// Prints the status.
pub fn run(args: &StatusArgs) -> anyhow::Result<u8> {
    let root = open_root(&args.host.root, "the status")?;
    let files = RootFiles::open(root.path())?;
    let boot = read_boot_id(&root)?;
    let status = read_status(&files, &boot)?;
    match args.json {
        true => print_json(&status)?,
        false => print(&status.text())?,
    }
    Ok(status.exit_code())
}

fn read_status(files: &dyn HostFiles, boot: &BootId) -> anyhow::Result<Status> {
    if let Some(changed) = files.read(CHANGED, MAX_REPORT)? {
        return stopped(files, &changed);
    }
    if let Some(sealed) = files.read(INTENT, MAX_SIZE as u64)? {
        return Ok(armed(&sealed));
    }
    match last_run(files)? {
        Some(run) => ended(files, &run, boot),
        None => Ok(Status::of(State::Idle)),
    }
}

/// Run ids begin with their time, so the last name is the newest.
fn last_run(files: &dyn HostFiles) -> anyhow::Result<Option<RunId>> {
    let names = files.list(RUNS)?;
    Ok(names.iter().filter_map(|n| n.parse().ok()).next_back())
}

fn armed(sealed: &[u8]) -> Status {
    let status = Status {
        way_out: Some("reboot, or take it back with `repave-agent disarm`".to_owned()),
        ..Status::of(State::Armed)
    };
    match open(sealed) {
        Ok(Intent {
            run_id, not_after, ..
        }) => Status {
            run_id: Some(run_id),
            reason: Some(format!("it may be acted on until {}", shown(not_after))),
            ..status
        },
        // The boot run will refuse it; it is armed all the same.
        Err(refusal) => Status {
            reason: Some(refusal.to_string()),
            way_out: Some("`repave-agent disarm`, then plan and arm again".to_owned()),
            ..status
        },
    }
}

fn stopped(files: &dyn HostFiles, changed: &[u8]) -> anyhow::Result<Status> {
    /// What the boot program writes into `changed`.
    #[derive(serde::Deserialize)]
    struct Changed {
        run_id: RunId,
    }
    let run = match serde_json::from_slice::<Changed>(changed) {
        Ok(changed) => Some(changed.run_id),
        Err(_) => last_run(files)?,
    };
    let mut status = Status {
        changed: true,
        way_out: Some("repave-boot resume".to_owned()),
        ..Status::of(State::Stopped)
    };
    let Some(run) = run else {
        status.reason = Some("the disk was changed by a run that left no records".to_owned());
        return Ok(status);
    };
    add_journal(files, &run, &mut status)?;
    if let Some(report) = read_report(files, &run)? {
        if let Verdict::Stopped(stop) = &report.outcome {
            status.reason = Some(stop.to_string());
            status.way_out = Some(stop.command().to_owned());
        }
        status.report = Some(report);
    }
    status.run_id = Some(run);
    status
        .reason
        .get_or_insert_with(|| "the run was cut short, most likely by power".to_owned());
    Ok(status)
}

fn ended(files: &dyn HostFiles, run: &RunId, boot: &BootId) -> anyhow::Result<Status> {
    let mut status = Status::of(State::Idle);
    let journal = add_journal(files, run, &mut status)?;
    status.run_id = Some(run.clone());
    if let Some(report) = read_report(files, run)? {
        let (state, reason, way_out) = match &report.outcome {
            Verdict::Done => (State::Done, None, None),
            Verdict::Refused(r) => (State::Refused, Some(r.to_string()), Some(r.way_out())),
            // The mark is gone: it was abandoned by hand.
            Verdict::Stopped(stop) => (State::Idle, Some(stop.to_string()), None),
            Verdict::NotRun { why } => (State::NotRun, Some(why.clone()), None),
        };
        status.state = state;
        status.reason = reason;
        status.way_out = way_out;
        status.report = Some(report);
        return Ok(status);
    }
    let dir = run_dir(run);
    if files.exists(&format!("{dir}/{DISARMED}"))? {
        status.state = State::Disarmed;
        return Ok(status);
    }
    let sealed = files.read(&format!("{dir}/intent.json"), MAX_SIZE as u64)?;
    let Some(Ok(intent)) = sealed.map(|sealed| open(&sealed)) else {
        return Ok(status);
    };
    if intent.armed_boot == *boot {
        status.state = State::Disarmed;
    } else if !journal {
        status.state = State::NotRun;
        status.reason =
            Some("it is gone after the boot it was made for, and no run was recorded".to_owned());
        status.way_out =
            Some("see `journalctl -b -u repave-boot -u repave-late`, then arm again".to_owned());
    }
    Ok(status)
}

/// Adds what the journal says; whether there is one.
fn add_journal(files: &dyn HostFiles, run: &RunId, to: &mut Status) -> anyhow::Result<bool> {
    let path = format!("{}/journal.jsonl", run_dir(run));
    let Some(bytes) = files.read(&path, journal::MAX_SIZE as u64)? else {
        return Ok(false);
    };
    match parse_journal(&bytes) {
        Ok((records, _)) => {
            to.attempts = attempts(&records);
            for record in records {
                match record {
                    Record::Begin { step, .. } => to.step = Some(step),
                    Record::Stopped { message, .. } => to.reason = Some(message),
                    _ => {}
                }
            }
        }
        Err(error) => to.reason = Some(format!("{path}: {error}")),
    }
    Ok(true)
}

fn read_report(files: &dyn HostFiles, run: &RunId) -> anyhow::Result<Option<Report>> {
    let path = format!("{}/report.json", run_dir(run));
    let Some(bytes) = files.read(&path, MAX_REPORT)? else {
        return Ok(None);
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .with_context(|| format!("understand {path}"))
}
