//! A host's file system as a handle: `/`, a mounted host, or a folder in a test.
//!
//! Every probe of this crate names files by the path they have *on the host* and opens
//! them through a [`Root`]. The kernel resolves each path inside it (`openat2` with
//! `RESOLVE_IN_ROOT`), so an absolute symlink in the host's tree leads to the host's
//! file and never out of it. Nothing is opened for writing.

use std::fs::{File, FileType};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{FileStat, Mode, fstat};

/// The largest text file that is read, in bytes. What the kernel, systemd or containerd
/// write is far below; what is larger is not what it should be.
pub const MAX_TEXT: u64 = 16 * 1024 * 1024;

/// The most entries of one directory that are listed. `/sys/class/block` of a large
/// machine has some thousands.
pub const MAX_ENTRIES: usize = 100_000;

/// The root of a host's file system.
#[derive(Debug)]
pub struct Root {
    dir: OwnedFd,
    path: PathBuf,
}

impl Root {
    /// The root at this directory: `/` for the running system.
    pub fn at(path: impl AsRef<Path>) -> io::Result<Root> {
        let path = path.as_ref().canonicalize()?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let dir = open(&path, flags, Mode::empty())?;
        Ok(Root { dir, path })
    }

    /// Where the root is, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file for reading; `flags` are added to `O_RDONLY | O_CLOEXEC`.
    pub fn open(&self, path: &str, flags: OFlag) -> io::Result<File> {
        Ok(File::from(self.open_fd(
            path,
            OFlag::O_RDONLY | OFlag::O_NOCTTY | flags,
        )?))
    }

    /// The bytes of a file of `max` bytes at most; a larger one is `FileTooLarge`.
    pub fn read_bytes(&self, path: &str, max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        // A pipe or a terminal at this path must not hold a boot up.
        let file = self.open(path, OFlag::O_NONBLOCK)?;
        file.take(max + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > max {
            true => Err(io::ErrorKind::FileTooLarge.into()),
            false => Ok(bytes),
        }
    }

    /// The text of a file; what is not UTF-8 is `InvalidData`.
    pub fn read_text(&self, path: &str) -> io::Result<String> {
        String::from_utf8(self.read_bytes(path, MAX_TEXT)?)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.utf8_error()))
    }

    /// The text of a file that need not be there.
    pub fn read_text_if_there(&self, path: &str) -> io::Result<Option<String>> {
        if_there(self.read_text(path))
    }

    /// The names in a directory, sorted; none when it is not there.
    pub fn list(&self, path: &str) -> io::Result<Vec<String>> {
        Ok(self
            .entries(path)?
            .into_iter()
            .map(|(name, _)| name)
            .collect())
    }

    /// The names of the directories in a directory, sorted; symlinks are left out.
    pub fn list_directories(&self, path: &str) -> io::Result<Vec<String>> {
        let entries = self.entries(path)?;
        let directories = entries.into_iter().filter(|(_, kind)| kind.is_dir());
        Ok(directories.map(|(name, _)| name).collect())
    }

    /// What `stat` says of a path, symlinks followed; `None` when it is not there.
    pub fn stat(&self, path: &str) -> io::Result<Option<FileStat>> {
        if_there(
            self.open_fd(path, OFlag::O_PATH)
                .and_then(|fd| Ok(fstat(&fd)?)),
        )
    }

    /// Whether a path is there, symlinks followed.
    pub fn exists(&self, path: &str) -> io::Result<bool> {
        Ok(self.stat(path)?.is_some())
    }

    /// The path without symlinks, as the host sees it.
    pub fn canonical(&self, path: &str) -> io::Result<String> {
        self.canonical_of(&self.open_fd(path, OFlag::O_PATH)?)
    }

    /// The path without symlinks as this process can open it, for device nodes.
    pub fn reachable(&self, path: &str) -> io::Result<PathBuf> {
        Ok(self
            .path
            .join(self.canonical(path)?.trim_start_matches('/')))
    }

    /// A handle to whatever is at the path, for `statvfs` and the like.
    pub fn handle(&self, path: &str) -> io::Result<OwnedFd> {
        self.open_fd(path, OFlag::O_PATH)
    }

    /// The path of an open handle, as the host sees it.
    pub fn canonical_of(&self, handle: &OwnedFd) -> io::Result<String> {
        let full = std::fs::read_link(format!("/proc/self/fd/{}", handle.as_raw_fd()))?;
        let inside = full.strip_prefix(&self.path).map_err(|_| {
            let message = format!("{} is outside {}", full.display(), self.path.display());
            io::Error::new(io::ErrorKind::InvalidData, message)
        })?;
        match inside.to_str() {
            Some(text) => Ok(format!("/{text}")),
            None => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the path is not UTF-8",
            )),
        }
    }

    fn open_fd(&self, path: &str, flags: OFlag) -> io::Result<OwnedFd> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT);
        Ok(openat2(&self.dir, path, how)?)
    }

    fn entries(&self, path: &str) -> io::Result<Vec<(String, FileType)>> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let Some(fd) = if_there(self.open_fd(path, flags))? else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/self/fd/{}", fd.as_raw_fd()))? {
            let entry = entry?;
            let name = entry.file_name().into_string().map_err(|name| {
                let message = format!("{path} has the name {name:?}, which is not UTF-8");
                io::Error::new(io::ErrorKind::InvalidData, message)
            })?;
            if found.len() == MAX_ENTRIES {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            found.push((name, entry.file_type()?));
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }
}

/// Makes "not there" a value. `ENOTDIR` counts: a parent is there and is a file.
fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn host() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path()).unwrap();
        (dir, root)
    }

    #[test]
    fn symlinks_stay_inside() {
        let (dir, root) = host();
        fs::create_dir_all(dir.path().join("etc")).unwrap();
        fs::write(dir.path().join("etc/machine-id"), "inside").unwrap();
        // Absolute, and with more `..` than the tree is deep: both mean the host's /etc.
        symlink("/etc/machine-id", dir.path().join("abs")).unwrap();
        symlink("../../../../../etc/machine-id", dir.path().join("up")).unwrap();
        symlink("/etc/hostname", dir.path().join("outside")).unwrap();
        assert_eq!(root.read_text("/abs").unwrap(), "inside");
        assert_eq!(root.read_text("/up").unwrap(), "inside");
        assert_eq!(root.canonical("/abs").unwrap(), "/etc/machine-id");
        let reachable = root.reachable("/up").unwrap();
        assert_eq!(fs::read_to_string(reachable).unwrap(), "inside");
        assert_eq!(root.read_text_if_there("/outside").unwrap(), None);
        assert_eq!(root.read_text("/../../etc/machine-id").unwrap(), "inside");
    }

    #[test]
    fn what_is_not_there_is_a_value_and_what_is_wrong_an_error() {
        let (dir, root) = host();
        fs::write(dir.path().join("file"), [0xff, 0xfe]).unwrap();
        fs::create_dir(dir.path().join("folder")).unwrap();
        assert_eq!(root.read_text_if_there("/none").unwrap(), None);
        assert_eq!(root.read_text_if_there("/file/below").unwrap(), None);
        assert!(!root.exists("/file/below").unwrap());
        assert_eq!(root.list("/none").unwrap(), Vec::<String>::new());
        let kind = root.read_text("/file").unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::InvalidData);
        assert!(root.read_text_if_there("/folder").is_err());
        let kind = root.read_bytes("/file", 1).unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::FileTooLarge);
        assert_eq!(root.read_bytes("/file", 2).unwrap(), [0xff, 0xfe]);
    }

    #[test]
    fn listings_are_sorted_and_can_leave_links_out() {
        let (dir, root) = host();
        for name in ["b", "a"] {
            fs::create_dir_all(dir.path().join("d").join(name)).unwrap();
        }
        symlink("a", dir.path().join("d/link")).unwrap();
        assert_eq!(root.list("/d").unwrap(), ["a", "b", "link"]);
        assert_eq!(root.list_directories("/d").unwrap(), ["a", "b"]);
    }
}
