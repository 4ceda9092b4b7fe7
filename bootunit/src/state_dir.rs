//! The state directory: what is armed, what was begun, and every run's records.
//!
//! `intent.json` is armed and lives for one boot; `changed` is the point of no return
//! and the only thing that keeps k3s out; `runs/<run_id>/` is everything else, kept
//! for ever. Every write here is durable before it returns.

use std::path::{Path, PathBuf};

use repave_plan::journal::{Record, line, parse_journal};
use repave_plan::report::Report;
use repave_plan::units::RunId;
use serde::{Deserialize, Serialize};

use crate::host::{Host, HostError};

/// Where the state lives unless `--state` says otherwise.
pub const DEFAULT: &str = "/var/lib/repave";

/// The paths of one state directory.
#[derive(Debug, Clone)]
pub struct StateDir(PathBuf);

/// What is written into `changed`: which run is not finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changed {
    /// The run.
    pub run_id: RunId,
}

impl StateDir {
    /// The state directory at this path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The sealed intent of the coming boot.
    pub fn intent(&self) -> PathBuf {
        self.0.join("intent.json")
    }

    /// The point of no return.
    pub fn changed(&self) -> PathBuf {
        self.0.join("changed")
    }

    /// What is left to remove after the boot.
    pub fn cleanup(&self) -> PathBuf {
        self.0.join("cleanup.json")
    }

    /// The folder of all runs.
    pub fn runs(&self) -> PathBuf {
        self.0.join("runs")
    }

    /// The folder of one run.
    pub fn run(&self, id: &RunId) -> PathBuf {
        self.runs().join(id.as_str())
    }

    /// A file of one run.
    pub fn run_file(&self, id: &RunId, name: &str) -> PathBuf {
        self.run(id).join(name)
    }
}

/// The name of a run's journal.
pub const JOURNAL: &str = "journal.jsonl";
/// The name of a run's report.
pub const REPORT: &str = "report.json";
/// The name of a run's copy of its sealed intent.
pub const INTENT_COPY: &str = "intent.json";
/// The name of the mark that a run was taken back before it ran.
pub const DISARMED: &str = "disarmed";
/// The name of a run's copy of `/etc/zfs/zpool.cache`, as it was before the run.
pub const CACHE_COPY: &str = "zpool.cache";
/// The names of a run's copies of the partition table, in sgdisk's backup format.
pub const TABLE_COPIES: [&str; 2] = ["table-before.sgdisk", "table-after.sgdisk"];

/// Why the run's records cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The journal's content.
    #[error(transparent)]
    Journal(#[from] repave_plan::journal::JournalError),
    /// A value could not be put into JSON.
    #[error("write {what} as JSON")]
    Json {
        /// The value.
        what: &'static str,
        /// The serializer's words.
        #[source]
        source: serde_json::Error,
    },
}

/// An open journal: its records, and where the next line goes.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    records: Vec<Record>,
    len: u64,
}

impl Journal {
    /// Opens the journal of a run, empty when there is none yet. A torn last line is
    /// dropped here and cut off by the next append.
    pub fn open(host: &dyn Host, state: &StateDir, run: &RunId) -> Result<Self, RecordError> {
        let path = state.run_file(run, JOURNAL);
        let bytes = host.read(&path)?.unwrap_or_default();
        let (records, whole) = parse_journal(&bytes)?;
        Ok(Self {
            path,
            records,
            len: whole as u64,
        })
    }

    /// The records so far.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Appends a record; it is durable when this returns.
    pub fn append(&mut self, host: &dyn Host, record: Record) -> Result<(), RecordError> {
        let bytes = line(&record).map_err(|source| RecordError::Json {
            what: "a journal record",
            source,
        })?;
        host.append(&self.path, self.len, &bytes)?;
        self.len += bytes.len() as u64;
        self.records.push(record);
        Ok(())
    }
}

/// Stores a report under a run.
pub fn write_report(
    host: &dyn Host,
    state: &StateDir,
    run: &RunId,
    report: &Report,
) -> Result<(), RecordError> {
    let bytes = serde_json::to_vec_pretty(report).map_err(|source| RecordError::Json {
        what: "the report",
        source,
    })?;
    host.write(&state.run_file(run, REPORT), &bytes)?;
    Ok(())
}
