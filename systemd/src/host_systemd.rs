//! What arming asks of the host's systemd, as a trait.
//!
//! Stage: arm. [`crate::BusSystemd`] asks over D-Bus; [`crate::OfflineSystemd`]
//! does to a root directory what `systemctl --root` does. Programs of the host are
//! only ever run through here, as units of the host, never in a pod.

use std::time::Duration;

/// A program that runs once, as a transient unit.
#[derive(Debug, Clone)]
pub struct Oneshot<'a> {
    /// The unit's name, ending in `.service`; used once.
    pub unit: &'a str,
    /// The program's absolute path on the host and its arguments.
    pub argv: &'a [&'a str],
    /// Its environment, beside systemd's own.
    pub env: &'a [(&'a str, &'a str)],
    /// The file on the host that takes its output and errors; its folder is there.
    pub output: &'a str,
    /// How long it may take.
    pub deadline: Duration,
}

/// What the order check runs on.
#[derive(Debug, Clone)]
pub struct OrderCheck<'a> {
    /// The transient unit's name.
    pub unit: &'a str,
    /// The units of repave.
    pub units: &'a [&'a str],
    /// The path on the host of a unit that is in a cycle with another beside it.
    pub control: &'a str,
    /// The file on the host that takes the output.
    pub output: &'a str,
    /// How long it may take.
    pub deadline: Duration,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitState {
    /// systemd's word: `success`, `exit-code`, `signal`, `timeout` (systemd.service(5), `$SERVICE_RESULT`).
    pub result: String,
    /// The exit status, when it exited; 203 is systemd's for "could not be executed".
    pub status: Option<i32>,
}

impl ExitState {
    /// Whether it exited with 0.
    pub fn is_success(&self) -> bool {
        self.result == "success" && self.status == Some(0)
    }
}

impl std::fmt::Display for ExitState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.status {
            Some(203) => write!(
                f,
                "{} (203: the program could not be executed)",
                self.result
            ),
            Some(status) => write!(f, "{} (status {status})", self.result),
            None => f.write_str(&self.result),
        }
    }
}

/// Somebody who holds back a shutdown, as logind lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inhibitor {
    /// What is held, colon-separated: `shutdown:sleep`.
    pub what: String,
    /// The program.
    pub who: String,
    /// Its reason.
    pub why: String,
    /// `block`, `block-weak` or `delay`.
    pub mode: String,
}

impl Inhibitor {
    /// Whether it forbids a reboot (a delay only holds it for some seconds).
    pub fn blocks_reboot(&self) -> bool {
        self.mode.starts_with("block") && self.what.split(':').any(|w| w == "shutdown")
    }
}

/// A call to the host's systemd that failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The bus could not be reached.
    #[error("connect to the system bus at {address}")]
    Connect {
        /// The address.
        address: String,
        /// Why.
        source: Box<zbus::Error>,
    },
    /// The call was answered with an error, or not at all.
    #[error("call {call}")]
    Call {
        /// The method.
        call: &'static str,
        /// Why.
        source: Box<zbus::Error>,
    },
    /// A job did not end as it should.
    #[error("call {call}: the job of {unit} ended with {result:?}")]
    Job {
        /// The method.
        call: &'static str,
        /// The unit.
        unit: String,
        /// systemd's word.
        result: String,
    },
    /// A job did not end in time.
    #[error("call {call}: {unit} did not end within {seconds} s")]
    Deadline {
        /// The method.
        call: &'static str,
        /// The unit.
        unit: String,
        /// The limit.
        seconds: u64,
    },
    /// A child process could not be run (offline only).
    #[error("run {program}")]
    Run {
        /// The program.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file of the root could not be read or written (offline only).
    #[error(transparent)]
    File(#[from] crate::files::FileError),
    /// Asked of a root that is not booted.
    #[error("call {call}: no systemd is running in this root")]
    NotBooted {
        /// The method.
        call: &'static str,
    },
}

/// The host's systemd and logind.
pub trait Systemd {
    /// Whether it runs; if not, the root is one that will be booted later.
    fn is_running(&self) -> bool;
    /// Enables units by name; whether any of them said where it is wanted.
    fn enable(&self, units: &[&str]) -> Result<bool, CallError>;
    /// Removes the links that enable units.
    fn disable(&self, units: &[&str]) -> Result<(), CallError>;
    /// Reads all unit files again.
    fn reload(&self) -> Result<(), CallError>;
    /// Runs a program to its end as a transient unit.
    fn run_oneshot(&self, oneshot: &Oneshot<'_>) -> Result<ExitState, CallError>;
    /// Runs `systemd-analyze verify` over what the next boot starts and over the check's
    /// own units, its output in a file. It ends with status 1: one pair of the check's
    /// units is a cycle that it must see.
    fn verify_order(&self, check: &OrderCheck<'_>) -> Result<ExitState, CallError>;
    /// Starts a unit and waits for its job.
    fn start_and_wait(&self, unit: &str, deadline: Duration) -> Result<(), CallError>;
    /// A unit's ActiveState.
    fn active_state(&self, unit: &str) -> Result<String, CallError>;
    /// Who holds back a shutdown.
    fn inhibitors(&self) -> Result<Vec<Inhibitor>, CallError>;
    /// Reboots through logind, so that services are stopped and ostree finalizes.
    fn reboot(&self) -> Result<(), CallError>;
}
