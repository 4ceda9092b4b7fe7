//! The tools: finding them, running them, and a loop device where one is needed.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a tool; its standard output. Fails the test when it is missing or fails.
pub(super) fn tool(name: &str, args: &[&str]) -> String {
    let (ok, text) = try_tool(name, args);
    assert!(ok, "{name} {args:?}: {text}");
    text
}

/// Runs a tool; whether it succeeded, and what it said.
pub(super) fn try_tool(name: &str, args: &[&str]) -> (bool, String) {
    let folders = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
    let path = folders
        .iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.exists())
        .unwrap_or_else(|| {
            panic!("{name} is missing: install the packages gdisk, fdisk, parted and mount")
        });
    let out = Command::new(path)
        .args(args)
        .env("LC_ALL", "C.UTF-8")
        .output()
        .unwrap();
    let text = [out.stdout, out.stderr].concat();
    (
        out.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// An image as the tools see it: the file itself for 512-byte blocks, a loop device
/// for 4096, detached when it is dropped.
pub(super) struct Attached {
    pub(super) path: String,
    is_loop: bool,
}

impl Attached {
    pub(super) fn new(file: &Path, block: u32) -> Attached {
        let file = file.to_str().unwrap();
        match block {
            512 => Attached {
                path: file.to_owned(),
                is_loop: false,
            },
            _ => {
                let size = block.to_string();
                let args = ["--sector-size", &size, "--find", "--show", file];
                Attached {
                    path: tool("losetup", &args).trim().to_owned(),
                    is_loop: true,
                }
            }
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.is_loop {
            let (ok, text) = try_tool("losetup", &["--detach", &self.path]);
            if !ok {
                eprintln!("{} stays attached: {text}", self.path);
            }
        }
    }
}

/// An empty image of so many MiB.
pub(super) fn empty(dir: &Path, name: &str, mib: u64) -> PathBuf {
    let path = dir.join(name);
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(mib * 1024 * 1024).unwrap();
    path
}
