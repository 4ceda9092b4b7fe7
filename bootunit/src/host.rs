//! The world, as the boot run sees it: every effect passes this trait.
//!
//! One implementation is real ([`crate::real_host`]); the other is a model in memory
//! that the tests share. No code below `main` reads a clock, a file or a process in
//! any other way, so that a test can cut the power between any two effects.

use std::io;
use std::path::Path;
use std::time::Duration;

use repave_containerd_clear::ClearRequest;
use repave_plan::report::Cleared;
use repave_plan::step::StepState;
use repave_plan::survey::{PathFacts, Survey};
use repave_plan::units::UnixTime;
use repave_survey::host_tools::{ToolError, ToolOutput};

use crate::block_io::BlockWrite;
use crate::kernel_table::KernelView;

/// Why an effect failed.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file or folder.
    #[error("{what} {path}")]
    File {
        /// What was tried: `read`, `write`, `remove`.
        what: &'static str,
        /// The path.
        path: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A file is larger than what it should hold.
    #[error("{path} has more than {max} bytes")]
    TooLarge {
        /// The path.
        path: String,
        /// The limit.
        max: u64,
    },
    /// The survey.
    #[error("survey this machine")]
    Survey {
        /// Why.
        #[source]
        source: repave_survey::read::SurveyError,
    },
    /// A program.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A disk could not be opened or locked.
    #[error("open {node} for writing")]
    Disk {
        /// The device node.
        node: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A thing that was waited for did not come.
    #[error("{what} did not appear within {seconds} s")]
    Late {
        /// What was waited for.
        what: String,
        /// The deadline in seconds.
        seconds: u64,
    },
    /// containerd's metadata.
    #[error("clear containerd's metadata")]
    Containerd {
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A disk that is open for writing and locked against udev.
pub trait LockedDisk: BlockWrite {
    /// The kernel's view of the disk's partitions.
    fn kernel(&self) -> &dyn KernelView;
}

/// The effects of the boot run.
pub trait Host {
    /// The clock.
    fn now(&self) -> UnixTime;

    /// Milliseconds of a clock that never goes back.
    fn millis(&self) -> u64;

    /// Everything that can be seen, as far as the bound facts need it.
    fn survey(&self) -> Result<Survey, HostError>;

    /// The file system under a path.
    fn path_facts(&self, path: &str) -> Result<PathFacts, HostError>;

    /// A file's bytes; none when there is no such file.
    fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, HostError>;

    /// The names in a folder, sorted; none when there is no such folder.
    fn list(&self, path: &Path) -> Result<Option<Vec<String>>, HostError>;

    /// Replaces a file durably: written aside, synced, renamed, the folder synced.
    /// Missing folders are made.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), HostError>;

    /// Cuts a file to `keep` bytes, appends and syncs.
    fn append(&self, path: &Path, keep: u64, bytes: &[u8]) -> Result<(), HostError>;

    /// Removes a file durably; whether it was there.
    fn remove(&self, path: &Path) -> Result<bool, HostError>;

    /// Opens and locks the disk at a node.
    fn open_disk(&self, node: &str) -> Result<Box<dyn LockedDisk>, HostError>;

    /// Runs a program by its absolute path.
    fn run(&self, program: &str, args: &[&str], limit: Duration) -> Result<ToolOutput, HostError>;

    /// Waits until a path exists.
    fn wait_for(&self, path: &Path, limit: Duration) -> Result<(), HostError>;

    /// Whether containerd's metadata still speaks of lost snapshots.
    fn containerd_state(&self, request: &ClearRequest) -> Result<StepState, HostError>;

    /// Clears containerd's metadata.
    fn containerd_clear(&self, request: &ClearRequest) -> Result<Cleared, HostError>;

    /// A line for the person at the console.
    fn say(&self, line: &str);
}
