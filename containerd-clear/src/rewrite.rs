//! A database replaced by its edited form, in two halves: written beside, then renamed.
//!
//! [`prepare`] changes nothing that containerd looks at; only [`Prepared::commit`] does, by
//! one rename. A power cut leaves the old file or the new one, never a part of either.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use repave_survey::bolt::{self, Database};
use thiserror::Error;

use crate::encode::{EncodeError, encode};

/// The new file's name beside the old one, until it is renamed.
const NEW: &str = ".meta.db.repave";

/// Why a database was not replaced.
#[derive(Debug, Error)]
pub enum RewriteError {
    /// The edited tree has no encoding.
    #[error("encode the edited database")]
    Encode(#[from] EncodeError),
    /// The kernel said no.
    #[error("{action} {path}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// What was read back is not what was written.
    #[error("read back {path}: it differs from what was written")]
    ReadBack {
        /// The new file.
        path: PathBuf,
    },
}

/// A new file that is on disk, proved, and not yet in place.
#[derive(Debug)]
pub struct Prepared {
    new: PathBuf,
    place: PathBuf,
}

/// Writes an edited database beside `place`, with its owner and mode, and reads it back.
pub fn prepare(place: &Path, edited: &Database<'_>) -> Result<Prepared, RewriteError> {
    let new = place.with_file_name(NEW);
    let written = write_beside(place, &new, edited);
    if written.is_err() {
        // A part of a file takes room that was short perhaps; the next attempt removes it too.
        let _ = fs::remove_file(&new);
    }
    written.map(|()| Prepared {
        new,
        place: place.to_owned(),
    })
}

fn write_beside(place: &Path, new: &Path, edited: &Database<'_>) -> Result<(), RewriteError> {
    let io = |action| {
        let path = new.to_owned();
        move |source| RewriteError::Io {
            action,
            path,
            source,
        }
    };
    let bytes = encode(edited)?;
    let old = fs::symlink_metadata(place).map_err(io("look at the file replaced by"))?;
    // What a power cut left of an earlier attempt.
    match fs::remove_file(new) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(io("remove")(err)),
        _ => {}
    }
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC).bits())
        .open(new)
        .map_err(io("create"))?;
    file.write_all(&bytes).map_err(io("write"))?;
    drop(bytes);
    fchown(&file, Some(old.uid()), Some(old.gid())).map_err(io("set the owner of"))?;
    let mode = fs::Permissions::from_mode(old.mode() & 0o7777);
    file.set_permissions(mode).map_err(io("set the mode of"))?;
    file.sync_all().map_err(io("flush"))?;
    let back = fs::read(new).map_err(io("read back"))?;
    match bolt::parse(&back) {
        Ok(found) if found.root == edited.root && found.freelist == edited.freelist => Ok(()),
        _ => Err(RewriteError::ReadBack {
            path: new.to_owned(),
        }),
    }
}

impl Prepared {
    /// Puts the new file in the old one's place. The caller holds the old file's lock.
    pub fn commit(self) -> Result<(), RewriteError> {
        let io = |action| {
            let path = self.place.clone();
            move |source| RewriteError::Io {
                action,
                path,
                source,
            }
        };
        fs::rename(&self.new, &self.place).map_err(io("replace"))?;
        let dir = self.place.parent().unwrap_or(Path::new("/"));
        sync_dir(dir).map_err(io("flush the directory of"))
    }
}

/// Makes a directory's entries durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
