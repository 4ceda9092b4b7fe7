//! A containerd root filled with captured databases and blobs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use repave_containerd_clear::ClearRequest;
use repave_plan::policy::ClearMode;
use repave_survey::containerd::{CONTENT, database_path};

/// The captured versions of containerd.
pub const VERSIONS: [&str; 3] = ["1.6.20", "1.7.24", "2.1.9"];

/// A captured file, unpacked.
pub fn captured(path: &str) -> Vec<u8> {
    let path = fixtures().join(path);
    let mut bytes = Vec::new();
    let mut file = flate2::read::GzDecoder::new(File::open(path).unwrap());
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../survey/tests/fixtures/containerd")
}

/// A directory with a containerd root `containerd` in it, as a captured one was: the blobs of
/// `pause`, those of `app` without its largest, and the directories of CRI and the runtimes.
pub fn root(version: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("containerd");
    let put = |path: &str, bytes: &[u8]| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    let database = captured(&format!("{version}/meta.db.gz"));
    put("io.containerd.metadata.v1.bolt/meta.db", &database);
    let mode = fs::Permissions::from_mode(0o640);
    fs::set_permissions(database_path(&root), mode).unwrap();
    let overlayfs = "io.containerd.snapshotter.v1.overlayfs";
    let metadata = captured(&format!("{version}/metadata.db.gz"));
    put(&format!("{overlayfs}/metadata.db"), &metadata);
    put(&format!("{overlayfs}/snapshots/1/fs/file"), b"x");
    put("io.containerd.snapshotter.v1.native/metadata.db", b"n");
    put("io.containerd.snapshotter.v1.native/snapshots/1/file", b"n");
    for id in ["made", "other"] {
        put(
            &format!("io.containerd.grpc.v1.cri/containers/{id}/status"),
            b"s",
        );
        put(
            &format!("io.containerd.grpc.v1.cri/sandboxes/{id}/hosts"),
            b"s",
        );
        put(
            &format!("io.containerd.runtime.v2.task/k8s.io/{id}/config.json"),
            b"{}",
        );
    }
    put("io.containerd.grpc.v1.introspection/uuid", b"u");
    for entry in fs::read_dir(fixtures().join("blobs")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        let path = format!("{CONTENT}/blobs/sha256/{}", name.to_str().unwrap());
        put(&path, &fs::read(entry.path()).unwrap());
    }
    dir
}

/// A request for the overlayfs snapshotter of such a root.
pub fn request(dir: &Path) -> ClearRequest {
    ClearRequest {
        root: dir.join("containerd"),
        snapshotter: "overlayfs".to_owned(),
        mode: ClearMode::Snapshots,
        keep_dir: dir.join("run"),
        aside_name: ".repave-aside-test".to_owned(),
        pinned: Vec::new(),
        verify: false,
    }
}

/// Every file and directory below `dir`, with the content of the files.
pub fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let info = fs::symlink_metadata(&path).unwrap();
            let bytes = match info.is_file() {
                true => fs::read(&path).unwrap(),
                false => Vec::new(),
            };
            if info.is_dir() {
                open.push(path.clone());
            }
            all.insert(path.strip_prefix(dir).unwrap().to_owned(), bytes);
        }
    }
    all
}
