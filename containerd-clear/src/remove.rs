//! Removes what was moved aside: after the boot, at leisure, without leaving its tree.
//!
//! Every directory is opened below the one before, with no links followed, no mount crossed
//! and the device compared; names are unlinked by handle. `remove_dir_all` of the standard
//! library crosses mounts (measured: it emptied what lay behind a bind mount). What cannot be
//! removed is named and the rest goes on.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::sys::stat::{fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::aside::{ASIDE_PREFIX, mount_points, places};

/// Directories held open at once; a deeper one is first renamed to the top of its tree.
const MAX_OPEN: usize = 64;
/// How many things that stay are named.
const MAX_LEFT: usize = 100;

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveReport {
    /// The directories of moved trees that were found.
    pub trees: Vec<PathBuf>,
    /// Files, links and other names unlinked.
    pub files: u64,
    /// Directories removed.
    pub directories: u64,
    /// What stays; the first hundred.
    pub left: Vec<Stays>,
    /// How much stays.
    pub left_count: u64,
}

/// Something that was not removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stays {
    /// Its path.
    pub path: PathBuf,
    /// Why.
    pub why: String,
}

/// Why nothing was removed.
#[derive(Debug, Error)]
#[error("{action} {path}")]
pub struct RemoveError {
    /// What was being done.
    pub action: &'static str,
    /// To what.
    pub path: PathBuf,
    /// What the kernel said.
    pub source: io::Error,
}

/// Removes every directory of moved trees that belongs to a containerd root.
pub fn remove_aside(root: &Path) -> Result<RemoveReport, RemoveError> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| RemoveError {
            action,
            path,
            source,
        }
    };
    let root = fs::canonicalize(root).map_err(failed("find", root))?;
    let table = Path::new("/proc/self/mountinfo");
    let mounts = mount_points().map_err(failed("read", table))?;
    let mut report = RemoveReport::default();
    for place in places(&root, &mounts) {
        let parent = File::open(&place).map_err(failed("open", &place))?;
        let entries = fs::read_dir(&place).map_err(failed("list", &place))?;
        for entry in entries {
            let entry = entry.map_err(failed("list", &place))?;
            let name = entry.file_name();
            if !name.as_bytes().starts_with(ASIDE_PREFIX.as_bytes()) {
                continue;
            }
            report.trees.push(entry.path());
            match CString::new(name.as_bytes()) {
                Ok(name) => Walker::start(parent.as_fd(), &place, &name, &mut report),
                Err(_) => report.stays(entry.path(), "its name has a zero byte"),
            }
        }
    }
    Ok(report)
}

impl RemoveReport {
    fn stays(&mut self, path: PathBuf, why: impl ToString) {
        self.left_count += 1;
        if self.left.len() < MAX_LEFT {
            let why = why.to_string();
            self.left.push(Stays { path, why });
        }
    }
}

/// A directory that is being emptied.
struct Level {
    name: CString,
    handle: OwnedFd,
    /// Names that are still to be looked at.
    names: Vec<(CString, Option<Type>)>,
}

struct Walker<'a> {
    place: &'a Path,
    device: u64,
    /// From the tree's top to the directory being emptied.
    levels: Vec<Level>,
    deep: u64,
    report: &'a mut RemoveReport,
}

impl<'a> Walker<'a> {
    fn start(parent: impl AsFd, place: &'a Path, name: &CStr, report: &'a mut RemoveReport) {
        let mut walker = Walker {
            place,
            device: 0,
            levels: Vec::new(),
            deep: 0,
            report,
        };
        let opened = fstat(parent.as_fd()).and_then(|info| {
            walker.device = info.st_dev;
            walker.open(parent.as_fd(), name)
        });
        match opened {
            Ok(level) => walker.levels.push(level),
            Err(errno) => return walker.stays(name, errno.desc()),
        }
        while walker.step() {}
        if let Err(errno) = unlinkat(parent, name, UnlinkatFlags::RemoveDir) {
            walker.stays(name, errno.desc());
        } else {
            walker.report.directories += 1;
        }
    }

    /// Handles one name of the innermost directory; false when the tree is done.
    fn step(&mut self) -> bool {
        let Some(level) = self.levels.last_mut() else {
            return false;
        };
        let Some((name, kind)) = level.names.pop() else {
            self.leave();
            return true;
        };
        let directory = match kind {
            Some(kind) => Ok(kind == Type::Directory),
            None => fstatat(&level.handle, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
                .map(|info| info.st_mode & nix::libc::S_IFMT == nix::libc::S_IFDIR),
        };
        let done = match directory {
            Ok(true) => self.enter(&name),
            Ok(false) => unlinkat(&level.handle, name.as_c_str(), UnlinkatFlags::NoRemoveDir)
                .map(|()| self.report.files += 1),
            Err(errno) => Err(errno),
        };
        if let Err(errno) = done {
            let why = match errno {
                Errno::EXDEV | Errno::EBUSY => "something is mounted there",
                other => other.desc(),
            };
            self.stays(&name, why);
        }
        true
    }

    fn enter(&mut self, name: &CStr) -> nix::Result<()> {
        if self.levels.len() < MAX_OPEN {
            let Some(level) = self.levels.last() else {
                return Ok(());
            };
            let next = self.open(level.handle.as_fd(), name)?;
            self.levels.push(next);
            return Ok(());
        }
        // Too deep to keep every level open: it goes to the top and is emptied from there.
        let [top, .., level] = &mut self.levels[..] else {
            return Ok(());
        };
        self.deep += 1;
        let to = CString::new(format!("{ASIDE_PREFIX}deep-{}", self.deep));
        let to = to.map_err(|_| Errno::EINVAL)?;
        renameat(&level.handle, name, &top.handle, to.as_c_str())?;
        top.names.push((to, Some(Type::Directory)));
        Ok(())
    }

    /// Removes the innermost directory, now that nothing in it is left to look at.
    fn leave(&mut self) {
        let Some(level) = self.levels.pop() else {
            return;
        };
        let Some(parent) = self.levels.last() else {
            return;
        };
        match unlinkat(
            &parent.handle,
            level.name.as_c_str(),
            UnlinkatFlags::RemoveDir,
        ) {
            Ok(()) => self.report.directories += 1,
            // What stays inside was named already.
            Err(Errno::ENOTEMPTY) => {}
            Err(errno) => self.stays(&level.name, errno.desc()),
        }
    }

    fn open(&self, parent: impl AsFd, name: &CStr) -> nix::Result<Level> {
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(
                ResolveFlag::RESOLVE_BENEATH
                    | ResolveFlag::RESOLVE_NO_SYMLINKS
                    | ResolveFlag::RESOLVE_NO_MAGICLINKS
                    | ResolveFlag::RESOLVE_NO_XDEV,
            );
        let handle = openat2(parent, name, how)?;
        // A btrfs subvolume is another device without being a mount.
        if fstat(&handle)?.st_dev != self.device {
            return Err(Errno::EXDEV);
        }
        let mut dir = Dir::from_fd(handle.try_clone().map_err(|_| Errno::EMFILE)?)?;
        let mut names = Vec::new();
        for entry in dir.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if name.to_bytes() != b"." && name.to_bytes() != b".." {
                names.push((name.to_owned(), entry.file_type()));
            }
        }
        Ok(Level {
            name: name.to_owned(),
            handle,
            names,
        })
    }

    fn stays(&mut self, name: &CStr, why: &str) {
        let mut path = self.place.to_owned();
        let names = self.levels.iter().map(|level| level.name.as_c_str());
        for part in names.chain([name]) {
            path.push(std::ffi::OsStr::from_bytes(part.to_bytes()));
        }
        self.report.stays(path, why);
    }
}
