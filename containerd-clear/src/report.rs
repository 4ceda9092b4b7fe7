//! What clearing did, for the run's report and for people.

use std::path::PathBuf;

use repave_plan::policy::ClearMode;
use repave_plan::step::Outcome;
use repave_survey::containerd::{BadBlob, ImageVerdict, NamespaceLosses};
use serde::{Deserialize, Serialize};

use crate::aside::Moved;
use crate::clear::ClearRequest;

/// What clearing did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClearReport {
    /// The format's version: 1.
    pub version: u32,
    /// The snapshotter.
    pub snapshotter: String,
    /// The mode asked for.
    pub asked: ClearMode,
    /// The mode that was done: `all` when the database was damaged.
    pub done: ClearMode,
    /// What is wrong with the database, when it could not be read.
    pub damaged: Option<String>,
    /// containerd's schema version, when it was read.
    pub schema: Option<u64>,
    /// The records that were removed, per namespace.
    pub removed: Vec<NamespaceLosses>,
    /// Every image with its fate. Empty when the database could not be read.
    pub images: Vec<ImageVerdict>,
    /// Blob records that were removed.
    pub bad_blobs: Vec<BadBlob>,
    /// Bytes of the images that stay.
    pub bytes_kept: u64,
    /// Bytes of the images that must be pulled again, as far as known.
    pub bytes_to_pull: u64,
    /// Whether all images are lost.
    pub images_lost: bool,
    /// The trees that were moved aside.
    pub moved: Vec<Moved>,
    /// Mount points that were left as they are.
    pub left: Vec<PathBuf>,
    /// Where the old database is kept.
    pub kept_database: Option<PathBuf>,
    /// Whether anything was changed.
    pub outcome: Outcome,
}

impl ClearReport {
    pub(crate) fn of(request: &ClearRequest) -> ClearReport {
        ClearReport {
            version: 1,
            snapshotter: request.snapshotter.clone(),
            asked: request.mode,
            done: request.mode,
            damaged: None,
            schema: None,
            removed: Vec::new(),
            images: Vec::new(),
            bad_blobs: Vec::new(),
            bytes_kept: 0,
            bytes_to_pull: 0,
            images_lost: false,
            moved: Vec::new(),
            left: Vec::new(),
            kept_database: None,
            outcome: Outcome::AlreadyDone,
        }
    }
}
