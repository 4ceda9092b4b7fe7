//! The file effects of arming, on the host's root.
//!
//! Stage: arm. Every effect passes [`HostFiles`], so that a test can record the
//! order and fail or stop at each. [`RootFiles`] is the real one: it resolves every
//! path inside the root it was given (openat2, RESOLVE_IN_ROOT), so that a link on
//! the host never leads into the pod.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, ResolveFlags, XattrFlags, fchmod, fgetxattr, flock,
    fsetxattr, fsync, mkdirat, openat, openat2, readlinkat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::paths::parent;

/// A file effect that failed.
#[derive(Debug, thiserror::Error)]
#[error("{action} {path}")]
pub struct FileError {
    /// What was tried, as a verb.
    pub action: &'static str,
    /// The path on the host.
    pub path: String,
    /// Why.
    pub source: io::Error,
}

impl FileError {
    fn new(action: &'static str, path: &str, source: impl Into<io::Error>) -> Self {
        Self {
            action,
            path: path.to_owned(),
            source: source.into(),
        }
    }
}

/// Held as long as it lives.
#[derive(Debug)]
pub struct Lock {
    file: OwnedFd,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing alone is not enough: a child between fork and exec still has the file.
        if let Err(error) = flock(&self.file, FlockOperation::Unlock) {
            tracing::warn!(err = %error, "the lock stays until this process ends");
        }
    }
}

/// The effects and the looks that arming needs. Paths are absolute on the host.
pub trait HostFiles {
    /// Whether something has this name (a dangling link too).
    fn exists(&self, path: &str) -> Result<bool, FileError>;
    /// The content, or none where there is no such file. More than `limit` bytes is an error.
    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, FileError>;
    /// A link's target; none where there is nothing or no link.
    fn read_link(&self, path: &str) -> Result<Option<String>, FileError>;
    /// The names in a folder, sorted; none where there is no folder.
    fn list(&self, path: &str) -> Result<Vec<String>, FileError>;
    /// The SELinux label; none where the file has none.
    fn label(&self, path: &str) -> Result<Option<String>, FileError>;

    /// Makes one folder; it may be there already.
    fn make_dir(&self, path: &str) -> Result<(), FileError>;
    /// Writes a file in place, sets its mode and flushes it. Not atomic: see [`put`].
    fn write(&self, path: &str, bytes: &[u8], mode: u32) -> Result<(), FileError>;
    /// Sets the SELinux label.
    fn set_label(&self, path: &str, label: &str) -> Result<(), FileError>;
    /// Renames within one folder.
    fn rename(&self, from: &str, to: &str) -> Result<(), FileError>;
    /// Makes a link.
    fn make_link(&self, path: &str, target: &str) -> Result<(), FileError>;
    /// Flushes a folder's names.
    fn sync_dir(&self, path: &str) -> Result<(), FileError>;
    /// Removes a file or a link; it may be gone already.
    fn remove(&self, path: &str) -> Result<(), FileError>;
    /// Removes a folder if it is empty; it may be gone already.
    fn remove_empty_dir(&self, path: &str) -> Result<(), FileError>;
    /// Takes the lock file without waiting; none where another holds it.
    fn try_lock(&self, path: &str) -> Result<Option<Lock>, FileError>;
}

/// The name a file has until it is whole.
pub fn temporary(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    format!("{}/.{name}.new", parent(path))
}

/// Writes a file so that its name shows the old content or the new and never less:
/// temporary name, fsync, rename, fsync of the folder.
pub fn put(files: &dyn HostFiles, path: &str, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    let new = temporary(path);
    files.write(&new, bytes, mode)?;
    files.rename(&new, path)?;
    files.sync_dir(parent(path))
}

/// The files under a root directory: `/`, or where the pod sees the host's root.
#[derive(Debug)]
pub struct RootFiles {
    root: PathBuf,
    handle: OwnedFd,
}

impl RootFiles {
    /// Opens the root.
    pub fn open(root: &Path) -> Result<Self, FileError> {
        let shown = root.display().to_string();
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let handle = rustix::fs::open(root, flags, Mode::empty())
            .map_err(|e| FileError::new("open root", &shown, e))?;
        Ok(Self {
            root: root.to_owned(),
            handle,
        })
    }

    /// The root, as this process sees it.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn open_in(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        openat2(
            &self.handle,
            path,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT,
        )
    }

    fn dir(&self, path: &str) -> Result<OwnedFd, Errno> {
        self.open_in(path, OFlags::DIRECTORY | OFlags::RDONLY)
    }

    /// The folder a path is in, opened, and the name in it.
    fn place<'p>(&self, path: &'p str) -> Result<(OwnedFd, &'p str), Errno> {
        let name = path.rsplit('/').next().filter(|n| !n.is_empty());
        Ok((self.dir(parent(path))?, name.ok_or(Errno::INVAL)?))
    }

    fn file(&self, path: &str, flags: OFlags, mode: u32) -> Result<OwnedFd, Errno> {
        let (dir, name) = self.place(path)?;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&dir, name, flags, Mode::from_raw_mode(mode))
    }
}

/// Nothing there is an answer, not an error.
fn absent<T>(result: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error),
    }
}

const LABEL: &str = "security.selinux";

impl HostFiles for RootFiles {
    fn exists(&self, path: &str) -> Result<bool, FileError> {
        let look = || {
            let (dir, name) = self.place(path)?;
            statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)
        };
        absent(look())
            .map(|found| found.is_some())
            .map_err(|e| FileError::new("look for", path, e))
    }

    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, FileError> {
        let fail = |e: io::Error| FileError::new("read", path, e);
        let opened = absent(self.open_in(path, OFlags::RDONLY)).map_err(|e| fail(e.into()))?;
        let Some(opened) = opened else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let mut file = File::from(opened).take(limit.saturating_add(1));
        file.read_to_end(&mut bytes).map_err(fail)?;
        match bytes.len() as u64 > limit {
            true => Err(fail(io::Error::other(format!("more than {limit} bytes")))),
            false => Ok(Some(bytes)),
        }
    }

    fn read_link(&self, path: &str) -> Result<Option<String>, FileError> {
        let look = || {
            let (dir, name) = self.place(path)?;
            readlinkat(&dir, name, Vec::new())
        };
        match look() {
            Ok(target) => Ok(Some(target.to_string_lossy().into_owned())),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::INVAL) => Ok(None),
            Err(e) => Err(FileError::new("read link", path, e)),
        }
    }

    fn list(&self, path: &str) -> Result<Vec<String>, FileError> {
        let fail = |e: Errno| FileError::new("list", path, e);
        let Some(dir) = absent(self.dir(path)).map_err(fail)? else {
            return Ok(Vec::new());
        };
        let mut names = Vec::new();
        for entry in Dir::new(dir).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn label(&self, path: &str) -> Result<Option<String>, FileError> {
        let look = || {
            let file = self.file(path, OFlags::RDONLY, 0)?;
            // A label is at most a page (kernel: XATTR_SIZE_MAX is 64 KiB, contexts are far shorter).
            let mut buffer = vec![0u8; 4096];
            let len = fgetxattr(&file, LABEL, &mut buffer)?;
            buffer.truncate(len);
            Ok(buffer)
        };
        match look() {
            Ok(raw) => {
                let text = String::from_utf8_lossy(&raw);
                Ok(Some(text.trim_end_matches('\0').to_owned()))
            }
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
            Err(e) => Err(FileError::new("read label of", path, e)),
        }
    }

    fn make_dir(&self, path: &str) -> Result<(), FileError> {
        let make = || {
            let (dir, name) = self.place(path)?;
            mkdirat(&dir, name, Mode::from_raw_mode(0o755))
        };
        match make() {
            // The name may be a file: opening it as a folder tells.
            Err(Errno::EXIST) => self.dir(path).map(drop),
            other => other,
        }
        .map_err(|e| FileError::new("make folder", path, e))
    }

    fn write(&self, path: &str, bytes: &[u8], mode: u32) -> Result<(), FileError> {
        let fail = |e: io::Error| FileError::new("write", path, e);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let opened = self.file(path, flags, mode).map_err(|e| fail(e.into()))?;
        let mut file = File::from(opened);
        file.write_all(bytes).map_err(fail)?;
        // The umask of whoever arms must not decide whether systemd can execute it.
        fchmod(&file, Mode::from_raw_mode(mode)).map_err(|e| fail(e.into()))?;
        file.sync_all().map_err(fail)
    }

    fn set_label(&self, path: &str, label: &str) -> Result<(), FileError> {
        let set = || {
            let file = self.file(path, OFlags::RDONLY, 0)?;
            // The kernel stores the terminating NUL with the context (setfilecon(3)).
            let raw = [label.as_bytes(), b"\0"].concat();
            fsetxattr(&file, LABEL, &raw, XattrFlags::empty())?;
            fsync(&file)
        };
        set().map_err(|e| FileError::new("set label of", path, e))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        let swap = || {
            let (source, old) = self.place(from)?;
            let (target, new) = self.place(to)?;
            renameat(&source, old, &target, new)
        };
        swap().map_err(|e| FileError::new("rename to", to, e))
    }

    fn make_link(&self, path: &str, target: &str) -> Result<(), FileError> {
        let make = || {
            let (dir, name) = self.place(path)?;
            symlinkat(target, &dir, name)
        };
        make().map_err(|e| FileError::new("make link", path, e))
    }

    fn sync_dir(&self, path: &str) -> Result<(), FileError> {
        self.dir(path)
            .and_then(fsync)
            .map_err(|e| FileError::new("flush folder", path, e))
    }

    fn remove(&self, path: &str) -> Result<(), FileError> {
        let gone = || {
            let (dir, name) = self.place(path)?;
            unlinkat(&dir, name, AtFlags::empty())
        };
        absent(gone())
            .map(drop)
            .map_err(|e| FileError::new("remove", path, e))
    }

    fn remove_empty_dir(&self, path: &str) -> Result<(), FileError> {
        let gone = || {
            let (dir, name) = self.place(path)?;
            unlinkat(&dir, name, AtFlags::REMOVEDIR)
        };
        match absent(gone()) {
            // Somebody else's drop-ins are in it.
            Ok(_) | Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(e) => Err(FileError::new("remove folder", path, e)),
        }
    }

    fn try_lock(&self, path: &str) -> Result<Option<Lock>, FileError> {
        let take = || {
            let file = self.file(path, OFlags::RDWR | OFlags::CREATE, 0o600)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            Ok(file)
        };
        match take() {
            Ok(file) => Ok(Some(Lock { file })),
            Err(Errno::AGAIN) => Ok(None),
            Err(e) => Err(FileError::new("lock", path, e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> (tempfile::TempDir, RootFiles) {
        let dir = tempfile::tempdir().unwrap();
        let files = RootFiles::open(dir.path()).unwrap();
        (dir, files)
    }

    #[test]
    fn a_put_file_has_its_content_and_mode_and_no_temporary_name_is_left() {
        use std::os::unix::fs::PermissionsExt;
        let (dir, files) = files();
        files.make_dir("/etc").unwrap();
        files.make_dir("/etc").unwrap();
        put(&files, "/etc/a", b"one", 0o644).unwrap();
        put(&files, "/etc/a", b"2", 0o755).unwrap();
        assert_eq!(files.read("/etc/a", 9).unwrap().unwrap(), b"2");
        assert_eq!(files.list("/etc").unwrap(), ["a"]);
        let mode = std::fs::metadata(dir.path().join("etc/a"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o755);
    }

    #[test]
    fn links_on_the_host_stay_in_its_root() {
        let (dir, files) = files();
        files.make_dir("/real").unwrap();
        std::os::unix::fs::symlink("/real", dir.path().join("link")).unwrap();
        std::os::unix::fs::symlink("../../../../etc", dir.path().join("out")).unwrap();
        files.write("/link/x", b"in", 0o644).unwrap();
        assert_eq!(std::fs::read(dir.path().join("real/x")).unwrap(), b"in");
        assert_eq!(files.read("/out/passwd", 1 << 20).unwrap(), None);
    }

    #[test]
    fn a_link_in_the_place_of_a_file_is_not_written_through() {
        let (dir, files) = files();
        files.write("/victim", b"kept", 0o644).unwrap();
        std::os::unix::fs::symlink("victim", dir.path().join("name")).unwrap();
        assert!(files.write("/name", b"lost", 0o644).is_err());
        assert_eq!(files.read("/victim", 9).unwrap().unwrap(), b"kept");
        assert_eq!(files.read_link("/name").unwrap().as_deref(), Some("victim"));
    }

    #[test]
    fn absent_is_an_answer_and_too_much_is_an_error() {
        let (_dir, files) = files();
        assert_eq!(files.read("/no/such", 1).unwrap(), None);
        assert!(files.list("/no").unwrap().is_empty());
        files.remove("/no/such").unwrap();
        files.remove_empty_dir("/no").unwrap();
        files.write("/big", b"1234", 0o600).unwrap();
        let error = files.read("/big", 3).unwrap_err();
        assert_eq!(error.to_string(), "read /big");
        assert_eq!(error.source.to_string(), "more than 3 bytes");
        assert!(files.make_dir("/big").is_err());
    }

    #[test]
    fn one_holder_of_the_lock() {
        let (_dir, files) = files();
        let held = files.try_lock("/lock").unwrap();
        assert!(held.is_some());
        assert!(files.try_lock("/lock").unwrap().is_none());
        drop(held);
        assert!(files.try_lock("/lock").unwrap().is_some());
    }
}
