//! The machine itself: its ids, its image, its programs and what starts containers.
//!
//! Takes a [`SurveyRequest`] and the mounts, gives [`Host`]. Ids that the intent is
//! bound to are errors when they cannot be read; what only people read is left empty.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use nix::sys::stat::{Mode, SFlag};
use repave_plan::survey::{Host, Image};
use repave_plan::units::{BadValue, BootId, Digest, MachineId, PoolName};

use crate::host_tools::{ToolError, Tools, ask};
use crate::mounts::{FstabEntry, Mount, MountError, mount_of, path_facts, read_fstab};
use crate::read::{Detail, SurveyRequest};
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

/// How long `bootc` and `zpool version` may take: seconds, but a minute was seen in an
/// emulated machine on a busy host.
const LIMIT: Duration = Duration::from_secs(120);

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
    request: &SurveyRequest<'_>,
    mounts: &[Mount],
    unknown: &mut Vec<String>,
) -> Result<Host, HostError> {
    let (root, tools) = (request.root, request.tools);
    let pool = request.policy.map(|policy| &policy.disk.pool);
    let programs = read_programs(root)?;
    let zfs_module = read_if_there(root, "/sys/module/zfs/version")?;
    let zfs_tools = match (request.detail, programs.get("zpool"), &zfs_module) {
        // Without the module even this question would load it.
        (Detail::Full, Some(zpool), Some(_)) => note(read_zfs_version(tools, zpool), unknown),
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
        state_dir: path_facts(root, mounts, request.state_dir)?,
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::mounts::parse_mountinfo;

    fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let root = Root::at(dir.path()).unwrap();
        (dir, root)
    }

    #[test]
    fn ids_are_read_or_an_error() {
        let boot = "proc/sys/kernel/random/boot_id";
        let (_dir, root) = host(&[
            ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"),
            (boot, "3b9c2a4e-6b2f-4a53-9d0a-6f0e4a9c1d20\n"),
        ]);
        let id = read_machine_id(&root).unwrap();
        assert_eq!(id.as_str(), "0123456789abcdef0123456789abcdef");
        assert_eq!(
            read_boot_id(&root).unwrap().as_str(),
            "3b9c2a4e6b2f4a539d0a6f0e4a9c1d20"
        );
        // systemd's word in an image that has not booted yet, and a file that was cut.
        for bad in ["uninitialized\n", "", "0123456789ABCDEF0123456789abcdef"] {
            let (_dir, root) = host(&[("etc/machine-id", bad), (boot, bad)]);
            assert!(
                matches!(read_machine_id(&root), Err(HostError::Id { .. })),
                "{bad:?}"
            );
            assert!(
                matches!(read_boot_id(&root), Err(HostError::Id { .. })),
                "{bad:?}"
            );
        }
        let (_dir, root) = host(&[]);
        assert!(matches!(
            read_machine_id(&root),
            Err(HostError::Read { .. })
        ));
    }

    #[test]
    fn programs_are_executable_files_and_the_first_place_wins() {
        let (dir, root) = host(&[
            ("usr/sbin/zpool", ""),
            ("usr/bin/zpool", ""),
            ("usr/sbin/zfs", ""),
            ("sbin/zfs", ""),
            ("usr/bin/mount/file", ""),
            ("usr/local/sbin/modprobe", ""),
        ]);
        for path in [
            "usr/sbin/zpool",
            "usr/bin/zpool",
            "sbin/zfs",
            "usr/local/sbin/modprobe",
        ] {
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(dir.path().join(path), mode).unwrap();
        }
        let expected = [("zfs", "/sbin/zfs"), ("zpool", "/usr/sbin/zpool")];
        let expected = expected.map(|(name, path)| (name.to_owned(), path.to_owned()));
        assert_eq!(read_programs(&root).unwrap(), BTreeMap::from(expected));
    }

    #[test]
    fn starters_are_found_in_every_directory() {
        let (_dir, root) = host(&[
            ("etc/systemd/system/k3s-agent.service", ""),
            ("etc/systemd/system/k3s-blue.service", ""),
            ("etc/systemd/system/k3s-blue.service.env", ""),
            ("etc/systemd/system/k3s.timer", ""),
            ("run/systemd/system/kubelet.service", ""),
            ("run/systemd/generator/docker.service", ""),
            ("usr/lib/systemd/system/containerd.service", ""),
            ("usr/lib/systemd/system/k3s-agent.service", ""),
            ("usr/lib/systemd/system/ssh.service", ""),
        ]);
        assert_eq!(
            read_starters(&root).unwrap(),
            [
                "containerd.service",
                "docker.service",
                "k3s-agent.service",
                "k3s-blue.service",
                "kubelet.service",
            ]
        );
    }

    #[test]
    fn bootc_names_the_images() {
        let (a, b) = ("a".repeat(64), "b".repeat(64));
        // `bootc status --json` of bootc 1.1, shortened.
        let text = format!(
            r#"{{"apiVersion":"org.containers.bootc/v1","kind":"BootcHost","metadata":{{"name":"host"}},
            "spec":{{"image":null,"bootOrder":"default"}},"status":{{
            "staged":{{"image":{{"image":{{"image":"quay.io/x/y:2","transport":"registry"}},
              "version":"2","timestamp":null,"imageDigest":"sha256:{b}"}},"pinned":false}},
            "booted":{{"image":{{"image":{{"image":"quay.io/x/y:1","transport":"registry"}},
              "version":"1","timestamp":null,"imageDigest":"sha256:{a}"}},"pinned":false}},
            "rollback":null,"rollbackQueued":false,"type":"bootcHost"}}}}"#
        );
        let image = parse_bootc_status(&text).unwrap().unwrap();
        assert_eq!(image.booted, Some(format!("sha256:{a}").parse().unwrap()));
        assert_eq!(image.staged, Some(format!("sha256:{b}").parse().unwrap()));
        // A host that was not booted from an image, and a plain ostree deployment.
        let none = r#"{"status":{"staged":null,"booted":null,"rollback":null,"type":null}}"#;
        assert_eq!(parse_bootc_status(none).unwrap(), None);
        let ostree = r#"{"status":{"booted":{"image":null,"ostree":{}}}}"#;
        assert_eq!(parse_bootc_status(ostree).unwrap(), None);
        for bad in [
            "",
            "{}",
            r#"{"status":{"booted":{"image":{"imageDigest":7}}}}"#,
            r#"{"status":{"booted":{"image":{"imageDigest":"sha256:12"}}}}"#,
        ] {
            assert!(
                matches!(parse_bootc_status(bad), Err(HostError::Bootc { .. })),
                "{bad}"
            );
        }
    }

    #[test]
    fn required_mounts_of_the_pool_are_found_whoever_made_them() {
        let fstab = "tank/must /must zfs defaults 0 0\ntank/may /may zfs nofail 0 0\n\
                     tank/later /later zfs noauto 0 0\nother/x /other zfs defaults 0 0\n\
                     /tank/data /bind none bind 0 0\n/srv/data /plain none bind 0 0\n\
                     /dev/zvol/tank/vol /vol ext4 defaults 0 0\n\
                     /dev/vda2 / ext4 defaults 0 0\ntank/swap none zfs defaults 0 0\n";
        let requires = "run/systemd/generator/local-fs.target.requires";
        let (_dir, root) = host(&[
            ("etc/fstab", fstab),
            (
                &format!("{requires}/srv-a\\x2db.mount"),
                "[Mount]\nWhat=tank/a\nType=zfs\n",
            ),
            (
                &format!("{requires}/srv-other.mount"),
                "[Mount]\nWhat=other/a\nType=zfs\n",
            ),
            (
                &format!("{requires}/boot.mount"),
                "[Mount]\nWhat=/dev/vda1\n",
            ),
            (&format!("{requires}/quiet.mount"), ""),
            (&format!("{requires}/systemd-remount-fs.service"), ""),
            (
                "etc/systemd/system/local-fs.target.wants/wanted.mount",
                "[Mount]\nWhat=tank/w\nType=zfs\n",
            ),
        ]);
        let mounts = parse_mountinfo(
            "1 0 0:1 / / rw - ext4 /dev/vda2 rw\n2 1 0:2 / /tank rw - zfs tank rw\n\
             3 1 0:3 / /quiet rw - zfs tank/quiet rw\n",
        )
        .unwrap();
        let tank: PoolName = "tank".parse().unwrap();
        assert_eq!(
            read_required_pool_mounts(&root, &mounts, Some(&tank)).unwrap(),
            ["/bind", "/must", "/quiet", "/srv/a-b", "/vol"]
        );
        let all = read_required_pool_mounts(&root, &mounts, None).unwrap();
        assert_eq!(all.len(), 7, "{all:?}");
    }

    #[test]
    fn unit_names_are_unescaped() {
        for (name, path) in [
            ("-", Some("/")),
            ("var-lib-x", Some("/var/lib/x")),
            ("a\\x2db", Some("/a-b")),
            ("a\\x2", None),
            ("a\\xzz", None),
            ("a\\n", None),
        ] {
            assert_eq!(unescape_unit_path(name).as_deref(), path, "{name}");
        }
    }
}
