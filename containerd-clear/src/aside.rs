//! Trees moved out of the way by rename, whatever their size.
//!
//! Each goes to a directory `.repave-aside-…` on its own mount: beside containerd's root when
//! the root is not a mount point, else in the mount's own top directory. A mount is never
//! moved, and neither is a directory that has one inside: what lies around it is moved one by
//! one, and the report names what stayed. Removal is another program's (see `remove`).

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use repave_survey::mounts::parse_mountinfo;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::rewrite::sync_dir;

/// What the name of every directory of moved trees begins with.
pub const ASIDE_PREFIX: &str = ".repave-aside-";

/// A tree that was moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moved {
    /// Where it was.
    pub from: PathBuf,
    /// Where it is.
    pub to: PathBuf,
}

/// Why something was not moved.
#[derive(Debug, Error)]
#[error("{action} {path}")]
pub struct AsideError {
    /// What was being done.
    pub action: &'static str,
    /// To what.
    pub path: PathBuf,
    /// What the kernel said.
    pub source: io::Error,
}

impl AsideError {
    fn of(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> AsideError {
        let path = path.to_owned();
        move |source| AsideError {
            action,
            path,
            source,
        }
    }
}

/// What is to be moved, found by looking; nothing is changed until [`Aside::carry_out`].
#[derive(Debug)]
pub struct Aside {
    root: PathBuf,
    name: String,
    mounts: Vec<PathBuf>,
    trees: Vec<PathBuf>,
    listed: BTreeSet<PathBuf>,
    left: Vec<PathBuf>,
}

impl Aside {
    /// Begins a list for a containerd root (resolved, absolute).
    pub fn new(root: &Path, name: &str) -> Result<Aside, AsideError> {
        let table = Path::new("/proc/self/mountinfo");
        let mounts = mount_points().map_err(AsideError::of("read", table))?;
        Ok(Aside::with_mounts(root, name, mounts))
    }

    fn with_mounts(root: &Path, name: &str, mounts: Vec<PathBuf>) -> Aside {
        Aside {
            root: root.to_owned(),
            name: name.to_owned(),
            mounts,
            trees: Vec::new(),
            listed: BTreeSet::new(),
            left: Vec::new(),
        }
    }

    /// What will be moved.
    pub fn trees(&self) -> &[PathBuf] {
        &self.trees
    }

    /// Mount points that stay where they are.
    pub fn left(&self) -> &[PathBuf] {
        &self.left
    }

    /// Lists a file or a whole tree, once; nothing if it is not there.
    pub fn add(&mut self, path: &Path) -> Result<(), AsideError> {
        match fs::symlink_metadata(path) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(err) => return Err(AsideError::of("look at", path)(err)),
            Ok(_) => {}
        }
        if !self.listed.insert(path.to_owned()) {
            return Ok(());
        }
        if self.mounts.iter().any(|mount| mount == path) {
            self.left.push(path.to_owned());
        } else if self.mounts.iter().any(|mount| mount.starts_with(path)) {
            self.add_entries(path)?;
        } else {
            self.trees.push(path.to_owned());
        }
        Ok(())
    }

    /// Lists what is in a directory, so that the directory itself stays, with owner, mode and
    /// label. A directory that is a mount point stays with all that is on it.
    pub fn add_entries(&mut self, dir: &Path) -> Result<(), AsideError> {
        if self.mounts.iter().any(|mount| mount == dir) {
            self.left.push(dir.to_owned());
            return Ok(());
        }
        let entries = match fs::read_dir(dir) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(AsideError::of("list", dir))?,
        };
        for entry in entries {
            let entry = entry.map_err(AsideError::of("list", dir))?;
            let ours = entry
                .file_name()
                .to_string_lossy()
                .starts_with(ASIDE_PREFIX);
            if !ours {
                self.add(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Moves what is listed, in order, and makes it durable.
    pub fn carry_out(&self) -> Result<Vec<Moved>, AsideError> {
        let mut moved = Vec::new();
        let mut touched = BTreeSet::new();
        for from in &self.trees {
            let to = self.destination(from);
            let parent = to.parent().unwrap_or(&to);
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(parent)
                .map_err(AsideError::of("create", parent))?;
            fs::rename(from, &to).map_err(AsideError::of("move aside", from))?;
            touched.extend(from.parent().map(Path::to_owned));
            let place = self.place(from);
            let made = to.ancestors().skip(1);
            let made = made.take_while(|dir| dir.starts_with(&place));
            touched.extend(made.map(Path::to_owned));
            touched.extend(place.parent().map(Path::to_owned));
            moved.push(Moved {
                from: from.clone(),
                to,
            });
        }
        for dir in touched {
            sync_dir(&dir).map_err(AsideError::of("flush", &dir))?;
        }
        Ok(moved)
    }

    /// A free name: what was moved before a power cut stays where it is.
    fn destination(&self, from: &Path) -> PathBuf {
        let below = from.strip_prefix(&self.root).unwrap_or(from);
        let to = self.place(from).join(below);
        let taken = |path: &Path| fs::symlink_metadata(path).is_ok();
        if !taken(&to) {
            return to;
        }
        let name = to.file_name().unwrap_or_default().to_owned();
        let numbered = |number: u64| {
            let mut name = name.clone();
            name.push(format!(".{number}"));
            to.with_file_name(name)
        };
        (2..)
            .map(numbered)
            .find(|path| !taken(path))
            .unwrap_or(to.clone())
    }

    /// The directory of moved trees on the mount that a path lies on.
    fn place(&self, path: &Path) -> PathBuf {
        let parent = path.parent().unwrap_or(&self.root);
        let inside = |mount: &&PathBuf| mount.starts_with(&self.root) && parent.starts_with(mount);
        let deepest = self
            .mounts
            .iter()
            .filter(inside)
            .max_by_key(|m| m.as_os_str().len());
        match (deepest, self.root.parent()) {
            (Some(mount), _) => mount.join(&self.name),
            (None, Some(beside)) => beside.join(&self.name),
            (None, None) => self.root.join(&self.name),
        }
    }
}

/// Where directories of moved trees can be: beside the root, in it, and in each mount below.
pub(crate) fn places(root: &Path, mounts: &[PathBuf]) -> Vec<PathBuf> {
    let inside = mounts.iter().filter(|mount| mount.starts_with(root));
    let mut all: Vec<PathBuf> = root
        .parent()
        .into_iter()
        .chain([root])
        .map(Path::to_owned)
        .chain(inside.cloned())
        .collect();
    all.sort();
    all.dedup();
    all
}

/// The mount points that this process sees.
pub(crate) fn mount_points() -> io::Result<Vec<PathBuf>> {
    let text = fs::read("/proc/self/mountinfo")?;
    let mounts = parse_mountinfo(&String::from_utf8_lossy(&text)).map_err(io::Error::other)?;
    Ok(mounts.into_iter().map(|mount| mount.at.into()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"x").unwrap();
    }

    #[test]
    fn a_mount_stays_and_what_lies_around_it_goes() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("containerd");
        for file in [
            "sn/metadata.db",
            "sn/snapshots/deep/mnt/x",
            "sn/snapshots/1/x",
        ] {
            touch(&root.join(file));
        }
        let mount = root.join("sn/snapshots/deep/mnt");
        let mut aside = Aside::with_mounts(&root, ".repave-aside-t", vec![mount.clone()]);
        aside.add(&root.join("sn")).unwrap();
        assert_eq!(aside.left(), std::slice::from_ref(&mount));
        aside.carry_out().unwrap();
        assert!(mount.join("x").exists());
        let aside = dir.path().join(".repave-aside-t/sn");
        assert!(aside.join("metadata.db").exists());
        assert!(aside.join("snapshots/1/x").exists());
        assert!(!root.join("sn/metadata.db").exists());
    }

    #[test]
    fn each_tree_goes_to_its_own_mount() {
        let root = Path::new("/r/c");
        let content = root.join("content");
        let beside = Aside::with_mounts(root, ".a", vec!["/".into(), content.clone()]);
        assert_eq!(beside.place(&root.join("sn/1")), Path::new("/r/.a"));
        assert_eq!(beside.place(&content.join("blobs")), content.join(".a"));
        assert_eq!(beside.place(&content), Path::new("/r/.a"));
        let mounted = Aside::with_mounts(root, ".a", vec!["/".into(), root.into()]);
        assert_eq!(mounted.place(&root.join("sn")), root.join(".a"));
    }

    #[test]
    fn a_second_attempt_does_not_meet_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("c");
        for to in ["sn/1", "sn/1.2", "sn/1.3"] {
            touch(&root.join("sn/1"));
            let mut aside = Aside::with_mounts(&root, ".repave-aside-t", vec![]);
            aside.add_entries(&root.join("sn")).unwrap();
            let moved = aside.carry_out().unwrap();
            assert_eq!(moved[0].to, dir.path().join(".repave-aside-t").join(to));
        }
        assert!(root.join("sn").is_dir());
    }
}
