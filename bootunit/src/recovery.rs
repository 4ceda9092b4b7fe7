//! Going on after a cut or a stop: which run it is, whether it may be tried again, and
//! what the person at the console reads meanwhile.

use std::path::Path;

use repave_plan::chain::chain;
use repave_plan::intent::{Intent, open};
use repave_plan::journal::attempts;
use repave_plan::report::{Report, Verdict};
use repave_plan::stop::Stop;
use repave_plan::units::RunId;

use crate::host::{Host, HostError};
use crate::run::intent_copy;
use crate::state_dir::{Changed, JOURNAL, Journal, REPORT, StateDir};

/// Whether the limit of attempts counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempts {
    /// The intent's limit.
    Limited,
    /// Once more, because a person says so.
    OnceMore,
}

/// The intent of the run that `changed` names, and its sealed bytes.
///
/// The run's own copy and `intent.json` are the same bytes; whichever is whole is
/// used. When `changed` itself cannot be read, the only run that has a journal and no
/// final report is meant; two of them are a doubt. The report of a stop is not final.
pub(crate) fn find_intent(
    host: &dyn Host,
    state: &StateDir,
    changed: &[u8],
) -> Result<(Intent, Vec<u8>), Stop> {
    let lost = |why: String| Stop::IntentLost { why };
    let run = match serde_json::from_slice::<Changed>(changed) {
        Ok(changed) => changed.run_id,
        Err(error) => only_open_run(host, state)
            .map_err(|e| lost(chain(&e)))?
            .ok_or_else(|| lost(format!("`changed` does not name a run ({error})")))?,
    };
    let mut reasons = Vec::new();
    for path in [intent_copy(state, &run), state.intent()] {
        let place = path.display();
        match host.read(&path) {
            Ok(Some(sealed)) => match open(&sealed) {
                Ok(intent) if intent.run_id == run => return Ok((intent, sealed)),
                Ok(other) => reasons.push(format!("{place} is of run {}", other.run_id)),
                Err(refusal) => reasons.push(format!("{place}: {refusal}")),
            },
            Ok(None) => reasons.push(format!("{place} is not there")),
            Err(error) => reasons.push(chain(&error)),
        }
    }
    Err(lost(format!("run {run}: {}", reasons.join("; "))))
}

fn only_open_run(host: &dyn Host, state: &StateDir) -> Result<Option<RunId>, HostError> {
    let mut open_runs = Vec::new();
    for name in host.list(&state.runs())?.unwrap_or_default() {
        let Ok(run) = name.parse::<RunId>() else {
            continue;
        };
        let read = |file| host.read(&state.run_file(&run, file));
        if read(JOURNAL)?.is_some() && read(REPORT)?.is_none_or(|report| !is_final(&report)) {
            open_runs.push(run);
        }
    }
    Ok(match open_runs.as_slice() {
        [run] => Some(run.clone()),
        _ => None,
    })
}

/// Whether a report closes its run: that of a stop does not, and neither does one that
/// cannot be read.
fn is_final(report: &[u8]) -> bool {
    serde_json::from_slice::<Report>(report)
        .is_ok_and(|report| !matches!(report.outcome, Verdict::Stopped(_)))
}

/// Whether the run may be tried once more.
pub(crate) fn may_go_on(
    host: &dyn Host,
    state: &StateDir,
    intent: &Intent,
    allowed: Attempts,
) -> Result<(), Stop> {
    let journal = Journal::open(host, state, &intent.run_id)
        .map_err(|e| Stop::Environment { why: chain(&e) })?;
    let used = attempts(journal.records());
    match allowed {
        Attempts::Limited if used >= intent.attempts => {
            Err(Stop::AttemptsUsedUp { attempts: used })
        }
        Attempts::Limited | Attempts::OnceMore => Ok(()),
    }
}

/// Where the notice is posted: getty and sshd show it before a login.
const NOTICE: &str = "/etc/issue.d/50-repave.issue";

/// Posts what a person who logs in must know.
pub(crate) fn post_notice(host: &dyn Host, stop: &Stop) -> Result<(), HostError> {
    let text = format!(
        "\n*** repave stopped ({}): k3s is kept out on this node. ***\n*** To see why: \
         repave-boot status     To go on: {} ***\n\n",
        stop.name(),
        stop.command()
    );
    host.write(Path::new(NOTICE), text.as_bytes())
}

/// Takes the notice down.
pub(crate) fn take_notice_down(host: &dyn Host) -> Result<(), HostError> {
    host.remove(Path::new(NOTICE)).map(drop)
}
