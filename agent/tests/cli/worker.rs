//! A worker as a folder: what the kernel, systemd and k3s show of it, a disk in a file
//! with genuine labels on it, and programs that answer as OpenZFS does.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use repave_plan::units::{Digest, MIB};

use crate::fixtures;

pub const POLICY: &str = "\
version = 1
mode = \"recreate\"
[disk]
pool = \"solo\"
[pool]
partition_label = \"tank\"
[[remove]]
label = \"mayastor\"
contains = \"no-filesystem\"
[[datasets]]
name = \"solo/containerd\"
";

const DISK: u64 = 320 * MIB;
const POLICY_PATH: &str = "etc/repave/policy.d/50-worker.toml";

pub struct Worker {
    dir: tempfile::TempDir,
}

/// What the program printed and how it ended.
pub struct Answer {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Answer {
    fn from(output: Output) -> Answer {
        Answer {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Runs the program with these arguments and nothing of this process's environment.
pub fn agent(args: &[&str]) -> Answer {
    let program = env!("CARGO_BIN_EXE_repave-agent");
    let output = Command::new(program).args(args).env_clear().output();
    output.unwrap().into()
}

impl Worker {
    pub fn new() -> Worker {
        let worker = Worker {
            dir: tempfile::tempdir().unwrap(),
        };
        for part in include_str!("worker.tree").split("=== ").skip(1) {
            let (path, content) = part.split_once('\n').unwrap();
            worker.write(path, content);
        }
        worker.program("usr/sbin/zpool", include_str!("zpool.sh"));
        worker.program("usr/sbin/zfs", include_str!("zfs.sh"));
        worker.program("usr/sbin/modprobe", "#!/bin/sh\nexit 1\n");
        worker.program("boot/repave-boot", "#!/bin/sh\n[ \"$*\" = self-test ]\n");
        worker.write(POLICY_PATH, POLICY);
        // What systemd-analyze needs to have something to look at.
        worker.write(
            "usr/lib/systemd/system/default.target",
            "[Unit]\nDescription=x\n",
        );
        fs::create_dir_all(worker.path("dev")).unwrap();
        write_disk(&worker.path("dev/vda"));
        worker
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub fn write(&self, path: &str, content: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub fn program(&self, path: &str, content: &str) {
        self.write(path, content);
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.path(path), mode).unwrap();
    }

    /// One text in the place of another, in a file.
    pub fn edit(&self, path: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.path(path)).unwrap();
        assert!(text.contains(from), "{path} has no {from:?}");
        fs::write(self.path(path), text.replace(from, to)).unwrap();
    }

    pub fn policy(&self, from: &str, to: &str) {
        self.edit(POLICY_PATH, from, to);
    }

    /// Runs a command on this worker.
    pub fn run(&self, command: &str, args: &[&str]) -> Answer {
        let root = self.dir.path().to_str().unwrap();
        agent(&[&[command, "--root", root], args].concat())
    }

    /// Arms it with the right digest and a boot program that runs.
    pub fn arm(&self, args: &[&str]) -> Answer {
        let binary = self.path("boot/repave-boot");
        let binary = binary.to_str().unwrap();
        let digest = self.digest();
        let given = ["--approve", &digest, "--boot-binary", binary];
        self.run("arm", &[&given, args].concat())
    }

    /// The digest that `plan` shows.
    pub fn digest(&self) -> String {
        let plan = self.run("plan", &["--json"]);
        let Ok(plan) = serde_json::from_str::<serde_json::Value>(&plan.out) else {
            panic!("{}", plan.err)
        };
        plan["digest"].as_str().unwrap().to_owned()
    }

    /// Every file with its content's digest, every link and folder: what "nothing was
    /// changed" is measured with.
    pub fn tree(&self) -> BTreeMap<PathBuf, String> {
        let mut tree = BTreeMap::new();
        walk(self.dir.path(), &mut tree);
        tree
    }
}

fn walk(dir: &Path, tree: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        let what = if meta.is_dir() {
            walk(&path, tree);
            "folder".to_owned()
        } else if meta.is_symlink() {
            fs::read_link(&path).unwrap().display().to_string()
        } else {
            Digest::of(&fs::read(&path).unwrap()).to_string()
        };
        tree.insert(path, what);
    }
}

/// A table of four partitions, an ext4 in the second, and the labels of a pool
/// that `ztest` made in the third.
fn write_disk(path: &Path) {
    let part = |number, name, kind, mib, end| fixtures::Part {
        number,
        name,
        kind,
        mib,
        end: Some(end),
    };
    let table = fixtures::Worker {
        size: DISK,
        made_for: DISK,
        ..fixtures::Worker::new(
            512,
            vec![
                part(1, "EFI", fixtures::EFI, 1, 9),
                part(2, "root", fixtures::LINUX, 9, 41),
                part(3, "tank", fixtures::ZFS, 41, 169),
                part(4, "mayastor", fixtures::LINUX, 169, 316),
            ],
        )
    };
    let image = table.image();
    let file = fs::File::create(path).unwrap();
    file.set_len(DISK).unwrap();
    file.write_all_at(&image.head, 0).unwrap();
    file.write_all_at(&image.tail, image.tail_first.0 * 512)
        .unwrap();
    // ext4: its magic, and the feature that ext3 does not have (extents).
    file.write_all_at(&[0x53, 0xef], 9 * MIB + 0x438).unwrap();
    file.write_all_at(&[0x40], 9 * MIB + 0x460).unwrap();
    let packed = include_bytes!("../../../survey/src/labels/fixtures/solo.gz");
    let mut labels = Vec::new();
    flate2::read::GzDecoder::new(packed.as_slice())
        .read_to_end(&mut labels)
        .unwrap();
    let (front, rear) = labels[..1 << 20].split_at(512 << 10);
    file.write_all_at(front, 41 * MIB).unwrap();
    file.write_all_at(rear, 169 * MIB - (512 << 10)).unwrap();
}
