//! Disks and partitions as the kernel shows them in sysfs.
//!
//! Takes `/sys/class/block` (and udev's database where sysfs has no serial), gives one
//! [`BlockDisk`] per real disk. Loop, RAM, dm, md, zvol and optical devices are no disks
//! here: what stands on a disk shows up as its holder. Sizes and starts in sysfs are
//! in units of 512 bytes whatever the disk's block size (Linux `block/genhd.c`).

use std::collections::BTreeMap;
use std::io;

use repave_plan::survey::Use;
use repave_plan::units::{BlockSize, Bytes, Extent, Lba, PartNo};

use crate::mounts::Mount;
use crate::root::Root;
use repave_plan::chain::chain;

const CLASS: &str = "/sys/class/block";
const SECTOR: u64 = 512;

/// Beginnings of names that are no disks: devices without a medium of their own.
const NO_DISKS: [&str; 12] = [
    "loop", "ram", "zram", "sr", "fd", "dm-", "md", "zd", "nbd", "drbd", "bcache", "mtdblock",
];

/// A disk, as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockDisk {
    /// The kernel's name.
    pub name: String,
    /// Its node.
    pub node: String,
    /// Serial number.
    pub serial: Option<String>,
    /// World wide name.
    pub wwn: Option<String>,
    /// Size in bytes.
    pub size: Bytes,
    /// Logical block size.
    pub block: BlockSize,
    /// Whether the kernel refuses writes.
    pub read_only: bool,
    /// What uses the disk as a whole.
    pub uses: Vec<Use>,
    /// Its partitions, by number.
    pub partitions: Vec<BlockPartition>,
}

/// A partition, as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockPartition {
    /// Its number.
    pub number: PartNo,
    /// The kernel's name.
    pub name: String,
    /// Its place in logical blocks.
    pub extent: Extent,
    /// What uses it.
    pub uses: Vec<Use>,
}

/// Why the disks could not be seen.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// A file could not be read.
    #[error("read {path}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A file does not hold what it must.
    #[error("take {text:?} in {path} as {expected}")]
    Value {
        /// The file.
        path: String,
        /// What it holds.
        text: String,
        /// What it must hold.
        expected: &'static str,
    },
}

/// What uses devices, from sources other than sysfs' holders.
pub struct DeviceUses<'a> {
    root: &'a Root,
    mounts: Vec<(String, (u32, u32), String)>,
    swaps: Vec<String>,
    loops: Vec<(String, String)>,
}

impl<'a> DeviceUses<'a> {
    /// Gathers mounts, swap areas and loop devices.
    pub fn read(root: &'a Root, mounts: &[Mount], swaps: &[String]) -> Result<Self, BlockError> {
        // btrfs shows an anonymous device number; its source names the device.
        let source = |mount: &Mount| match mount.source.starts_with("/dev/") {
            true => real_node(root, &mount.source),
            false => String::new(),
        };
        let mounts = mounts
            .iter()
            .map(|mount| (source(mount), mount.device, mount.at.clone()))
            .collect();
        let swaps = swaps.iter().map(|swap| real_node(root, swap)).collect();
        let mut loops = Vec::new();
        for name in list(root, CLASS)? {
            let path = format!("{CLASS}/{name}/loop/backing_file");
            if let Some(file) = text_if_there(root, &path)? {
                loops.push((name, real_node(root, &file)));
            }
        }
        Ok(DeviceUses {
            root,
            mounts,
            swaps,
            loops,
        })
    }

    fn of(&self, sysfs: &str, node: &str) -> Result<Vec<Use>, BlockError> {
        let number = device_number(self.root, sysfs)?;
        let mut uses = Vec::new();
        for name in list(self.root, &format!("{sysfs}/holders"))? {
            uses.push(Use::Holder { name });
        }
        for (source, device, at) in &self.mounts {
            if *device == number || source == node {
                uses.push(Use::Mount { at: at.clone() });
            }
        }
        if self.swaps.iter().any(|swap| swap == node) {
            uses.push(Use::Swap);
        }
        for (name, file) in &self.loops {
            if file == node {
                uses.push(Use::Loop { name: name.clone() });
            }
        }
        Ok(uses)
    }
}

/// Every disk. What is wrong with a single one is added to `unknown` and the disk left
/// out: a broken card reader must not keep a node from its survey.
pub fn read_disks(
    root: &Root,
    uses: &DeviceUses<'_>,
    unknown: &mut Vec<String>,
) -> Result<Vec<BlockDisk>, BlockError> {
    let mut disks = Vec::new();
    for name in list(root, CLASS)? {
        if is_no_disk(&name) {
            continue;
        }
        match read_disk(root, &name, uses) {
            Ok(Some(disk)) => disks.push(disk),
            Ok(None) => {}
            Err(error) => unknown.push(format!("disk {name}: {}", chain(&error))),
        }
    }
    Ok(disks)
}

/// One disk by its kernel name; `None` for a partition, an empty drive, or a path of a
/// multipath device that has no node of its own (`hidden`).
fn read_disk(
    root: &Root,
    name: &str,
    uses: &DeviceUses<'_>,
) -> Result<Option<BlockDisk>, BlockError> {
    let sysfs = format!("{CLASS}/{name}");
    if text_if_there(root, &format!("{sysfs}/partition"))?.is_some() {
        return Ok(None);
    }
    let size = number(root, &format!("{sysfs}/size"))?;
    let hidden = text_if_there(root, &format!("{sysfs}/hidden"))?.is_some_and(|text| text == "1");
    if size == 0 || hidden {
        return Ok(None);
    }
    let block = number(root, &format!("{sysfs}/queue/logical_block_size"))?;
    let block = BlockSize(u32::try_from(block).unwrap_or(u32::MAX));
    let udev = read_udev(root, &sysfs)?;
    // In sysfs an exclamation mark stands for a slash (Linux `block/genhd.c`).
    let node = format!("/dev/{}", name.replace('!', "/"));
    Ok(Some(BlockDisk {
        serial: read_serial(root, &sysfs, &udev)?,
        wwn: read_wwn(root, &sysfs, &udev)?,
        size: Bytes(size.saturating_mul(SECTOR)),
        block,
        read_only: number(root, &format!("{sysfs}/ro"))? != 0,
        uses: uses.of(&sysfs, &node)?,
        partitions: read_partitions(root, &sysfs, block, uses)?,
        name: name.to_owned(),
        node,
    }))
}

fn read_partitions(
    root: &Root,
    sysfs: &str,
    block: BlockSize,
    uses: &DeviceUses<'_>,
) -> Result<Vec<BlockPartition>, BlockError> {
    let below = root
        .list_directories(sysfs)
        .map_err(|source| read_error(sysfs, source))?;
    let mut partitions = Vec::new();
    for name in below {
        let own = format!("{sysfs}/{name}");
        let path = format!("{own}/partition");
        let Some(text) = text_if_there(root, &path)? else {
            continue;
        };
        let (start, size) = (format!("{own}/start"), format!("{own}/size"));
        partitions.push(BlockPartition {
            number: PartNo(
                text.parse()
                    .map_err(|_| bad(&path, &text, "a partition's number"))?,
            ),
            extent: extent_of(number(root, &start)?, number(root, &size)?, block)
                .ok_or_else(|| bad(&start, &name, "whole logical blocks"))?,
            uses: uses.of(&own, &format!("/dev/{}", name.replace('!', "/")))?,
            name,
        });
    }
    partitions.sort_by_key(|partition| partition.number);
    Ok(partitions)
}

/// A place in sysfs' sectors as an extent; `None` when it is empty or not whole blocks.
fn extent_of(start: u64, size: u64, block: BlockSize) -> Option<Extent> {
    let per_block = u64::from(block.0) / SECTOR;
    let whole = size > 0 && start.is_multiple_of(per_block) && size.is_multiple_of(per_block);
    let end = start.checked_add(size)?;
    whole.then(|| Extent {
        first: Lba(start / per_block),
        last: Lba(end / per_block - 1),
    })
}

/// The serial number. sysfs first: it is there before udev is, and in a pod.
fn read_serial(
    root: &Root,
    sysfs: &str,
    udev: &BTreeMap<String, String>,
) -> Result<Option<String>, BlockError> {
    // virtio-blk has it at the disk, NVMe and eMMC at the controller or card.
    for place in ["serial", "device/serial"] {
        let text = text_if_there(root, &format!("{sysfs}/{place}"))?;
        if let Some(serial) = text.and_then(|text| cleaned(&text)) {
            return Ok(Some(serial));
        }
    }
    // SCSI and SATA: the unit serial number page (SPC-4, 7.8.15).
    let page = format!("{sysfs}/device/vpd_pg80");
    match root.read_bytes(&page, 4096) {
        Ok(bytes) => {
            if let Some(serial) = parse_vpd_serial(&bytes) {
                return Ok(Some(serial));
            }
        }
        Err(error) if is_absent(&error) => {}
        Err(source) => return Err(read_error(&page, source)),
    }
    Ok(udev.get("ID_SERIAL_SHORT").and_then(|text| cleaned(text)))
}

/// The world wide name, in the form `lsblk -o WWN` prints it.
fn read_wwn(
    root: &Root,
    sysfs: &str,
    udev: &BTreeMap<String, String>,
) -> Result<Option<String>, BlockError> {
    for place in ["wwid", "device/wwid"] {
        let text = text_if_there(root, &format!("{sysfs}/{place}"))?;
        if let Some(wwn) = text.and_then(|text| cleaned(&text)) {
            return Ok(Some(match wwn.strip_prefix("naa.") {
                Some(hex) => format!("0x{hex}"),
                None => wwn,
            }));
        }
    }
    let found = udev
        .get("ID_WWN_WITH_EXTENSION")
        .or_else(|| udev.get("ID_WWN"));
    Ok(found.and_then(|text| cleaned(text)))
}

/// The serial in a unit serial number page: after four bytes of header, as long as the
/// third and fourth say.
fn parse_vpd_serial(page: &[u8]) -> Option<String> {
    let (header, rest) = page.split_first_chunk::<4>()?;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let serial = rest.get(..length).filter(|_| header[1] == 0x80)?;
    cleaned(&String::from_utf8_lossy(serial))
}

/// udev's properties of a device. Its database is made for udev alone, so this is the
/// last place that is asked.
fn read_udev(root: &Root, sysfs: &str) -> Result<BTreeMap<String, String>, BlockError> {
    let (major, minor) = device_number(root, sysfs)?;
    let path = format!("/run/udev/data/b{major}:{minor}");
    Ok(text_if_there(root, &path)?
        .map(|text| parse_udev(&text))
        .unwrap_or_default())
}

/// The `E:KEY=VALUE` lines of a record in udev's database.
fn parse_udev(text: &str) -> BTreeMap<String, String> {
    let pairs = text
        .lines()
        .filter_map(|line| line.strip_prefix("E:")?.split_once('='));
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// A text without the padding that devices put around it; `None` when nothing is left.
fn cleaned(text: &str) -> Option<String> {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn is_no_disk(name: &str) -> bool {
    NO_DISKS.iter().any(|prefix| {
        let rest = name.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '_'))
    })
}

fn real_node(root: &Root, path: &str) -> String {
    // A source that is gone or strange is compared as it is written.
    root.canonical(path).unwrap_or_else(|_| path.to_owned())
}

fn device_number(root: &Root, sysfs: &str) -> Result<(u32, u32), BlockError> {
    let path = format!("{sysfs}/dev");
    let text = text(root, &path)?;
    let parsed = text
        .split_once(':')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parsed.ok_or_else(|| bad(&path, &text, "a device number (MAJOR:MINOR)"))
}

fn number(root: &Root, path: &str) -> Result<u64, BlockError> {
    let text = text(root, path)?;
    text.parse().map_err(|_| bad(path, &text, "a number"))
}

fn text(root: &Root, path: &str) -> Result<String, BlockError> {
    let text = root
        .read_text(path)
        .map_err(|source| read_error(path, source))?;
    Ok(text.trim().to_owned())
}

fn text_if_there(root: &Root, path: &str) -> Result<Option<String>, BlockError> {
    match root.read_bytes(path, crate::root::MAX_TEXT) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned())),
        Err(error) if is_absent(&error) => Ok(None),
        Err(source) => Err(read_error(path, source)),
    }
}

/// Attributes that a device does not have are missing, or answer with an error of
/// their own when they are read.
fn is_absent(error: &io::Error) -> bool {
    use nix::libc::{EINVAL, ENODATA, ENODEV, ENOENT, ENOTDIR, ENXIO, EOPNOTSUPP};
    let known = [EINVAL, ENODATA, ENODEV, ENOENT, ENOTDIR, ENXIO, EOPNOTSUPP];
    error
        .raw_os_error()
        .is_some_and(|errno| known.contains(&errno))
}

fn list(root: &Root, path: &str) -> Result<Vec<String>, BlockError> {
    root.list(path).map_err(|source| read_error(path, source))
}

fn read_error(path: &str, source: io::Error) -> BlockError {
    BlockError::Read {
        path: path.to_owned(),
        source,
    }
}

fn bad(path: &str, text: &str, expected: &'static str) -> BlockError {
    BlockError::Value {
        path: path.to_owned(),
        text: text.chars().take(80).collect(),
        expected,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Sys(tempfile::TempDir);

    impl Sys {
        /// A disk with what every disk has.
        fn with(name: &str, dev: &str, files: &[(&str, &[u8])]) -> Sys {
            let sys = Sys(tempfile::tempdir().unwrap());
            let own = |file: &str| format!("{CLASS}/{name}/{file}");
            sys.write(&own("dev"), dev.as_bytes());
            sys.write(&own("size"), b"2048\n");
            sys.write(&own("ro"), b"0\n");
            sys.write(&own("queue/logical_block_size"), b"512\n");
            for (file, content) in files {
                match file.starts_with('/') {
                    true => sys.write(file, content),
                    false => sys.write(&own(file), content),
                }
            }
            sys
        }

        fn write(&self, path: &str, content: &[u8]) {
            let path = self.0.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        fn disks(&self) -> (Vec<BlockDisk>, Vec<String>) {
            let root = Root::at(self.0.path()).unwrap();
            let uses = DeviceUses::read(&root, &[], &[]).unwrap();
            let mut unknown = Vec::new();
            let disks = read_disks(&root, &uses, &mut unknown).unwrap();
            (disks, unknown)
        }
    }

    #[test]
    fn each_kind_of_disk_has_its_serial_and_wwn_somewhere() {
        // `od -c /sys/block/sda/device/vpd_pg80` of a SATA disk behind libata, and the
        // record of /run/udev/data of one behind a bridge without pages.
        let page = b"\0\x80\0\x14      S3Z8NB0K123456 ";
        let udev = "S:disk/by-id/x\nE:ID_SERIAL=Brand_X_0001\nE:ID_SERIAL_SHORT=0001\n\
                    E:ID_WWN=0x5002538e40b1c2d3\nE:ID_WWN_WITH_EXTENSION=0x5002538e40b1c2d3aa\n";
        type Row<'a> = (
            &'a str,
            &'a str,
            &'a [(&'a str, &'a [u8])],
            Option<&'a str>,
            Option<&'a str>,
        );
        let rows: [Row<'_>; 7] = [
            (
                "vda",
                "254:0",
                &[("serial", b"worker-1")],
                Some("worker-1"),
                None,
            ),
            (
                "nvme0n1",
                "259:0",
                &[
                    ("device/serial", b"S4EWNX0R      \n"),
                    ("wwid", b"eui.0025385b01404a3c\n"),
                ],
                Some("S4EWNX0R"),
                Some("eui.0025385b01404a3c"),
            ),
            (
                "sda",
                "8:0",
                &[
                    ("device/vpd_pg80", page),
                    ("device/wwid", b"naa.5002538e40b1c2d3\n"),
                ],
                Some("S3Z8NB0K123456"),
                Some("0x5002538e40b1c2d3"),
            ),
            (
                "sdb",
                "8:16",
                &[("/run/udev/data/b8:16", udev.as_bytes())],
                Some("0001"),
                Some("0x5002538e40b1c2d3aa"),
            ),
            // sysfs wins over udev, an empty serial is none.
            (
                "vdb",
                "8:16",
                &[
                    ("serial", b"mine\n"),
                    ("/run/udev/data/b8:16", udev.as_bytes()),
                ],
                Some("mine"),
                Some("0x5002538e40b1c2d3aa"),
            ),
            ("vdc", "254:32", &[("serial", b"\0\0  \n")], None, None),
            // The page is cut short, and another page than it should be.
            (
                "sdc",
                "8:32",
                &[("device/vpd_pg80", b"\0\x80\0\x14short")],
                None,
                None,
            ),
        ];
        for (name, dev, files, serial, wwn) in rows {
            let (disks, unknown) = Sys::with(name, dev, files).disks();
            assert_eq!(unknown, Vec::<String>::new());
            assert_eq!(disks[0].serial.as_deref(), serial, "{name}");
            assert_eq!(disks[0].wwn.as_deref(), wwn, "{name}");
        }
        assert_eq!(parse_vpd_serial(b"\0\x83\0\x04abcd"), None);
        assert_eq!(parse_vpd_serial(b"\0"), None);
    }

    #[test]
    fn what_is_no_disk_is_left_out() {
        for name in [
            "loop0",
            "ram1",
            "zram0",
            "sr0",
            "fd0",
            "dm-3",
            "md127",
            "md_d0",
            "zd16",
            "nbd1",
            "drbd0",
            "bcache0",
            "mtdblock0",
        ] {
            assert!(is_no_disk(name), "{name}");
            assert_eq!(Sys::with(name, "1:1", &[]).disks(), (vec![], vec![]));
        }
        for name in [
            "sda",
            "sdfd",
            "vda",
            "nvme0n1",
            "mmcblk0",
            "xvda",
            "srx",
            "cciss!c0d0",
        ] {
            assert!(!is_no_disk(name), "{name}");
        }
        // An empty card reader, a path below a multipath NVMe device, a partition.
        for (file, content) in [("size", b"0\n"), ("hidden", b"1\n"), ("partition", b"1\n")] {
            assert_eq!(
                Sys::with("sda", "8:0", &[(file, content)]).disks(),
                (vec![], vec![])
            );
        }
    }

    #[test]
    fn sectors_become_logical_blocks() {
        let part: &[(&str, &[u8])] = &[
            ("queue/logical_block_size", b"4096\n"),
            ("size", b"81920\n"),
            ("sda10/partition", b"10\n"),
            ("sda10/dev", b"259:1\n"),
            ("sda10/start", b"2048\n"),
            ("sda10/size", b"8192\n"),
            ("sda2/partition", b"2\n"),
            ("sda2/dev", b"8:2\n"),
            ("sda2/start", b"10240\n"),
            ("sda2/size", b"8\n"),
            ("power/control", b"auto\n"),
        ];
        let (disks, unknown) = Sys::with("sda", "8:0", part).disks();
        assert_eq!(unknown, Vec::<String>::new());
        assert_eq!(
            (disks[0].size, disks[0].block),
            (Bytes(81920 * 512), BlockSize(4096))
        );
        let found: Vec<_> = disks[0]
            .partitions
            .iter()
            .map(|p| (p.number.0, p.extent.first.0, p.extent.last.0))
            .collect();
        assert_eq!(found, [(2, 1280, 1280), (10, 256, 1279)]);
        assert_eq!(extent_of(8, 4, BlockSize(4096)), None);
        assert_eq!(extent_of(4, 8, BlockSize(4096)), None);
        assert_eq!(extent_of(8, 0, BlockSize(512)), None);
        assert_eq!(extent_of(u64::MAX, 8, BlockSize(512)), None);
        assert_eq!(extent_of(8, 8, BlockSize(0)), None);
    }

    #[test]
    fn a_disk_that_is_not_understood_is_noted_and_left_out() {
        for (file, content, part) in [
            (
                "size",
                &b"many\n"[..],
                "take \"many\" in /sys/class/block/sda/size as a number",
            ),
            ("dev", b"8\n", "as a device number"),
            ("sda1/partition", b"one\n", "as a partition's number"),
        ] {
            let (disks, unknown) = Sys::with("sda", "8:0", &[(file, content)]).disks();
            assert_eq!(disks, []);
            assert!(
                unknown[0].starts_with("disk sda: ") && unknown[0].contains(part),
                "{unknown:?}"
            );
        }
    }

    #[test]
    fn a_slash_in_a_name_is_an_exclamation_mark_in_sysfs() {
        let (disks, _) = Sys::with("cciss!c0d0", "104:0", &[]).disks();
        assert_eq!(disks[0].node, "/dev/cciss/c0d0");
    }
}
