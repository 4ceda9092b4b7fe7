//! `disarm`: takes back what `arm` did, the intent first.

use repave_plan::report::EXIT_DONE;
use repave_plan::units::RunId;
use repave_systemd::HostFiles;
use repave_systemd::paths::{RUNS, run_dir};

use crate::Now;
use crate::cli::RootArgs;
use crate::host::{open_host, open_root};
use crate::output::print;
use crate::run_id::shown;

/// The mark in a run's folder that it was taken back: its intent did not "not run".
pub const DISARMED: &str = "disarmed";

/// Disarms the host.
pub fn run(args: &RootArgs, now: Now) -> anyhow::Result<u8> {
    let root = open_root(&args.root, "disarming")?;
    let (files, systemd) = open_host(&root)?;
    let disarmed = repave_systemd::disarm(&files, systemd.as_ref())?;
    if disarmed.was_armed {
        let mut names = files.list(RUNS)?;
        names.retain(|name| name.parse::<RunId>().is_ok());
        if let Some(Ok(run)) = names.last().map(|name| name.parse::<RunId>()) {
            mark(&files, &run, now)?;
        }
    }
    print(match disarmed.was_armed {
        true => "disarmed: nothing will happen at the next boot\n",
        false => "nothing was armed\n",
    })?;
    Ok(EXIT_DONE)
}

/// Leaves the mark in a run's folder, where there is one.
pub fn mark(files: &dyn HostFiles, run: &RunId, now: Now) -> anyhow::Result<()> {
    let dir = run_dir(run);
    if files.exists(&dir)? {
        let text = format!("{}\n", shown(now.time));
        files.write(&format!("{dir}/{DISARMED}"), text.as_bytes(), 0o600)?;
        files.sync_dir(&dir)?;
    }
    Ok(())
}
