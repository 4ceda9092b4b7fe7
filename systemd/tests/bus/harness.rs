//! A host in a directory, its files recorded, and what "armed" must mean on it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use repave_plan::units::{Digest, RunId};
use repave_systemd::arm::Then;
use repave_systemd::files::Lock;
use repave_systemd::units::{ALL, GATE, STARTERS};
use repave_systemd::{ArmRequest, FileError, HostFiles, RootFiles};

use crate::fake::Log;

/// The sealed intent of the tests: opaque to arming.
pub const INTENT: &[u8] = b"{\"sealed\":\"intent\"}";
/// The boot binary of the tests; the fake does not execute it.
pub const BINARY: &[u8] = b"#!/bin/sh\necho self-test ok\n";

/// What the file effects do at the point that is counted.
pub enum At {
    /// Nothing: a dry pass.
    Never,
    /// The effect with this number fails; all others work.
    Fail(usize),
    /// The process is killed before the effect with this number, or in the middle of a write.
    Kill(usize),
}

/// The host's files with every effect recorded and counted.
pub struct Recorded {
    files: RootFiles,
    log: Log,
    at: At,
    count: Cell<usize>,
    labels: RefCell<BTreeMap<String, String>>,
}

impl Recorded {
    pub fn new(root: &Path, log: &Log, at: At) -> Self {
        Self {
            files: RootFiles::open(root).unwrap(),
            log: log.clone(),
            at,
            count: Cell::new(0),
            labels: RefCell::default(),
        }
    }

    /// How many effects were begun.
    pub fn count(&self) -> usize {
        self.count.get()
    }

    /// Counts, records, and does what the point asks for; whether a write is to be cut.
    pub fn point(&self, action: &'static str, path: &str) -> Result<bool, FileError> {
        self.count.set(self.count.get() + 1);
        match self.at {
            At::Fail(n) if n == self.count.get() => {
                self.log
                    .lock()
                    .unwrap()
                    .push(format!("failed {action} {path}"));
                Err(FileError {
                    action,
                    path: path.to_owned(),
                    source: std::io::Error::other("injected"),
                })
            }
            At::Kill(n) if n == self.count.get() => Ok(true),
            _ => {
                self.log.lock().unwrap().push(format!("{action} {path}"));
                Ok(false)
            }
        }
    }

    fn effect(&self, action: &'static str, path: &str) -> Result<(), FileError> {
        if self.point(action, path)? {
            kill_self();
        }
        Ok(())
    }
}

/// As the out-of-memory killer does it: no destructor, no undo.
pub fn kill_self() {
    nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::SIGKILL).unwrap();
}

impl HostFiles for Recorded {
    fn exists(&self, path: &str) -> Result<bool, FileError> {
        self.files.exists(path)
    }
    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, FileError> {
        self.files.read(path, limit)
    }
    fn read_link(&self, path: &str) -> Result<Option<String>, FileError> {
        self.files.read_link(path)
    }
    fn list(&self, path: &str) -> Result<Vec<String>, FileError> {
        self.files.list(path)
    }
    fn label(&self, path: &str) -> Result<Option<String>, FileError> {
        Ok(self.labels.borrow().get(path).cloned())
    }
    fn make_dir(&self, path: &str) -> Result<(), FileError> {
        self.effect("mkdir", path)?;
        self.files.make_dir(path)
    }
    fn write(&self, path: &str, bytes: &[u8], mode: u32) -> Result<(), FileError> {
        if self.point("write", path)? {
            self.files.write(path, &bytes[..bytes.len() / 2], mode)?;
            kill_self();
        }
        self.files.write(path, bytes, mode)
    }
    fn set_label(&self, path: &str, label: &str) -> Result<(), FileError> {
        self.effect("label", path)?;
        self.labels
            .borrow_mut()
            .insert(path.to_owned(), label.to_owned());
        Ok(())
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        self.effect("rename", to)?;
        self.files.rename(from, to)
    }
    fn make_link(&self, path: &str, target: &str) -> Result<(), FileError> {
        self.effect("link", path)?;
        self.files.make_link(path, target)
    }
    fn sync_dir(&self, path: &str) -> Result<(), FileError> {
        self.effect("sync", path)?;
        self.files.sync_dir(path)
    }
    fn remove(&self, path: &str) -> Result<(), FileError> {
        self.effect("remove", path)?;
        self.files.remove(path)
    }
    fn remove_empty_dir(&self, path: &str) -> Result<(), FileError> {
        self.effect("rmdir", path)?;
        self.files.remove_empty_dir(path)
    }
    fn try_lock(&self, path: &str) -> Result<Option<Lock>, FileError> {
        self.effect("lock", path)?;
        self.files.try_lock(path)
    }
}

/// A host in a directory, in memory where the machine allows.
pub struct HostDir(tempfile::TempDir);

impl HostDir {
    /// A host that repave never touched, with SELinux and one drop-in of somebody else.
    pub fn new() -> Self {
        let shm = Path::new("/dev/shm");
        let dir = match shm.is_dir() {
            true => tempfile::tempdir_in(shm).unwrap(),
            false => tempfile::tempdir().unwrap(),
        };
        let host = Self(dir);
        for folder in [
            "etc/systemd/system/k3s-agent.service.d",
            "var/lib",
            "run",
            "sys/fs/selinux",
        ] {
            std::fs::create_dir_all(host.root().join(folder)).unwrap();
        }
        std::fs::write(host.root().join("sys/fs/selinux/enforce"), "1").unwrap();
        std::fs::write(host.at(FOREIGN), "[Service]\n").unwrap();
        host
    }

    pub fn root(&self) -> &Path {
        self.0.path()
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    /// Every file and link under /etc, with its content or target.
    pub fn etc(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.at("/etc")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path
                    .strip_prefix(self.root())
                    .unwrap()
                    .display()
                    .to_string();
                if path.is_symlink() {
                    found.insert(name, path.read_link().unwrap().display().to_string());
                } else if path.is_dir() {
                    folders.push(path);
                } else {
                    found.insert(name, std::fs::read_to_string(path).unwrap());
                }
            }
        }
        found
    }
}

/// A drop-in that was there before and must be there after.
pub const FOREIGN: &str = "/etc/systemd/system/k3s-agent.service.d/10-admin.conf";

/// Whether the host is armed. Panics where an intent is there and something it needs is not.
pub fn is_armed(host: &HostDir) -> bool {
    let intent = host.at("/var/lib/repave/intent.json");
    if !intent.exists() {
        return false;
    }
    assert_eq!(std::fs::read(intent).unwrap(), INTENT, "a torn intent");
    assert!(!host.at("/var/lib/repave/changed").exists());
    let run = std::fs::read_to_string(host.at("/run/repave/armed")).unwrap();
    let folder = format!("/var/lib/repave/runs/{run}");
    assert_eq!(
        std::fs::read(host.at(&format!("{folder}/intent.json"))).unwrap(),
        INTENT
    );
    assert_eq!(
        std::fs::read(host.at(&format!("{folder}/plan.json"))).unwrap(),
        b"{}"
    );
    for unit in ALL {
        let text = std::fs::read_to_string(host.at(&unit.path())).unwrap();
        let binary = text
            .lines()
            .find_map(|l| l.strip_prefix("ExecStart="))
            .and_then(|l| l.split(' ').next())
            .unwrap();
        if binary != "/bin/rm" {
            assert_eq!(
                std::fs::read(host.at(binary)).unwrap(),
                BINARY,
                "{}",
                unit.name
            );
        }
        let target = host.at(&unit.link()).read_link().unwrap();
        assert_eq!(target.to_str().unwrap(), unit.path());
    }
    for starter in STARTERS.iter().copied().chain(["k3s-edge.service"]) {
        let gate = host.at(&format!("/etc/systemd/system/{starter}.d/50-repave.conf"));
        assert_eq!(std::fs::read_to_string(gate).unwrap(), GATE, "{starter}");
    }
    true
}

/// Arms with the usual request.
pub fn request<'a>(run_id: &'a RunId, starters: &'a [String], then: Then) -> ArmRequest<'a> {
    ArmRequest {
        run_id,
        run_files: &[("plan.json", b"{}")],
        intent: INTENT,
        binary: BINARY,
        binary_digest: Digest::of(BINARY),
        starters,
        containerd_mount: Some("/var/lib/rancher"),
        datasets: 3,
        then,
    }
}

/// A starter that is not on the fixed list.
pub fn starters() -> Vec<String> {
    vec!["k3s-edge.service".to_owned()]
}

/// The whole chain of an error, as a program prints it.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}
