//! The step itself: look, write the new database beside, move trees aside, rename.
//!
//! Takes a [`ClearRequest`] and a containerd that is not running. Everything that can fail
//! for want of room or by a doubt comes before the first change; the rename of the database
//! comes last, because the database is what says what there is to do. So a power cut at any
//! instant leaves either all of the question or none of it, and clearing again finishes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use repave_plan::policy::ClearMode;
use repave_plan::step::{Outcome, StepState};
use repave_survey::bolt::{self, BoltError, LoadError, read_database};
use repave_survey::containerd::{
    Assessment, Checks, ContentStore, Fate, FileState, Metadata, MetadataError, NamespaceLosses,
    Platform, Unsound, assess, database_path, image_bytes, losses, snapshotter_dir, snapshotters,
};
use thiserror::Error;

use crate::aside::{ASIDE_PREFIX, Aside, AsideError};
use crate::edit::forget;
use crate::keep::keep;
use crate::lock::{LockError, lock};
use crate::report::ClearReport;
use crate::rewrite::{RewriteError, prepare};

/// Where CRI and the runtimes keep a directory per container or sandbox, below the root; the
/// last two have a directory per namespace above it.
const STATE_DIRS: [(&str, bool); 5] = [
    ("io.containerd.grpc.v1.cri/containers", false),
    ("io.containerd.grpc.v1.cri/sandboxes", false),
    ("io.containerd.runtime.v2.task", true),
    ("io.containerd.runtime.v1.linux", true),
    ("io.containerd.sandbox.controller.v1.shim", true),
];

/// What is to be cleared, and where things are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClearRequest {
    /// containerd's root directory.
    pub root: PathBuf,
    /// The snapshotter whose snapshots are lost.
    pub snapshotter: String,
    /// How much is cleared.
    pub mode: ClearMode,
    /// Where the old database is kept: the run's own directory.
    pub keep_dir: PathBuf,
    /// The directory that takes the moved trees; begins with [`ASIDE_PREFIX`].
    pub aside_name: String,
    /// Images whose layers are read and hashed.
    pub pinned: Vec<String>,
    /// Whether the layers of every image are.
    pub verify: bool,
}

/// Why clearing did not end.
#[derive(Debug, Error)]
pub enum ClearError {
    /// The request makes no sense.
    #[error("take {value:?} for {field}: expected {expected}")]
    BadRequest {
        /// The field of the request.
        field: &'static str,
        /// What it holds.
        value: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// containerd runs.
    #[error("have containerd's database for ourselves")]
    Lock(#[from] LockError),
    /// The records are not understood.
    #[error("understand the records in {path}")]
    Records {
        /// The database.
        path: PathBuf,
        /// Why not.
        source: MetadataError,
    },
    /// The old database could not be kept.
    #[error("keep the old database in {path}")]
    Keep {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The new database could not be made.
    #[error("write containerd's database anew")]
    Rewrite(#[from] RewriteError),
    /// Something could not be found out or moved.
    #[error("move trees aside")]
    Aside(#[from] AsideError),
    /// Something failed after the first change; clearing again goes on.
    #[error("finish clearing containerd")]
    Unfinished(#[source] Box<ClearError>),
}

impl ClearError {
    /// Whether something was changed before it failed.
    pub fn changed(&self) -> bool {
        matches!(self, ClearError::Unfinished(_))
    }
}

/// What the database is.
enum Content {
    Absent,
    Whole(Vec<u8>),
    /// There, but not to be read.
    Damaged(String),
}

/// What the disk says: `After` when nothing is left to clear. Changes nothing and takes no lock.
pub fn state(request: &ClearRequest) -> Result<StepState, ClearError> {
    if request.mode == ClearMode::None {
        return Ok(StepState::After);
    }
    let root = check(request)?;
    let everything = |root: &Path| -> Result<StepState, ClearError> {
        let list = list_everything(request, root)?;
        Ok(before_if(!list.trees().is_empty()))
    };
    if request.mode == ClearMode::All {
        return everything(&root);
    }
    match load(&root) {
        Content::Absent => {
            let list = list_lost(request, &root, &[], None)?;
            Ok(before_if(!list.trees().is_empty()))
        }
        Content::Damaged(..) => Ok(StepState::Before),
        Content::Whole(bytes) => match understand(&root, &bytes)? {
            Understood::Damaged(_) => Ok(StepState::Before),
            Understood::Records(_, metadata) => {
                let losses = losses(&metadata, &request.snapshotter);
                let list = list_lost(request, &root, &losses, None)?;
                Ok(before_if(!losses.is_empty() || !list.trees().is_empty()))
            }
        },
    }
}

fn before_if(something: bool) -> StepState {
    match something {
        true => StepState::Before,
        false => StepState::After,
    }
}

/// Clears, whatever an earlier attempt has done already.
pub fn clear(request: &ClearRequest) -> Result<ClearReport, ClearError> {
    let mut report = ClearReport::of(request);
    if request.mode == ClearMode::None {
        return Ok(report);
    }
    let root = check(request)?;
    let (_lock, content) = match lock(&database_path(&root)) {
        Ok(lock) => (lock, load(&root)),
        // A file that cannot even be opened is damaged; containerd cannot hold it either.
        Err(err @ LockError::Io { .. }) => (None, Content::Damaged(chain(&err))),
        Err(err) => return Err(err.into()),
    };
    match (&content, request.mode) {
        (Content::Whole(bytes), ClearMode::Snapshots) => match understand(&root, bytes)? {
            Understood::Records(database, metadata) => {
                clear_snapshots(request, &root, bytes, database, &metadata, &mut report)?;
            }
            Understood::Damaged(why) => {
                report.damaged = Some(why);
                clear_all(request, &root, Some(bytes), &mut report)?;
            }
        },
        (Content::Whole(bytes), _) => {
            // Only for the report: what is asked for needs no understanding.
            if let Ok(Understood::Records(_, metadata)) = understand(&root, bytes) {
                report.schema = Some(metadata.version);
                report.removed = losses(&metadata, &request.snapshotter);
                report.take(cleared(assess(
                    &metadata,
                    &ContentStore::of(&root),
                    &checks(request),
                )));
            }
            clear_all(request, &root, Some(bytes), &mut report)?;
        }
        (Content::Damaged(why), _) => {
            report.damaged = Some(why.clone());
            clear_all(request, &root, None, &mut report)?;
        }
        (Content::Absent, ClearMode::Snapshots) => {
            let list = list_lost(request, &root, &[], None)?;
            move_aside(&list, &mut report)?;
        }
        (Content::Absent, _) => clear_all(request, &root, None, &mut report)?,
    }
    Ok(report)
}

/// The resolved root of a request that makes sense.
fn check(request: &ClearRequest) -> Result<PathBuf, ClearError> {
    let bad = |field, value: &str, expected| ClearError::BadRequest {
        field,
        value: value.to_owned(),
        expected,
    };
    let snapshotter = request.snapshotter.as_str();
    if !is_name(snapshotter) {
        return Err(bad("snapshotter", snapshotter, "a snapshotter's name"));
    }
    let aside = request.aside_name.as_str();
    if !aside.strip_prefix(ASIDE_PREFIX).is_some_and(is_name) {
        return Err(bad("aside_name", aside, ".repave-aside- and a run id"));
    }
    let root = fs::canonicalize(&request.root)
        .ok()
        .filter(|root| root.is_dir());
    // The file system's own root would make every directory of the machine "below" it.
    let root = root.filter(|root| root.parent().is_some());
    root.ok_or_else(|| {
        bad(
            "root",
            &request.root.to_string_lossy(),
            "containerd's root directory",
        )
    })
}

/// Letters, digits, and `.`, `_`, `-` but not in front.
fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphanumeric())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn checks(request: &ClearRequest) -> Checks {
    Checks {
        pinned: request.pinned.clone(),
        verify: request.verify,
        platform: Platform::here(),
    }
}

fn load(root: &Path) -> Content {
    match read_database(&database_path(root)) {
        Ok(bytes) => Content::Whole(bytes),
        Err(LoadError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Content::Absent
        }
        Err(err) => Content::Damaged(chain(&err)),
    }
}

enum Understood<'a> {
    Records(bolt::Database<'a>, Metadata),
    Damaged(String),
}

/// Reads the records. A schema that is not known is an error, not damage: its images are whole,
/// and clearing all of them is for a person to ask.
fn understand<'a>(root: &Path, bytes: &'a [u8]) -> Result<Understood<'a>, ClearError> {
    let database = match bolt::parse(bytes) {
        Ok(database) => database,
        Err(err) => return Ok(Understood::Damaged(chain::<BoltError>(&err))),
    };
    match repave_survey::containerd::parse(&database) {
        Ok(metadata) => Ok(Understood::Records(database, metadata)),
        Err(err @ MetadataError::NotText { .. }) => Ok(Understood::Damaged(chain(&err))),
        Err(source) => Err(ClearError::Records {
            path: database_path(root),
            source,
        }),
    }
}

fn clear_snapshots(
    request: &ClearRequest,
    root: &Path,
    bytes: &[u8],
    mut database: bolt::Database<'_>,
    metadata: &Metadata,
    report: &mut ClearReport,
) -> Result<(), ClearError> {
    let losses = losses(metadata, &request.snapshotter);
    let store = ContentStore::of(root);
    let assessment = assess(metadata, &store, &checks(request));
    let dropped = |fate: &Fate| matches!(fate, Fate::Dropped { .. });
    let edited = !losses.is_empty()
        || !assessment.bad_blobs.is_empty()
        || assessment.images.iter().any(|image| dropped(&image.fate));
    let list = list_lost(request, root, &losses, Some((&store, &assessment)))?;
    report.schema = Some(metadata.version);
    report.removed = losses.clone();
    report.take(assessment.clone());
    let prepared = if edited {
        forget(
            &mut database.root,
            &request.snapshotter,
            &losses,
            &assessment,
        );
        report.kept_database = Some(keep_copy(request, bytes)?);
        Some(prepare(&database_path(root), &database)?)
    } else {
        None
    };
    move_aside(&list, report)?;
    if let Some(prepared) = prepared {
        prepared
            .commit()
            .map_err(|err| ClearError::Unfinished(Box::new(err.into())))?;
        report.outcome = Outcome::Changed;
    }
    Ok(())
}

fn clear_all(
    request: &ClearRequest,
    root: &Path,
    bytes: Option<&[u8]>,
    report: &mut ClearReport,
) -> Result<(), ClearError> {
    let list = list_everything(request, root)?;
    report.done = ClearMode::All;
    report.images_lost = !list.trees().is_empty();
    if let Some(bytes) = bytes {
        // The database itself is moved, not destroyed: a second copy is a convenience, and a
        // full disk must not keep a damaged database in the boot's way.
        report.kept_database = keep_copy(request, bytes).ok();
    }
    move_aside(&list, report)
}

fn keep_copy(request: &ClearRequest, bytes: &[u8]) -> Result<PathBuf, ClearError> {
    keep(&request.keep_dir, bytes).map_err(|source| ClearError::Keep {
        path: request.keep_dir.clone(),
        source,
    })
}

fn move_aside(list: &Aside, report: &mut ClearReport) -> Result<(), ClearError> {
    report.left = list.left().to_vec();
    if list.trees().is_empty() {
        return Ok(());
    }
    let moved = list.carry_out();
    report.moved = moved.map_err(|err| ClearError::Unfinished(Box::new(err.into())))?;
    report.outcome = Outcome::Changed;
    Ok(())
}

/// What goes with a snapshotter: what is in its directory outside the lost pool, the state of
/// its containers, and files of blobs that are not what they should be. A rotten blob must go:
/// containerd takes a file that is there for the blob, and a pull would not replace it
/// (`plugins/content/local/store.go`, Writer).
fn list_lost(
    request: &ClearRequest,
    root: &Path,
    losses: &[NamespaceLosses],
    assessment: Option<(&ContentStore, &Assessment)>,
) -> Result<Aside, ClearError> {
    let mut list = Aside::new(root, &request.aside_name)?;
    list.add_entries(&snapshotter_dir(root, &request.snapshotter))?;
    for loss in losses {
        let ids = loss.containers.iter().chain(&loss.sandboxes);
        // containerd's own rule for identifiers (`pkg/identifiers`); nothing else is a path here.
        for id in ids.filter(|id| is_name(id) && is_name(&loss.namespace)) {
            for (dir, by_namespace) in STATE_DIRS {
                let dir = root.join(dir);
                list.add(&match by_namespace {
                    true => dir.join(&loss.namespace).join(id),
                    false => dir.join(id),
                })?;
            }
        }
    }
    if let Some((store, assessment)) = assessment {
        for blob in &assessment.bad_blobs {
            let file = store.path(&blob.digest);
            match file.filter(|_| store.file(&blob.digest) != FileState::Missing) {
                // A record without a size says nothing about the file.
                Some(file) if blob.why != Unsound::Incomplete => list.add(&file)?,
                _ => {}
            }
        }
    }
    Ok(list)
}

/// Everything that hangs on the database: content, every snapshotter, the containers' state,
/// and the database last.
fn list_everything(request: &ClearRequest, root: &Path) -> Result<Aside, ClearError> {
    let mut list = Aside::new(root, &request.aside_name)?;
    let names = snapshotters(root).map_err(|source| AsideError {
        action: "list",
        path: root.to_owned(),
        source,
    })?;
    for name in names {
        list.add_entries(&snapshotter_dir(root, &name))?;
    }
    for (dir, _) in STATE_DIRS {
        list.add_entries(&root.join(dir))?;
    }
    for dir in ["blobs", "ingest"] {
        list.add(&root.join(repave_survey::containerd::CONTENT).join(dir))?;
    }
    list.add(&database_path(root))?;
    Ok(list)
}

/// The assessment as it is when everything goes: whole images too.
fn cleared(mut assessment: Assessment) -> Assessment {
    for image in &mut assessment.images {
        if image.fate == Fate::Kept {
            image.fate = Fate::Dropped {
                why: Unsound::Cleared,
            };
        }
    }
    assessment
}

fn chain<E: std::error::Error>(err: &E) -> String {
    let mut text = err.to_string();
    let mut next = err.source();
    while let Some(err) = next {
        text.push_str(": ");
        text.push_str(&err.to_string());
        next = err.source();
    }
    text
}

impl ClearReport {
    fn take(&mut self, assessment: Assessment) {
        self.bytes_kept = image_bytes(&assessment.images, true);
        self.bytes_to_pull = image_bytes(&assessment.images, false);
        self.images = assessment.images;
        self.bad_blobs = assessment.bad_blobs;
    }
}
