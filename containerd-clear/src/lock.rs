//! Bolt's lock on a database: taken before anything is changed, never waited for.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg, OFlag};
use thiserror::Error;

/// Why the lock was not taken.
#[derive(Debug, Error)]
pub enum LockError {
    /// Somebody holds it: containerd runs.
    #[error(
        "lock {path}: {} holds it; stop k3s and containerd (k3s-killall.sh, or systemctl stop \
         k3s-agent and kill the containerd that stays), or let the next boot do it: \
         repave-agent arm --clear-only",
        holder_text(.holders)
    )]
    Held {
        /// The database.
        path: PathBuf,
        /// The processes that hold it.
        holders: Vec<u32>,
    },
    /// The kernel said no.
    #[error("lock {path}")]
    Io {
        /// The database.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

fn holder_text(holders: &[u32]) -> String {
    let pids: Vec<String> = holders.iter().map(|pid| format!("pid {pid}")).collect();
    match pids.len() {
        0 => "a process outside this PID namespace".to_owned(),
        _ => pids.join(", "),
    }
}

/// Takes the lock that bolt takes; `None` if there is no file to lock.
pub fn lock(path: &Path) -> Result<Option<Flock<File>>, LockError> {
    let io = |source| LockError::Io {
        path: path.to_owned(),
        source,
    };
    let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let opened = File::options()
        .read(true)
        .custom_flags(flags.bits())
        .open(path);
    let file = match opened {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(io)?,
    };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((file, nix::errno::Errno::EWOULDBLOCK)) => Err(LockError::Held {
            path: path.to_owned(),
            holders: holders(path, &file.metadata().map_err(io)?),
        }),
        Err((_, errno)) => Err(io(errno.into())),
    }
}

/// The processes that hold a lock on a file: by `/proc/locks`, else those that have it open
/// (on file systems whose lock table shows another device than `stat` does).
fn holders(path: &Path, info: &fs::Metadata) -> Vec<u32> {
    let table = fs::read_to_string("/proc/locks").unwrap_or_default();
    let (major, minor) = (
        nix::sys::stat::major(info.dev()),
        nix::sys::stat::minor(info.dev()),
    );
    let mut pids = parse_locks(&table, &format!("{major:02x}:{minor:02x}:{}", info.ino()));
    if pids.is_empty() {
        pids = openers(path);
    }
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// The pids of `/proc/locks` (proc(5)) that hold a flock on this device and inode.
fn parse_locks(table: &str, file: &str) -> Vec<u32> {
    let holder = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        match fields[..] {
            // A waiter's line has "->" in the second place and does not match.
            [_, "FLOCK", _, _, pid, at, ..] if at == file => pid.parse().ok(),
            _ => None,
        }
    };
    table
        .lines()
        .filter_map(holder)
        .filter(|pid| *pid > 0)
        .collect()
}

/// The other processes that have the file open.
fn openers(path: &Path) -> Vec<u32> {
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    let has_it = |process: &fs::DirEntry| {
        entries(&process.path().join("fd"))
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|target| target == path))
    };
    let pid = |process: fs::DirEntry| process.file_name().to_str()?.parse::<u32>().ok();
    entries(Path::new("/proc"))
        .filter(has_it)
        .filter_map(pid)
        .filter(|pid| *pid != std::process::id())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_names_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("meta.db");
        assert!(lock(&path).unwrap().is_none(), "no file, no lock");
        fs::write(&path, b"x").unwrap();
        let held = lock(&path).unwrap().unwrap();
        match lock(&path) {
            Err(LockError::Held { holders, .. }) => assert_eq!(holders, [std::process::id()]),
            other => panic!("{other:?}"),
        }
        drop(held);
        assert!(lock(&path).unwrap().is_some());
    }

    #[test]
    fn the_lock_table_is_matched_by_device_and_inode() {
        // /proc/locks while containerd 1.7.24 held its database (pid 1000, inode 131).
        let table = "1: POSIX  ADVISORY  WRITE 77 fd:00:131 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 1000 fd:00:131 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 1001 fd:00:131 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 1002 fd:00:1310 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 0 fd:00:131 0 EOF\n";
        assert_eq!(parse_locks(table, "fd:00:131"), [1000]);
    }
}
