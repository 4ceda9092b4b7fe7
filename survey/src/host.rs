//! The machine itself: its ids, its image, its programs and what starts containers.
//!
//! Takes a [`Root`] and the host's programs, gives [`Host`]. Ids that the intent is
//! bound to are errors when they cannot be read; what only people read is left empty.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use nix::sys::stat::{Mode, SFlag};
use repave_plan::survey::{Host, Image};
use repave_plan::units::{BadValue, BootId, Digest, MachineId, PoolName};

use crate::host_tools::{ToolError, Tools, ask};
use crate::mounts::{FstabEntry, Mount, MountError, mount_of, path_facts, read_fstab};
use crate::root::Root;
use crate::zpool_parse::parse_version;

/// Where systemd looks for units of the system, the administrator's first.
pub const UNIT_DIRECTORIES: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Where generators put units (systemd.generator(7)).
const GENERATED: [&str; 3] = [
    "/run/systemd/generator",
    "/run/systemd/generator.early",
    "/run/systemd/generator.late",
];

/// Programs that the boot run, the agent or this survey start.
const PROGRAMS: [&str; 9] = [
    "bootc",
    "modprobe",
    "mount",
    "systemctl",
    "udevadm",
    "umount",
    "zfs",
    "zpool",
    "fsck",
];

/// Where programs are looked for.
const PROGRAM_DIRECTORIES: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Units that start containers, besides everything that begins with `k3s-`.
const STARTERS: [&str; 8] = [
    "containerd.service",
    "crio.service",
    "docker.service",
    "k3s-agent.service",
    "k3s.service",
    "kubelet.service",
    "rke2-agent.service",
    "rke2-server.service",
];

/// How long `bootc` and `zpool version` may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Why the machine could not be seen.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file could not be read.
    #[error("read {path}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// An id is not one.
    #[error("take the content of {path} as an id")]
    Id {
        /// The file.
        path: &'static str,
        /// What it holds.
        source: BadValue,
    },
    /// A program gave no answer.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// `bootc status` gave something else than its format.
    #[error("understand `bootc status --json`: {what}")]
    Bootc {
        /// What is wrong with it.
        what: String,
    },
    /// Mounts could not be seen.
    #[error(transparent)]
    Mount(#[from] MountError),
}

/// Sees the machine. What could not be seen and is not essential is added to `unknown`.
pub fn read_host(
    root: &Root,
    tools: &dyn Tools,
    mounts: &[Mount],
    state_dir: &str,
    pool: Option<&PoolName>,
    unknown: &mut Vec<String>,
) -> Result<Host, HostError> {
    let programs = read_programs(root)?;
    let zfs_module = read_if_there(root, "/sys/module/zfs/version")?;
    let zfs_tools = match (programs.get("zpool"), &zfs_module) {
        // Without the module even this question would load it.
        (Some(zpool), Some(_)) => note(read_zfs_version(tools, zpool), unknown),
        _ => None,
    };
    let image = match programs.get("bootc") {
        Some(bootc) => note(read_image(tools, bootc), unknown).flatten(),
        None => None,
    };
    Ok(Host {
        machine_id: read_machine_id(root)?,
        boot_id: read_boot_id(root)?,
        hostname: read_if_there(root, "/proc/sys/kernel/hostname")?.unwrap_or_default(),
        kernel: read_if_there(root, "/proc/sys/kernel/osrelease")?.unwrap_or_default(),
        state_dir: path_facts(root, mounts, state_dir)?,
        image,
        zfs_tools,
        zfs_module,
        programs,
        starters: read_starters(root)?,
        selinux: exists(root, "/sys/fs/selinux/enforce")?,
        required_pool_mounts: read_required_pool_mounts(root, mounts, pool)?,
    })
}

/// The machine's id (machine-id(5)).
pub fn read_machine_id(root: &Root) -> Result<MachineId, HostError> {
    let path = "/etc/machine-id";
    read(root, path)?
        .trim()
        .parse()
        .map_err(|source| HostError::Id { path, source })
}

/// The id of the running boot.
pub fn read_boot_id(root: &Root) -> Result<BootId, HostError> {
    let path = "/proc/sys/kernel/random/boot_id";
    let id = read(root, path)?.trim().replace('-', "");
    id.parse().map_err(|source| HostError::Id { path, source })
}

/// The programs that are there, by name, with the path they are started by.
pub fn read_programs(root: &Root) -> Result<BTreeMap<String, String>, HostError> {
    let mut programs = BTreeMap::new();
    for name in PROGRAMS {
        for directory in PROGRAM_DIRECTORIES {
            let path = format!("{directory}/{name}");
            let stat = root
                .stat(&path)
                .map_err(|source| read_error(&path, source))?;
            let executable = stat.is_some_and(|stat| {
                let kind = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits());
                let mode = Mode::from_bits_truncate(stat.st_mode);
                kind == SFlag::S_IFREG
                    && mode.intersects(Mode::S_IXUSR | Mode::S_IXGRP | Mode::S_IXOTH)
            });
            if executable {
                programs.insert(name.to_owned(), path);
                break;
            }
        }
    }
    Ok(programs)
}

/// The units of this host that start containers, by name, in whatever directory.
pub fn read_starters(root: &Root) -> Result<Vec<String>, HostError> {
    let mut starters = BTreeSet::new();
    for directory in UNIT_DIRECTORIES.iter().chain(&GENERATED) {
        let names = root
            .list(directory)
            .map_err(|source| read_error(directory, source))?;
        starters.extend(names.into_iter().filter(|name| is_starter(name)));
    }
    Ok(starters.into_iter().collect())
}

fn is_starter(name: &str) -> bool {
    STARTERS.contains(&name) || name.starts_with("k3s-") && name.ends_with(".service")
}

/// The version of the ZFS programs.
pub fn read_zfs_version(tools: &dyn Tools, zpool: &str) -> Result<String, String> {
    let text = ask(tools, zpool, &["version"], LIMIT).map_err(|e| e.to_string())?;
    parse_version(&text).map_err(|e| e.to_string())
}

/// The booted and staged image; `None` when the host was not booted from one.
pub fn read_image(tools: &dyn Tools, bootc: &str) -> Result<Option<Image>, HostError> {
    parse_bootc_status(&ask(tools, bootc, &["status", "--json"], LIMIT)?)
}

/// Reads `bootc status --json` (API `org.containers.bootc/v1`, and `v1alpha1` with the
/// same names).
pub fn parse_bootc_status(text: &str) -> Result<Option<Image>, HostError> {
    let bad = |what: &str| HostError::Bootc {
        what: what.to_owned(),
    };
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|e| bad(&format!("not JSON: {e}")))?;
    let status = value
        .get("status")
        .ok_or_else(|| bad("it has no `status`"))?;
    let digest = |entry: &str| -> Result<Option<Digest>, HostError> {
        let image = match status.get(entry) {
            None | Some(serde_json::Value::Null) => return Ok(None),
            Some(entry) => entry.get("image"),
        };
        // A deployment that is not of an image (plain ostree) has `image: null`.
        let Some(image) = image.filter(|image| !image.is_null()) else {
            return Ok(None);
        };
        let text = image.get("imageDigest").and_then(serde_json::Value::as_str);
        let text = text.ok_or_else(|| bad(&format!("{entry} has no `imageDigest`")))?;
        text.parse()
            .map(Some)
            .map_err(|e: BadValue| bad(&e.to_string()))
    };
    let image = Image {
        booted: digest("booted")?,
        staged: digest("staged")?,
    };
    Ok((image.booted.is_some() || image.staged.is_some()).then_some(image))
}

/// Mount points from the pool that `local-fs.target` requires: a dataset that is missing
/// there after the pool was made again takes the boot into emergency mode.
pub fn read_required_pool_mounts(
    root: &Root,
    mounts: &[Mount],
    pool: Option<&PoolName>,
) -> Result<Vec<String>, HostError> {
    let mut found = BTreeSet::new();
    for entry in read_fstab(root)? {
        if is_required(&entry) && is_on_pool(&entry, mounts, pool) {
            found.insert(entry.at.clone());
        }
    }
    // What units say, whoever made them: fstab's generator, zfs-mount-generator with
    // nofail=off, or an administrator.
    for directory in UNIT_DIRECTORIES.iter().chain(&GENERATED) {
        let wants = format!("{directory}/local-fs.target.requires");
        let names = root
            .list(&wants)
            .map_err(|source| read_error(&wants, source))?;
        for name in names {
            let Some(at) = name.strip_suffix(".mount").and_then(unescape_unit_path) else {
                continue;
            };
            let path = format!("{wants}/{name}");
            let text = root
                .read_text_if_there(&path)
                .map_err(|e| read_error(&path, e))?;
            let what = text.as_deref().and_then(|text| unit_value(text, "What="));
            let entry = FstabEntry {
                what: what.unwrap_or_default().to_owned(),
                fs_type: text
                    .as_deref()
                    .and_then(|t| unit_value(t, "Type="))
                    .unwrap_or("")
                    .to_owned(),
                at: at.clone(),
                options: Vec::new(),
            };
            let mounted_now = mounts
                .iter()
                .any(|mount| mount.at == at && is_pool(mount, pool));
            if mounted_now || is_on_pool(&entry, mounts, pool) {
                found.insert(at);
            }
        }
    }
    Ok(found.into_iter().collect())
}

fn is_required(entry: &FstabEntry) -> bool {
    entry.at.starts_with('/')
        && !entry
            .options
            .iter()
            .any(|option| option == "nofail" || option == "noauto")
}

/// Whether an entry mounts a dataset, a volume, or a directory that lies on the pool.
fn is_on_pool(entry: &FstabEntry, mounts: &[Mount], pool: Option<&PoolName>) -> bool {
    if entry.fs_type == "zfs" {
        return is_of_pool(&entry.what, pool);
    }
    if let Some(volume) = entry.what.strip_prefix("/dev/zvol/") {
        return is_of_pool(volume, pool);
    }
    let device = entry.what.starts_with("/dev/") || !entry.what.starts_with('/');
    !device && mount_of(mounts, &entry.what).is_some_and(|mount| is_pool(mount, pool))
}

fn is_pool(mount: &Mount, pool: Option<&PoolName>) -> bool {
    mount.fs_type == "zfs" && is_of_pool(&mount.source, pool)
}

fn is_of_pool(dataset: &str, pool: Option<&PoolName>) -> bool {
    let own = dataset.split('/').next().unwrap_or_default();
    pool.is_none_or(|pool| pool.as_str() == own)
}

fn unit_value<'a>(unit: &'a str, key: &str) -> Option<&'a str> {
    unit.lines()
        .filter_map(|line| line.trim().strip_prefix(key))
        .next_back()
        .map(str::trim)
}

/// The path in a mount unit's name (systemd.unit(5), "String escaping").
fn unescape_unit_path(name: &str) -> Option<String> {
    if name == "-" {
        return Some("/".to_owned());
    }
    let mut bytes = vec![b'/'];
    let mut rest = name.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'-' => bytes.push(b'/'),
            b'\\' => {
                let digits = rest.strip_prefix(b"x")?.get(..2)?;
                bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                rest = &rest[3..];
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).ok()
}

fn note<T, E: std::fmt::Display>(result: Result<T, E>, unknown: &mut Vec<String>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            unknown.push(error.to_string());
            None
        }
    }
}

fn read(root: &Root, path: &'static str) -> Result<String, HostError> {
    root.read_text(path)
        .map_err(|source| read_error(path, source))
}

fn read_if_there(root: &Root, path: &str) -> Result<Option<String>, HostError> {
    let text = root
        .read_text_if_there(path)
        .map_err(|source| read_error(path, source))?;
    Ok(text.map(|text| text.trim().to_owned()))
}

fn exists(root: &Root, path: &str) -> Result<bool, HostError> {
    root.exists(path).map_err(|source| read_error(path, source))
}

fn read_error(path: &str, source: io::Error) -> HostError {
    HostError::Read {
        path: path.to_owned(),
        source,
    }
}
