//! `repave-boot resume`: a person goes on where the boot run stopped.
//!
//! The same run as at boot, then what the boot would have done after it: mount, close
//! the run, start the units that were held back. An assert that failed is not tried
//! again by `Restart=`, so the program starts them and waits until they are active.

use std::time::Duration;

use repave_plan::chain::chain;
use repave_plan::intent::Intent;
use repave_plan::stop::Stop;

use crate::finish::{Finished, finish};
use crate::host::{Host, HostError};
use crate::recovery::{Attempts, find_intent};
use crate::run::{Ended, run};
use crate::state_dir::StateDir;
use crate::zfs::Zfs;

/// How long a starter may take until it is active.
const START_LIMIT: Duration = Duration::from_secs(300);
/// How long systemd may take to answer.
const ASK_LIMIT: Duration = Duration::from_secs(30);

/// How a resume by hand ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resumed {
    /// Nothing was begun, so there is nothing to go on with.
    NothingBegun,
    /// The run is closed and these units are active.
    Done {
        /// The units that were started.
        started: Vec<String>,
        /// Units that would not start, with systemd's words.
        failed: Vec<String>,
    },
    /// It stopped again.
    Stopped(Stop),
}

/// Goes on with the run that was begun.
pub fn resume(host: &dyn Host, state: &StateDir, attempts: Attempts) -> Result<Resumed, HostError> {
    let Some(changed) = host.read(&state.changed())? else {
        return Ok(Resumed::NothingBegun);
    };
    let intent = match find_intent(host, state, &changed) {
        Ok((intent, _)) => intent,
        Err(stop) => return Ok(Resumed::Stopped(stop)),
    };
    match run(host, state, attempts)? {
        Ended::StepsDone => {}
        Ended::Stopped(stop) => return Ok(Resumed::Stopped(stop)),
        // Neither can be: `changed` is there.
        Ended::NothingArmed | Ended::Refused(_) => return Ok(Resumed::NothingBegun),
    }
    if let Err(error) = Zfs::new(host, &intent.programs).mount_all() {
        host.say(&format!("zfs mount -a: {}", chain(&error)));
    }
    match finish(host, state)? {
        Finished::Done => Ok(start_held_back(host, &intent)),
        Finished::NothingBegun => Ok(Resumed::NothingBegun),
        Finished::Stopped(stop) => Ok(Resumed::Stopped(stop)),
        Finished::NotYet => Ok(Resumed::Stopped(Stop::NotReady {
            found: "not every step was done in this boot".to_owned(),
        })),
    }
}

fn start_held_back(host: &dyn Host, intent: &Intent) -> Resumed {
    let (mut started, mut failed) = (Vec::new(), Vec::new());
    let Some(systemctl) = intent.programs.get("systemctl") else {
        let units = intent.starters.join(" ");
        return Resumed::Done {
            started,
            failed: vec![format!("systemctl was not found; start by hand: {units}")],
        };
    };
    for unit in &intent.starters {
        let enabled = host
            .run(systemctl, &["is-enabled", "--quiet", unit], ASK_LIMIT)
            .is_ok_and(|output| output.code == Some(0));
        if !enabled {
            continue;
        }
        host.say(&format!("starting {unit}"));
        match host.run(systemctl, &["start", unit], START_LIMIT) {
            Ok(output) if output.code == Some(0) => started.push(unit.clone()),
            Ok(output) => failed.push(format!("{unit}: {}", output.stderr.trim())),
            Err(error) => failed.push(format!("{unit}: {}", chain(&error))),
        }
    }
    Resumed::Done { started, failed }
}
