//! Arming: everything the boot run needs, then the intent.
//!
//! Stage: arm. It takes the sealed intent, the run's files and the boot binary and
//! gives an armed host. The order is the safety: as long as the intent is not there
//! nothing will happen, and when it is there all it needs is. A failure on the way
//! takes back what was done; a kill leaves a host that is not armed.

use std::time::Duration;

use repave_plan::units::{Digest, RunId};

use crate::binary::{self, BinaryError};
use crate::disarm::{DisarmError, is_ours, take_back};
use crate::files::{FileError, HostFiles, put};
use crate::host_systemd::{CallError, ExitState, Inhibitor, Oneshot, OrderCheck, Systemd};
use crate::order_check::{OrderFault, judge, write_control};
use crate::paths::{
    ARMED_MARK, CHANGED, INTENT, LOCK, RUNS, RUNTIME, STATE, UNITS, parent, run_dir,
};
use crate::units::{ALL, UnitError, UnitFile, render};

/// The self-test reads and ends: seconds, on a busy disk.
const SELF_TEST_LIMIT: Duration = Duration::from_secs(60);
/// The analyzer reads every unit of the host and runs the generators.
const ORDER_LIMIT: Duration = Duration::from_secs(120);
/// How much of a program's output is read, and how much of it is shown.
const OUTPUT_LIMIT: u64 = 4 * 1024 * 1024;
const OUTPUT_SHOWN: usize = 2000;

/// What is armed.
#[derive(Debug, Clone)]
pub struct ArmRequest<'a> {
    /// The run; its folder must not exist.
    pub run_id: &'a RunId,
    /// The files of the run's folder: plain names and contents.
    pub run_files: &'a [(&'a str, &'a [u8])],
    /// The sealed intent; the run's folder gets a copy as `intent.json`.
    pub intent: &'a [u8],
    /// The boot binary's bytes.
    pub binary: &'a [u8],
    /// The digest the binary must have.
    pub binary_digest: Digest,
    /// The services found that start containers; the fixed list is gated anyway.
    pub starters: &'a [String],
    /// The mount point of the file system under the containerd root, where it is not
    /// the one of `/var/lib/repave`. Never one on the pool.
    pub containerd_mount: Option<&'a str>,
    /// How many datasets the run creates: the unit's timeout follows from it.
    pub datasets: usize,
    /// What follows.
    pub then: Then,
}

/// What follows arming.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Somebody else reboots.
    Wait,
    /// Reboot through logind at once.
    Reboot,
}

/// A host that is armed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Armed {
    /// The path the units execute.
    pub binary: String,
    /// Who holds back a shutdown without forbidding it; empty when no reboot was asked.
    pub inhibitors: Vec<Inhibitor>,
}

/// Why the host is not armed.
#[derive(Debug, thiserror::Error)]
#[error("arm this host: nothing is armed{}", left(.left_behind))]
pub struct ArmError {
    /// What went wrong.
    #[source]
    pub fault: Box<ArmFault>,
    /// What went wrong in taking back; the host is not armed but not clean either.
    pub left_behind: Option<Box<DisarmError>>,
}

fn left(left_behind: &Option<Box<DisarmError>>) -> String {
    match left_behind {
        None => String::new(),
        Some(error) => format!(", but taking back failed ({error}): disarm it"),
    }
}

impl ArmError {
    fn clean(fault: impl Into<ArmFault>) -> Self {
        Self {
            fault: Box::new(fault.into()),
            left_behind: None,
        }
    }
}

/// What went wrong in arming.
#[derive(Debug, thiserror::Error)]
pub enum ArmFault {
    /// A run changed the disk and is not closed.
    #[error("{CHANGED} exists: a run that changed this disk is not closed")]
    Changed,
    /// An intent is there.
    #[error("{INTENT} exists: this host is armed already; disarm it first")]
    AlreadyArmed,
    /// The run id was used.
    #[error("{path} exists: a run id is acted on once")]
    SpentRun {
        /// The run's folder.
        path: String,
    },
    /// Somebody arms or disarms right now.
    #[error("{LOCK} is held: another arm, disarm or run is at work")]
    Busy,
    /// A run file's name is not one plain name.
    #[error("{name:?} is not the name of a run file")]
    FileName {
        /// The name.
        name: String,
    },
    /// A link is where a unit must be written; an administrator masks a unit so.
    #[error("{path} is a link to {target}: the unit is masked or somebody else's")]
    Masked {
        /// The unit's path.
        path: String,
        /// Where it leads.
        target: String,
    },
    /// A unit text cannot be made.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// The binary is not in place.
    #[error(transparent)]
    Binary(#[from] BinaryError),
    /// The binary does not run on this host.
    #[error("{unit}: the self-test ended with {state}; its output: {output}")]
    SelfTest {
        /// The transient unit.
        unit: String,
        /// How it ended.
        state: ExitState,
        /// The last of its output.
        output: String,
    },
    /// EnableUnitFiles found no install information.
    #[error("call EnableUnitFiles: the units carry no install information")]
    NothingEnabled,
    /// EnableUnitFiles did not make a link.
    #[error("call EnableUnitFiles: {link} leads to {found:?}, expected {expected}")]
    Link {
        /// The link.
        link: String,
        /// What it should lead to.
        expected: String,
        /// What is there.
        found: Option<String>,
    },
    /// A file is not what was just written.
    #[error("{path} does not read back as it was written")]
    ReadBack {
        /// The file.
        path: String,
    },
    /// The order check did not run as it should.
    #[error("{unit}: systemd-analyze verify ended with {state}; its output: {output}")]
    OrderCheck {
        /// The transient unit.
        unit: String,
        /// How it ended.
        state: ExitState,
        /// The last of its output.
        output: String,
    },
    /// The next boot would have a cycle, or the check cannot see one.
    #[error(transparent)]
    Order(#[from] OrderFault),
    /// Somebody forbids a reboot.
    #[error("a reboot is forbidden by {who}: {why}")]
    Inhibited {
        /// The program.
        who: String,
        /// Its reason.
        why: String,
    },
    /// A file effect failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A call to systemd or logind failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Arms the host; on any error nothing is armed.
pub fn arm(
    files: &dyn HostFiles,
    systemd: &dyn Systemd,
    request: &ArmRequest<'_>,
) -> Result<Armed, ArmError> {
    files.make_dir(STATE).map_err(ArmError::clean)?;
    let lock = files.try_lock(LOCK).map_err(ArmError::clean)?;
    let _lock = lock.ok_or_else(|| ArmError::clean(ArmFault::Busy))?;
    refuse(files, request).map_err(ArmError::clean)?;
    prepare_and_commit(files, systemd, request).map_err(|fault| ArmError {
        fault: Box::new(fault),
        left_behind: take_back(files, systemd).err().map(Box::new),
    })
}

/// What must not be there before anything is written.
fn refuse(files: &dyn HostFiles, request: &ArmRequest<'_>) -> Result<(), ArmFault> {
    if files.exists(CHANGED)? {
        return Err(ArmFault::Changed);
    }
    if files.exists(INTENT)? {
        return Err(ArmFault::AlreadyArmed);
    }
    let path = run_dir(request.run_id);
    if files.exists(&path)? {
        return Err(ArmFault::SpentRun { path });
    }
    for (name, _) in request.run_files {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if name.is_empty() || name.starts_with('.') || !name.bytes().all(plain) {
            return Err(ArmFault::FileName {
                name: name.chars().take(80).collect(),
            });
        }
    }
    for unit in ALL {
        let path = unit.path();
        if let Some(target) = files.read_link(&path)? {
            return Err(ArmFault::Masked { path, target });
        }
    }
    Ok(())
}

// ORDER: the intent after all it needs, and the reboot after the intent. An intent
// whose gate or unit is not there would run without holding containers back, or lie
// there and fire on a later boot (tests/bus.rs, every_kill_leaves_armed_or_not_armed).
fn prepare_and_commit(
    files: &dyn HostFiles,
    systemd: &dyn Systemd,
    request: &ArmRequest<'_>,
) -> Result<Armed, ArmFault> {
    write_run_files(files, request)?;
    let binary = binary::place(files, request.binary, &request.binary_digest)?;
    prove_it_runs(files, systemd, request.run_id, &binary)?;
    if systemd.is_running() {
        // Before the units: once they are enabled, a start of their targets on this live
        // host would start them, and the run is for the next boot.
        files.make_dir(RUNTIME)?;
        files.write(ARMED_MARK, request.run_id.as_str().as_bytes(), 0o644)?;
    }
    let units = render(
        &binary,
        request.starters,
        request.containerd_mount,
        request.datasets,
    )?;
    write_units(files, &units)?;
    enable(files, systemd)?;
    systemd.reload()?;
    check_order(files, systemd, request.run_id)?;
    let inhibitors = match request.then {
        Then::Wait => Vec::new(),
        Then::Reboot => ask_inhibitors(systemd)?,
    };
    put(files, INTENT, request.intent, 0o600)?;
    if request.then == Then::Reboot {
        systemd.reboot()?;
    }
    Ok(Armed { binary, inhibitors })
}

/// The run's folder, new, with its copy of the intent: the one a damaged intent is
/// replaced by once the disk is changed.
fn write_run_files(files: &dyn HostFiles, request: &ArmRequest<'_>) -> Result<(), FileError> {
    let dir = run_dir(request.run_id);
    files.make_dir(RUNS)?;
    files.make_dir(&dir)?;
    for (name, bytes) in request.run_files {
        files.write(&format!("{dir}/{name}"), bytes, 0o600)?;
    }
    files.write(&format!("{dir}/intent.json"), request.intent, 0o600)?;
    files.sync_dir(&dir)?;
    files.sync_dir(RUNS)?;
    files.sync_dir(STATE)
}

/// Under the host's systemd, because that is who executes it at boot: the same domain,
/// the same mount flags, the same loader.
fn prove_it_runs(
    files: &dyn HostFiles,
    systemd: &dyn Systemd,
    run: &RunId,
    binary: &str,
) -> Result<(), ArmFault> {
    let unit = format!("repave-selftest-{run}.service");
    let output = format!("{}/self-test.txt", run_dir(run));
    let state = systemd.run_oneshot(&Oneshot {
        unit: &unit,
        argv: &[binary, "self-test"],
        env: &[],
        output: &output,
        deadline: SELF_TEST_LIMIT,
    })?;
    match state.is_success() {
        true => Ok(()),
        false => Err(ArmFault::SelfTest {
            unit,
            state,
            output: shown(&read_output(files, &output)?),
        }),
    }
}

fn write_units(files: &dyn HostFiles, units: &[UnitFile]) -> Result<(), ArmFault> {
    for unit in units {
        let dir = parent(&unit.path);
        if dir != UNITS {
            files.make_dir(dir)?;
        }
        put(files, &unit.path, unit.text.as_bytes(), 0o644)?;
    }
    files.sync_dir(UNITS)?;
    for unit in units {
        let found = files.read(&unit.path, OUTPUT_LIMIT)?;
        if found.as_deref() != Some(unit.text.as_bytes()) {
            return Err(ArmFault::ReadBack {
                path: unit.path.clone(),
            });
        }
    }
    Ok(())
}

/// Enables the units and believes the links, not the answer.
fn enable(files: &dyn HostFiles, systemd: &dyn Systemd) -> Result<(), ArmFault> {
    if !systemd.enable(&ALL.map(|unit| unit.name))? {
        return Err(ArmFault::NothingEnabled);
    }
    for unit in ALL {
        let link = unit.link();
        let found = files.read_link(&link)?;
        if !found.as_deref().is_some_and(|t| is_ours(t, &unit)) {
            return Err(ArmFault::Link {
                link,
                expected: unit.path(),
                found,
            });
        }
        files.sync_dir(parent(&link))?;
    }
    Ok(files.sync_dir(UNITS)?)
}

fn check_order(files: &dyn HostFiles, systemd: &dyn Systemd, run: &RunId) -> Result<(), ArmFault> {
    let dir = run_dir(run);
    let unit = format!("repave-order-{run}.service");
    let output = format!("{dir}/order.txt");
    let control = write_control(files, &dir)?;
    let state = systemd.verify_order(&OrderCheck {
        unit: &unit,
        units: &ALL.map(|unit| unit.name),
        control: &control,
        output: &output,
        deadline: ORDER_LIMIT,
    })?;
    let text = read_output(files, &output)?;
    if !matches!(state.status, Some(0 | 1)) {
        return Err(ArmFault::OrderCheck {
            unit,
            state,
            output: shown(&text),
        });
    }
    Ok(judge(&text)?)
}

fn ask_inhibitors(systemd: &dyn Systemd) -> Result<Vec<Inhibitor>, ArmFault> {
    let inhibitors = systemd.inhibitors()?;
    // Since systemd 257 a block is honoured for root too: the reboot would be refused
    // with the intent in place.
    match inhibitors.iter().find(|i| i.blocks_reboot()) {
        Some(Inhibitor { who, why, .. }) => Err(ArmFault::Inhibited {
            who: who.clone(),
            why: why.clone(),
        }),
        None => Ok(inhibitors),
    }
}

fn read_output(files: &dyn HostFiles, path: &str) -> Result<String, FileError> {
    let bytes = files.read(path, OUTPUT_LIMIT)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The end of an output: what went wrong is said last.
fn shown(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() {
        return "none".into();
    }
    let skip = text.chars().count().saturating_sub(OUTPUT_SHOWN);
    text.chars().skip(skip).collect()
}
