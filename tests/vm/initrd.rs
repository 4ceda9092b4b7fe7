//! The bed's own initrd of about 1 MB, and files injected into a guest by appending
//! a second archive to it: no extra disk, and in place before systemd starts.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::command::Run;
use super::guest;
use super::tree::Tree;

/// A file put into the guest's root before systemd starts, at each boot of that QEMU.
#[derive(Debug, Clone)]
pub struct Inject {
    /// Absolute path in the guest.
    pub path: PathBuf,
    /// Permission bits.
    pub mode: u32,
    /// The bytes; for a symbolic link its target.
    pub data: Vec<u8>,
    /// Whether it is a symbolic link.
    pub link: bool,
}

impl Inject {
    /// A plain file.
    pub fn file(path: impl Into<PathBuf>, mode: u32, data: impl Into<Vec<u8>>) -> Self {
        Inject {
            path: path.into(),
            mode,
            data: data.into(),
            link: false,
        }
    }

    /// A symbolic link.
    pub fn link(path: impl Into<PathBuf>, target: &str) -> Self {
        Inject {
            path: path.into(),
            mode: 0o777,
            data: target.into(),
            link: true,
        }
    }
}

/// Builds the initrd for `tree`.
pub fn build(tree: &Tree) -> Result<Vec<u8>> {
    let mut cpio = Cpio::default();
    for folder in ["bin", "proc", "sys", "dev", "newroot", "mods"] {
        cpio.add(folder, 0o040_755, &[]);
    }
    cpio.add("bin/busybox", 0o100_755, &fs::read(guest::busybox(tree))?);
    cpio.add("init", 0o100_755, include_bytes!("guest/init"));
    let mut list = String::new();
    for (name, bytes) in driver(tree, "virtio_blk")? {
        cpio.add(&format!("mods/{name}"), 0o100_644, &bytes);
        list.push_str(&name);
        list.push('\n');
    }
    cpio.add("modules", 0o100_644, list.as_bytes());
    Ok(cpio.finish())
}

/// The archive to append for `files` and for a shell script that runs in the initrd
/// with the root at /newroot.
pub fn injection(files: &[Inject], script: Option<&str>) -> Vec<u8> {
    let mut cpio = Cpio::default();
    cpio.add("inject", 0o040_755, &[]);
    let mut made: Vec<PathBuf> = Vec::new();
    for file in files {
        let path = Path::new("inject").join(file.path.strip_prefix("/").unwrap_or(&file.path));
        let mut parents: Vec<_> = path.ancestors().skip(1).collect();
        parents.reverse();
        for parent in parents
            .into_iter()
            .filter(|path| path.components().count() > 1)
        {
            if !made.iter().any(|path| path == parent) {
                cpio.add(&parent.to_string_lossy(), 0o040_755, &[]);
                made.push(parent.to_owned());
            }
        }
        let kind = if file.link { 0o120_000 } else { 0o100_000 };
        cpio.add(&path.to_string_lossy(), kind | file.mode, &file.data);
    }
    if let Some(script) = script {
        cpio.add("inject.sh", 0o100_755, script.as_bytes());
    }
    cpio.finish()
}

/// A driver's modules in the order of loading, unpacked. Empty when built in.
fn driver(tree: &Tree, name: &str) -> Result<Vec<(String, Vec<u8>)>> {
    let folder = tree.path.join("lib/modules").join(&tree.kernel);
    let path = folder.join("modules.dep");
    let dep = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut modules = Vec::new();
    for file in load_order(&dep, name) {
        let path = folder.join(&file);
        let bytes = if file.ends_with(".xz") {
            Run::new("xz").arg("-dc").arg(&path).output()?
        } else {
            fs::read(&path)?
        };
        let base = file
            .rsplit('/')
            .next()
            .unwrap_or(&file)
            .trim_end_matches(".xz");
        modules.push((base.to_owned(), bytes));
    }
    Ok(modules)
}

/// The files of `modules.dep` for one module: what it needs first, itself last.
fn load_order(dep: &str, name: &str) -> Vec<String> {
    let stem = format!("/{name}.ko");
    for line in dep.lines() {
        let Some((file, needs)) = line.split_once(':') else {
            continue;
        };
        if file.trim_end_matches(".xz").ends_with(&stem) {
            let mut order: Vec<String> = needs.split_whitespace().map(str::to_owned).collect();
            order.reverse();
            order.push(file.to_owned());
            return order;
        }
    }
    Vec::new()
}

/// An archive in the "newc" format of the kernel's
/// Documentation/driver-api/early-userspace/buffer-format.rst.
#[derive(Default)]
struct Cpio {
    bytes: Vec<u8>,
    inode: u32,
}

impl Cpio {
    fn add(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.inode += 1;
        self.bytes.extend_from_slice(b"070701");
        let name_size = name.len() as u32 + 1;
        let fields = [
            self.inode,
            mode,
            0,
            0,
            1,
            0,
            data.len() as u32,
            0,
            0,
            0,
            0,
            name_size,
            0,
        ];
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_load_after_what_they_need() {
        let dep = "kernel/drivers/block/virtio_blk.ko.xz: kernel/b.ko.xz kernel/a.ko.xz\n\
                   kernel/a.ko.xz:\n";
        assert_eq!(
            load_order(dep, "virtio_blk"),
            [
                "kernel/a.ko.xz",
                "kernel/b.ko.xz",
                "kernel/drivers/block/virtio_blk.ko.xz"
            ]
        );
        assert!(load_order(dep, "ext4").is_empty());
    }

    #[test]
    fn an_archive_has_the_kernels_format() {
        let mut cpio = Cpio::default();
        cpio.add("a", 0o100_644, b"xyz");
        let head = "070701\
            00000001000081A400000000000000000000000100000000\
            00000003000000000000000000000000000000000000000200000000";
        let made = cpio.finish();
        assert_eq!(&made[..110], head.as_bytes());
        // The name is padded so that the data starts at a multiple of 4.
        assert_eq!(&made[110..116], b"a\0xyz\0");
        assert_eq!(&made[116..122], b"070701");
        assert_eq!(made.len() % 4, 0);
    }
}
