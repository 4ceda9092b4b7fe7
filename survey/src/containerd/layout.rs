//! Where containerd keeps things under its root directory.

use std::io;
use std::path::{Path, PathBuf};

/// The metadata database, below the root.
pub const DATABASE: &str = "io.containerd.metadata.v1.bolt/meta.db";
/// The content store, below the root.
pub const CONTENT: &str = "io.containerd.content.v1.content";
/// What every snapshotter's directory begins with.
const SNAPSHOTTER: &str = "io.containerd.snapshotter.v1.";

/// The metadata database of a containerd root.
pub fn database_path(root: &Path) -> PathBuf {
    root.join(DATABASE)
}

/// The directory of a snapshotter.
pub fn snapshotter_dir(root: &Path, snapshotter: &str) -> PathBuf {
    root.join(format!("{SNAPSHOTTER}{snapshotter}"))
}

/// The snapshotters that have a directory under the root, by name, in order.
pub fn snapshotters(root: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in root.read_dir()? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name
            .to_str()
            .and_then(|name| name.strip_prefix(SNAPSHOTTER));
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The snapshotters whose directory lies on one of these mount points, or has one of them
/// inside: those that die with the datasets mounted there. Pure.
pub fn lost_snapshotters(root: &Path, names: &[String], mounts: &[PathBuf]) -> Vec<String> {
    let lost = |name: &&String| {
        let dir = snapshotter_dir(root, name);
        let touches = |mount: &PathBuf| dir.starts_with(mount) || mount.starts_with(&dir);
        mounts.iter().any(touches)
    };
    names.iter().filter(lost).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshotter_is_lost_with_the_dataset_it_lies_on() {
        let root = Path::new("/var/lib/rancher/k3s/agent/containerd");
        let names: Vec<String> = ["native", "overlayfs", "zfs"].map(String::from).into();
        let dir = |name| snapshotter_dir(root, name);
        let cases: [(Vec<PathBuf>, &[&str]); 6] = [
            (vec![dir("zfs")], &["zfs"]),
            (vec![dir("overlayfs")], &["overlayfs"]),
            (vec![dir("native").join("snapshots")], &["native"]),
            (vec![root.to_owned()], &["native", "overlayfs", "zfs"]),
            (vec!["/var/lib/rancher/k3s/agent/containerd2".into()], &[]),
            (vec![root.join("io.containerd.snapshotter.v1.zfs2")], &[]),
        ];
        for (mounts, lost) in cases {
            assert_eq!(lost_snapshotters(root, &names, &mounts), lost, "{mounts:?}");
        }
    }
}
