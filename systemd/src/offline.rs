//! A root directory without a running systemd.
//!
//! Stage: arm. Makes and removes the links that `systemctl --root=DIR` would, and runs
//! programs as children of this process. The only file of the crate that starts a
//! process; what needs a booted host (reboot, inhibitors, jobs) is an error.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::files::{FileError, HostFiles, RootFiles};
use crate::host_systemd::{CallError, ExitState, Inhibitor, Oneshot, OrderCheck, Systemd};
use crate::order_check::ENVIRONMENT;
use crate::paths::parent;
use crate::units::{ALL, Unit};

/// The analyzer of the machine this runs on, not of the root.
const ANALYZE: &str = "/usr/bin/systemd-analyze";

/// The root of a host that is not booted.
#[derive(Debug)]
pub struct OfflineSystemd {
    root: PathBuf,
    files: RootFiles,
}

impl OfflineSystemd {
    /// Opens the root directory.
    pub fn open(root: &Path) -> Result<Self, FileError> {
        Ok(Self {
            root: root.to_owned(),
            files: RootFiles::open(root)?,
        })
    }

    fn here(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn link(&self, unit: &Unit) -> Result<(), FileError> {
        let link = unit.link();
        let target = unit.path();
        if self.files.read_link(&link)?.as_deref() == Some(&target) {
            return Ok(());
        }
        self.files.make_dir(parent(&link))?;
        self.files.remove(&link)?;
        self.files.make_link(&link, &target)?;
        self.files.sync_dir(parent(&link))
    }
}

/// Runs a program with nothing but the given environment, its output in `output`.
fn run_child(
    program: &Path,
    args: &[&str],
    env: &[(&str, &str)],
    output: std::fs::File,
    deadline: Duration,
) -> Result<ExitState, CallError> {
    let fail = |source| CallError::Run {
        program: program.display().to_string(),
        source,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(fail)?;
    let errors = output.try_clone().map_err(fail)?;
    let mut command = tokio::process::Command::new(program);
    command
        .args(args)
        .env_clear()
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .kill_on_drop(true);
    runtime.block_on(async {
        let mut child = command.spawn().map_err(fail)?;
        let Ok(ended) = tokio::time::timeout(deadline, child.wait()).await else {
            child.kill().await.map_err(fail)?;
            return Ok(ExitState {
                result: "timeout".into(),
                status: None,
            });
        };
        let status = ended.map_err(fail)?.code();
        let result = match status {
            Some(0) => "success",
            Some(_) => "exit-code",
            None => "signal",
        };
        Ok(ExitState {
            result: result.into(),
            status,
        })
    })
}

impl Systemd for OfflineSystemd {
    fn is_running(&self) -> bool {
        false
    }

    fn enable(&self, units: &[&str]) -> Result<bool, CallError> {
        for unit in ALL.iter().filter(|u| units.contains(&u.name)) {
            self.link(unit)?;
        }
        Ok(units.iter().all(|name| ALL.iter().any(|u| u.name == *name)))
    }

    fn disable(&self, units: &[&str]) -> Result<(), CallError> {
        for unit in ALL.iter().filter(|u| units.contains(&u.name)) {
            self.files.remove(&unit.link())?;
        }
        Ok(())
    }

    fn reload(&self) -> Result<(), CallError> {
        Ok(())
    }

    fn run_oneshot(&self, oneshot: &Oneshot<'_>) -> Result<ExitState, CallError> {
        let (program, args) = oneshot.argv.split_first().unwrap_or((&"", &[]));
        self.files.write(oneshot.output, b"", 0o600)?;
        let path = self.here(oneshot.output);
        let output = std::fs::File::create(&path).map_err(|source| CallError::Run {
            program: (*program).to_owned(),
            source,
        })?;
        run_child(
            &self.here(program),
            args,
            oneshot.env,
            output,
            oneshot.deadline,
        )
    }

    fn verify_order(&self, check: &OrderCheck<'_>) -> Result<ExitState, CallError> {
        let fail = |source| CallError::Run {
            program: ANALYZE.into(),
            source,
        };
        self.files.write(check.output, b"", 0o600)?;
        let output = std::fs::File::create(self.here(check.output)).map_err(fail)?;
        let again = output.try_clone().map_err(fail)?;
        // The root's generators are programs of another system: their mounts are not seen here.
        let root = format!("--root={}", self.root.display());
        let mut args = vec!["verify", &root, "--man=no", "default.target"];
        args.extend(check.units);
        let seen = run_child(
            Path::new(ANALYZE),
            &args,
            &ENVIRONMENT,
            output,
            check.deadline,
        )?;
        if !matches!(seen.status, Some(0 | 1)) {
            return Ok(seen);
        }
        let control = self.here(check.control).display().to_string();
        let args = ["verify", "--man=no", &control];
        run_child(
            Path::new(ANALYZE),
            &args,
            &ENVIRONMENT,
            again,
            check.deadline,
        )
    }

    fn start_and_wait(&self, _unit: &str, _deadline: Duration) -> Result<(), CallError> {
        Err(CallError::NotBooted { call: "StartUnit" })
    }

    fn active_state(&self, _unit: &str) -> Result<String, CallError> {
        Err(CallError::NotBooted { call: "LoadUnit" })
    }

    fn inhibitors(&self) -> Result<Vec<Inhibitor>, CallError> {
        Err(CallError::NotBooted {
            call: "ListInhibitors",
        })
    }

    fn reboot(&self) -> Result<(), CallError> {
        Err(CallError::NotBooted { call: "Reboot" })
    }
}
