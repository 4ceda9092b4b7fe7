//! One run at a time: a lock on the state directory, held by the process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::libc::O_CLOEXEC;

use crate::state_dir::StateDir;

/// Why the lock is not ours.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("another repave is at work on this node ({path} is locked); wait for it to end")]
    Busy {
        /// The lock's file.
        path: String,
    },
    /// The file cannot be opened or locked.
    #[error("lock {path}; run as root, or give --state DIR")]
    File {
        /// The lock's file.
        path: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

/// Takes the lock; it is given back when the value is dropped. A node without a state
/// directory was never armed and has nothing to lock.
pub fn lock_state(state: &StateDir) -> Result<Option<Flock<File>>, LockError> {
    let path = state.path().join("lock");
    let name = || path.display().to_string();
    if !state.path().is_dir() {
        return Ok(None);
    }
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(O_CLOEXEC)
        .open(&path)
        .map_err(|source| LockError::File {
            path: name(),
            source,
        })?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Err(LockError::Busy { path: name() }),
        Err((_, errno)) => Err(LockError::File {
            path: name(),
            source: errno.into(),
        }),
    }
}
