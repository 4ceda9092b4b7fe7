//! The preview: what clearing a snapshotter would take, and which images would stay.
//!
//! Works on a copy in memory, so that containerd may run and hold the database's lock.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::content::ContentStore;
use super::images::{Assessment, Checks, assess};
use super::layout::database_path;
use super::losses::{NamespaceLosses, losses};
use super::metadata::{self, MetadataError};
use crate::bolt::{self, BoltError, LoadError};

/// How often a database that does not parse is read again before it counts as damaged.
const ATTEMPTS: usize = 3;

/// What clearing would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preview {
    /// The snapshotter that would be cleared.
    pub snapshotter: String,
    /// The database.
    pub database: PathBuf,
    /// Its size in bytes.
    pub database_bytes: u64,
    /// containerd's schema version.
    pub schema: u64,
    /// What each namespace would lose.
    pub losses: Vec<NamespaceLosses>,
    /// Which images would stay.
    pub assessment: Assessment,
}

/// Why there is no preview.
#[derive(Debug, Error)]
pub enum InspectError {
    /// The database is not there or cannot be read.
    #[error("look into containerd's metadata")]
    Load(#[from] LoadError),
    /// The database is damaged.
    #[error("understand {path}")]
    Damaged {
        /// The database.
        path: PathBuf,
        /// What is wrong with it.
        source: BoltError,
    },
    /// The database is whole, its records are not understood.
    #[error("understand the records in {path}")]
    Records {
        /// The database.
        path: PathBuf,
        /// What is wrong with them.
        source: MetadataError,
    },
}

/// Looks at a containerd root.
pub fn inspect(root: &Path, snapshotter: &str, checks: &Checks) -> Result<Preview, InspectError> {
    let path = database_path(root);
    let mut attempt = 1;
    loop {
        let bytes = bolt::read_database(&path)?;
        let database = match bolt::parse(&bytes) {
            Ok(database) => database,
            Err(_) if attempt < ATTEMPTS => {
                attempt += 1;
                continue;
            }
            Err(source) => return Err(InspectError::Damaged { path, source }),
        };
        let metadata = metadata::parse(&database);
        let metadata = metadata.map_err(|source| InspectError::Records {
            path: path.clone(),
            source,
        })?;
        return Ok(Preview {
            snapshotter: snapshotter.to_owned(),
            database: path,
            database_bytes: bytes.len() as u64,
            schema: metadata.version,
            losses: losses(&metadata, snapshotter),
            assessment: assess(&metadata, &ContentStore::of(root), checks),
        });
    }
}
