//! What is mounted, what swaps, and which file system a path lies on.
//!
//! Takes the kernel's `mountinfo` and `swaps` and the host's `fstab`; gives mounts,
//! uses of devices and [`PathFacts`]. The mounts are those of process 1: a pod reads
//! the host's `/proc`, but `self` there is the pod's own process and its own mounts.

use std::io;

use nix::sys::statvfs::fstatvfs;
use repave_plan::survey::PathFacts;
use repave_plan::units::Bytes;

use crate::root::Root;

/// The mounts of the host, as its first process sees them.
pub const MOUNTINFO: &str = "/proc/1/mountinfo";
const SWAPS: &str = "/proc/swaps";
const FSTAB: &str = "/etc/fstab";

/// One line of `mountinfo` (Linux `Documentation/filesystems/proc.rst`, 3.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor number of the file system; anonymous for ZFS and btrfs.
    pub device: (u32, u32),
    /// Where it is mounted.
    pub at: String,
    /// The directory of the file system that is mounted there; `/` unless it is a bind.
    pub subtree: String,
    /// The file system's type.
    pub fs_type: String,
    /// The device or dataset.
    pub source: String,
    /// Whether writing is refused, by the mount or by the file system.
    pub read_only: bool,
}

/// One entry of `fstab` (fstab(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FstabEntry {
    /// The device, dataset or directory.
    pub what: String,
    /// The mount point.
    pub at: String,
    /// The type.
    pub fs_type: String,
    /// The options.
    pub options: Vec<String>,
}

/// Why mounts could not be seen.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// A file could not be read.
    #[error("read {path} (needs root)")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A line is not what the format says.
    #[error("understand line {line} of {path}: {text:?}")]
    Line {
        /// The file.
        path: &'static str,
        /// The line's number, from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// No mount covers a path, although `/` always must.
    #[error("find the mount under {path}")]
    NoMount {
        /// The path.
        path: String,
    },
    /// A path could not be looked at.
    #[error("look at {path}")]
    Path {
        /// The path.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// The mounts of the host.
pub fn read_mounts(root: &Root) -> Result<Vec<Mount>, MountError> {
    let text = root
        .read_text(MOUNTINFO)
        .map_err(|source| MountError::Read {
            path: MOUNTINFO.to_owned(),
            source,
        })?;
    parse_mountinfo(&text)
}

/// The swap areas of the host: paths of devices and files. None when the kernel has no
/// support for swap.
pub fn read_swaps(root: &Root) -> Result<Vec<String>, MountError> {
    let text = root
        .read_text_if_there(SWAPS)
        .map_err(|source| MountError::Read {
            path: SWAPS.to_owned(),
            source,
        })?;
    text.map_or(Ok(Vec::new()), |text| parse_swaps(&text))
}

/// The host's `fstab`; no entries when there is none.
pub fn read_fstab(root: &Root) -> Result<Vec<FstabEntry>, MountError> {
    let text = root
        .read_text_if_there(FSTAB)
        .map_err(|source| MountError::Read {
            path: FSTAB.to_owned(),
            source,
        })?;
    text.map_or(Ok(Vec::new()), |text| parse_fstab(&text))
}

/// The file system a path lies on. The path need not exist: then it is the one its
/// nearest existing parent lies on.
pub fn path_facts(root: &Root, mounts: &[Mount], path: &str) -> Result<PathFacts, MountError> {
    let fail = |source| MountError::Path {
        path: path.to_owned(),
        source,
    };
    let exists = root.exists(path).map_err(fail)?;
    let mut nearest = path;
    while !root.exists(nearest).map_err(fail)? {
        nearest = match nearest.trim_end_matches('/').rsplit_once('/') {
            Some((parent, _)) if !parent.is_empty() => parent,
            _ => "/",
        };
    }
    let handle = root.handle(nearest).map_err(fail)?;
    let real = root.canonical_of(&handle).map_err(fail)?;
    let room = fstatvfs(&handle).map_err(|errno| fail(errno.into()))?;
    let mount =
        mount_of(mounts, &real).ok_or_else(|| MountError::NoMount { path: real.clone() })?;
    Ok(PathFacts {
        path: path.to_owned(),
        exists,
        mount_point: mount.at.clone(),
        fs_type: mount.fs_type.clone(),
        source: mount.source.clone(),
        free: Bytes((room.blocks_available() as u64).saturating_mul(room.fragment_size() as u64)),
        read_only: mount.read_only,
    })
}

/// The mount a path (without symlinks) lies on: the longest mount point above it, and
/// of several on the same point the last, which covers the others.
pub fn mount_of<'a>(mounts: &'a [Mount], path: &str) -> Option<&'a Mount> {
    let covering = mounts.iter().filter(|mount| is_below(path, &mount.at));
    covering.max_by_key(|mount| mount.at.len())
}

/// Whether a path is this directory or lies below it.
pub fn is_below(path: &str, directory: &str) -> bool {
    let directory = directory.trim_end_matches('/');
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Reads `mountinfo`.
pub fn parse_mountinfo(text: &str) -> Result<Vec<Mount>, MountError> {
    let lines = text.lines().enumerate();
    let parse =
        |(at, line): (usize, &str)| parse_mount(line).ok_or_else(|| bad_line(MOUNTINFO, at, line));
    lines.map(parse).collect()
}

fn parse_mount(line: &str) -> Option<Mount> {
    // 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    let mut fields = line.split(' ');
    let _id: u32 = fields.next()?.parse().ok()?;
    let _parent: u32 = fields.next()?.parse().ok()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let (subtree, at) = (unescape(fields.next()?)?, unescape(fields.next()?)?);
    let options = fields.next()?;
    // Any number of optional fields, then one dash.
    fields.find(|field| *field == "-")?;
    let (fs_type, source) = (unescape(fields.next()?)?, unescape(fields.next()?)?);
    let super_options = fields.next()?;
    Some(Mount {
        device: (major.parse().ok()?, minor.parse().ok()?),
        at,
        subtree,
        fs_type,
        source,
        read_only: has_option(options, "ro") || has_option(super_options, "ro"),
    })
}

/// Reads `/proc/swaps`: the first field of each line but the heading.
pub fn parse_swaps(text: &str) -> Result<Vec<String>, MountError> {
    let mut lines = text.lines().enumerate();
    match lines.next() {
        None => return Ok(Vec::new()),
        Some((_, heading)) if heading.starts_with("Filename") => {}
        Some((at, heading)) => return Err(bad_line(SWAPS, at, heading)),
    }
    let parse = |(at, line): (usize, &str)| {
        let first = line
            .split([' ', '\t'])
            .next()
            .filter(|field| field.starts_with('/'));
        first
            .and_then(unescape)
            .ok_or_else(|| bad_line(SWAPS, at, line))
    };
    lines.map(parse).collect()
}

/// Reads an `fstab`.
pub fn parse_fstab(text: &str) -> Result<Vec<FstabEntry>, MountError> {
    let lines = text.lines().enumerate();
    let entries = lines.filter(|(_, line)| {
        let line = line.trim_start();
        !line.is_empty() && !line.starts_with('#')
    });
    let parse =
        |(at, line): (usize, &str)| parse_fstab_line(line).ok_or_else(|| bad_line(FSTAB, at, line));
    entries.map(parse).collect()
}

fn parse_fstab_line(line: &str) -> Option<FstabEntry> {
    let mut fields = line.split_ascii_whitespace();
    let what = unescape(fields.next()?)?;
    let at = unescape(fields.next()?)?;
    let fs_type = fields.next()?.to_owned();
    let options = fields.next().unwrap_or("defaults");
    let options = options.split(',').map(str::to_owned).collect();
    Some(FstabEntry {
        what,
        at,
        fs_type,
        options,
    })
}

fn has_option(options: &str, wanted: &str) -> bool {
    options.split(',').any(|option| option == wanted)
}

fn bad_line(path: &'static str, at: usize, line: &str) -> MountError {
    MountError::Line {
        path,
        line: at + 1,
        text: line.chars().take(200).collect(),
    }
}

/// Undoes the kernel's escapes: space, tab, line break and backslash are written as a
/// backslash and three octal digits (Linux `fs/seq_file.c`, `mangle_path`).
fn unescape(text: &str) -> Option<String> {
    if !text.contains('\\') {
        return Some(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..3)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 8).ok()?);
        rest = &rest[3..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    // `cat /proc/1/mountinfo` of a k3s worker with a pool, shortened; the line of
    // /mnt/a b is of `mount --bind` with a space in the name.
    const MOUNTS: &str = "\
22 27 0:21 / /proc rw,relatime shared:12 - proc proc rw
27 1 254:3 / / rw,relatime shared:1 - ext4 /dev/vda3 rw,discard,errors=remount-ro
60 27 0:45 / /var/lib/rancher/k3s/agent/containerd/io.containerd.snapshotter.v1.zfs rw,relatime shared:301 - zfs tank/containerd rw,xattr,noacl,casesensitive
61 27 254:1 / /boot/efi ro,relatime shared:44 master:3 propagate_from:2 - vfat /dev/vda1 rw,fmask=0077
62 27 254:3 /srv/x /mnt/a\\040b rw,relatime - ext4 /dev/vda3 ro,discard
63 27 0:50 / /tank rw - zfs ta\\134nk rw
64 63 0:51 / /tank rw - zfs tank rw
";

    #[test]
    fn mountinfo_lines_give_their_fields() {
        let mounts = parse_mountinfo(MOUNTS).unwrap();
        assert_eq!(mounts.len(), 7);
        assert_eq!(
            mounts[3],
            Mount {
                device: (254, 1),
                at: "/boot/efi".into(),
                subtree: "/".into(),
                fs_type: "vfat".into(),
                source: "/dev/vda1".into(),
                read_only: true,
            }
        );
        assert_eq!(
            (mounts[4].at.as_str(), mounts[4].subtree.as_str()),
            ("/mnt/a b", "/srv/x")
        );
        assert!(mounts[4].read_only, "the file system's own ro counts");
        assert!(!mounts[1].read_only, "errors=remount-ro is not ro");
        assert_eq!(mounts[5].source, "ta\\nk");
    }

    #[test]
    fn a_bad_line_is_an_error_with_its_number() {
        for bad in [
            "22 27 0:21 / /proc rw,relatime shared:12 proc proc rw",
            "22 27 0 / /proc rw - proc proc rw",
            "22 27 0:21 / /pr\\04 rw - proc proc rw",
            "22 27 0:21 / /pr\\999 rw - proc proc rw",
            "22 27 0:21 / /proc rw - proc",
            "",
        ] {
            let text = format!("{}{bad}\n", &MOUNTS[..MOUNTS.find('\n').unwrap() + 1]);
            let error = parse_mountinfo(&text).unwrap_err();
            assert!(
                matches!(error, MountError::Line { line: 2, .. }),
                "{bad:?}: {error}"
            );
        }
    }

    #[test]
    fn the_longest_mount_point_wins_and_the_last_on_it() {
        let mounts = parse_mountinfo(MOUNTS).unwrap();
        let zfs = "/var/lib/rancher/k3s/agent/containerd/io.containerd.snapshotter.v1.zfs";
        for (path, source) in [
            ("/", "/dev/vda3"),
            ("/var/lib/repave", "/dev/vda3"),
            (zfs, "tank/containerd"),
            (&format!("{zfs}/snapshots"), "tank/containerd"),
            (&format!("{zfs}-old"), "/dev/vda3"),
            ("/tank/x", "tank"),
        ] {
            assert_eq!(mount_of(&mounts, path).unwrap().source, source, "{path}");
        }
        assert_eq!(mount_of(&mounts[..1], "/var"), None);
    }

    #[test]
    fn swaps_are_listed() {
        // `cat /proc/swaps` after `swapon /dev/vda2 '/swap file'`.
        let text = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                    /dev/vda2                               partition\t1048572\t\t0\t\t-2\n\
                    /swap\\040file                            file\t\t65532\t\t0\t\t-3\n";
        assert_eq!(parse_swaps(text).unwrap(), ["/dev/vda2", "/swap file"]);
        assert_eq!(parse_swaps("").unwrap(), Vec::<String>::new());
        assert!(parse_swaps("/dev/vda2 partition").is_err());
        assert!(parse_swaps("Filename Type\nvda2 partition").is_err());
    }

    #[test]
    fn fstab_lines_are_read_and_comments_left_out() {
        let text = "# <file system>\n\nUUID=ab-12 / ext4 errors=remount-ro 0 1\n\
                    tank/data\t/da\\040ta  zfs\tdefaults,nofail 0 0\n/dev/vda9 none swap\n";
        let entries = parse_fstab(text).unwrap();
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[1].at, "/da ta");
        assert_eq!(entries[1].options, ["defaults", "nofail"]);
        assert_eq!(entries[2].options, ["defaults"]);
        let error = parse_fstab("\n/dev/vda9 /x").unwrap_err();
        assert!(matches!(error, MountError::Line { line: 2, .. }), "{error}");
    }

    #[test]
    fn a_path_that_is_not_there_lies_where_its_parent_does() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path()).unwrap();
        fs::create_dir_all(dir.path().join("data/lib")).unwrap();
        fs::create_dir_all(dir.path().join("var")).unwrap();
        std::os::unix::fs::symlink("/data/lib", dir.path().join("var/lib")).unwrap();
        let line = |at, source| Mount {
            device: (0, 1),
            at: String::from(at),
            subtree: "/".into(),
            fs_type: "ext4".into(),
            source: String::from(source),
            read_only: false,
        };
        let mounts = [line("/", "/dev/vda3"), line("/data", "/dev/vdb1")];
        let facts = path_facts(&root, &mounts, "/var/lib/repave/runs").unwrap();
        // Through the symlink: the mount is the target's, the path is as it was asked.
        assert_eq!(facts.source, "/dev/vdb1");
        assert_eq!(facts.path, "/var/lib/repave/runs");
        assert!(!facts.exists && facts.free.0 > 0);
        let facts = path_facts(&root, &mounts, "/var").unwrap();
        assert_eq!((facts.source.as_str(), facts.exists), ("/dev/vda3", true));
        assert!(matches!(
            path_facts(&root, &mounts[1..], "/var"),
            Err(MountError::NoMount { .. })
        ));
    }
}
