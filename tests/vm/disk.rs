//! Partitioned disks: the worker's system disk in both orders, and any other layout
//! for a second disk. Sparse files, so 457.8 GiB cost what was written.
//!
//! sgdisk makes the tables, as an installer would; fixed GUIDs make them the same
//! each time.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::cache;
use super::command::Run;

/// The serial number of the system disk.
pub const DISK_SERIAL: &str = "LABDISK0";
/// The serial number of a second disk.
pub const SECOND_SERIAL: &str = "LABDISK1";
/// The disk GUID of the system disk.
pub const DISK_GUID: &str = "11111111-2222-4333-8444-555555555555";

/// 457.8 GiB, the worker's disk, in sectors of 512 bytes, down to a whole MiB.
const WORKER_SECTORS: u64 = 4578 * (1 << 30) / 10 / 512 / 2048 * 2048;
const MIB: u64 = 2048;
const GIB: u64 = 1024 * MIB;

/// Which of the two comes first behind the root partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// p4 is the pool `tank`, p5 the dead partition `mayastor`.
    TankFirst,
    /// p4 is the dead partition `mayastor`, p5 the pool `tank`.
    DeadFirst,
}

impl Order {
    /// The name in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Order::TankFirst => "tank-first",
            Order::DeadFirst => "dead-first",
        }
    }

    /// The number of the pool's partition.
    pub fn tank(self) -> u32 {
        match self {
            Order::TankFirst => 4,
            Order::DeadFirst => 5,
        }
    }

    /// The number of the dead partition.
    pub fn dead(self) -> u32 {
        9 - self.tank()
    }
}

impl std::str::FromStr for Order {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "tank-first" => Ok(Order::TankFirst),
            "dead-first" => Ok(Order::DeadFirst),
            other => anyhow::bail!("no order {other}: tank-first or dead-first"),
        }
    }
}

/// One partition, placed behind the one before it at the next whole MiB.
#[derive(Debug, Clone)]
pub struct Part {
    /// The partition's name in the table.
    pub name: String,
    /// sgdisk's four-digit type code.
    pub code: &'static str,
    /// Sectors of 512 bytes; `None` is all up to the last usable one.
    pub sectors: Option<u64>,
    /// The partition's own GUID.
    pub guid: String,
}

/// A whole disk.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Its size in sectors of 512 bytes.
    pub sectors: u64,
    /// Its GUID.
    pub guid: String,
    /// Its partitions, numbered from 1.
    pub parts: Vec<Part>,
}

impl Layout {
    /// The worker's layout with the system disk's GUIDs.
    pub fn worker(order: Order) -> Self {
        let tank = ("tank", "BF01", 143 * GIB);
        // 288.8 GiB, down to a whole MiB.
        let dead = ("mayastor", "8300", 2888 * GIB / 10 / MIB * MIB);
        let (fourth, fifth) = match order {
            Order::TankFirst => (tank, dead),
            Order::DeadFirst => (dead, tank),
        };
        let sized = [
            ("EFI", "EF00", 512 * MIB),
            ("boot", "8300", GIB),
            ("root", "8304", 24 * GIB + GIB / 2),
            fourth,
        ];
        let mut parts: Vec<Part> = Vec::new();
        for (name, code, sectors) in sized {
            parts.push(part(parts.len(), name, code, Some(sectors)));
        }
        parts.push(part(parts.len(), fifth.0, fifth.1, None));
        Layout {
            sectors: WORKER_SECTORS,
            guid: DISK_GUID.to_owned(),
            parts,
        }
    }

    /// The same layout with other GUIDs, for a disk that stands beside the system
    /// disk: the first digit of each becomes `tag`, which should not be 0 or 1.
    pub fn retagged(mut self, tag: char) -> Self {
        for guid in
            std::iter::once(&mut self.guid).chain(self.parts.iter_mut().map(|p| &mut p.guid))
        {
            guid.replace_range(..1, tag.encode_utf8(&mut [0; 4]));
        }
        self
    }
}

fn part(index: usize, name: &str, code: &'static str, sectors: Option<u64>) -> Part {
    let guid = format!("00000000-0000-4000-8000-{:012}", index + 1);
    Part {
        name: name.to_owned(),
        code,
        sectors,
        guid,
    }
}

/// Makes `path` a sparse raw disk with `layout` and nothing in its partitions.
pub fn make_disk(path: &Path, layout: &Layout) -> Result<()> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    file.set_len(layout.sectors * 512)?;
    drop(file);
    let mut args = vec![format!("--disk-guid={}", layout.guid)];
    for (index, part) in layout.parts.iter().enumerate() {
        let number = index + 1;
        let end = match part.sectors {
            // sgdisk takes whole KiB here: two sectors each.
            Some(sectors) => format!("+{}K", sectors / 2),
            None => "0".to_owned(),
        };
        args.push(format!("--new={number}:0:{end}"));
        args.push(format!("--typecode={number}:{}", part.code));
        args.push(format!("--change-name={number}:{}", part.name));
        args.push(format!("--partition-guid={number}:{}", part.guid));
    }
    Run::new("sgdisk").args(args).arg(path).run()
}

/// Fills the worker's partitions on `disk`: files in EFI and boot, the system of
/// `tree` in root, and in the dead partition bytes that are no file system.
pub fn fill_worker(disk: &Path, order: Order, tree: &Path) -> Result<()> {
    let efi = extent(disk, 1)?;
    let mut image = disk.to_owned().into_os_string();
    image.push(".efi");
    let image = Path::new(&image);
    File::create(image)?.set_len(efi.sectors * 512)?;
    Run::new("mkfs.vfat")
        .args(["-F", "32", "-n", "EFI", "-i", "0EF10EF1"])
        .arg(image)
        .run()?;
    for name in ["BOOTX64.EFI", "GRUBX64.EFI"] {
        let mut file = disk.to_owned().into_os_string();
        file.push(".file");
        std::fs::write(&file, noise(name, 300_000))?;
        let target = format!("::/{name}");
        Run::new("mcopy")
            .arg("-i")
            .arg(image)
            .args([file.as_os_str(), target.as_ref()])
            .run()?;
        std::fs::remove_file(file)?;
    }
    Run::new("dd")
        .arg(format!("if={}", image.display()))
        .arg(format!("of={}", disk.display()))
        .args(["bs=1M", "conv=notrunc,sparse", "status=none"])
        .arg(format!("seek={}", efi.start / MIB))
        .run()?;
    std::fs::remove_file(image)?;

    // The kernel and its like stand in /boot of the tree; that partition gets them.
    let boot = tree.join("boot");
    make_ext4(disk, 2, "boot", &boot)?;
    cache::remove(&boot)?;
    std::fs::create_dir(&boot)?;
    make_ext4(disk, 3, "root", tree)?;

    let dead = extent(disk, order.dead())?;
    let file = OpenOptions::new().write(true).open(disk)?;
    file.write_all_at(&noise("mayastor", 4 << 20), dead.start * 512)?;
    Ok(())
}

fn make_ext4(disk: &Path, number: u32, label: &str, tree: &Path) -> Result<()> {
    let extent = extent(disk, number)?;
    Run::new("mkfs.ext4")
        .args(["-q", "-F", "-L", label, "-U"])
        .arg(format!("33333333-0000-4000-8000-{number:012}"))
        .arg("-E")
        .arg(format!(
            "offset={},lazy_itable_init=1,lazy_journal_init=1",
            extent.start * 512
        ))
        .arg("-d")
        .args([tree, disk])
        .arg(format!("{}k", extent.sectors / 2))
        .run()
}

struct Extent {
    start: u64,
    sectors: u64,
}

fn extent(disk: &Path, number: u32) -> Result<Extent> {
    let info = Run::new("sgdisk")
        .arg(format!("--info={number}"))
        .arg(disk)
        .text()?;
    parse_extent(&info).with_context(|| format!("partition {number} of {}", disk.display()))
}

fn parse_extent(info: &str) -> Result<Extent> {
    let field = |name: &str| -> Result<u64> {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        let line = line.with_context(|| format!("sgdisk printed no `{name}`"))?;
        Ok(line.split_whitespace().next().unwrap_or_default().parse()?)
    };
    Ok(Extent {
        start: field("First sector: ")?,
        sectors: field("Partition size: ")?,
    })
}

/// Bytes without structure that are the same each time.
fn noise(seed: &str, count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count + 32);
    let mut counter = 0_u64;
    while bytes.len() < count {
        bytes.extend_from_slice(&Sha256::digest(format!("{seed} {counter}")));
        counter += 1;
    }
    bytes.truncate(count);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_has_the_sizes_of_the_reference_cluster() {
        let worker = Layout::worker(Order::DeadFirst);
        assert_eq!(worker.sectors * 512, 491_558_797_312);
        let names: Vec<_> = worker.parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names, ["EFI", "boot", "root", "mayastor", "tank"]);
        let sizes: Vec<_> = worker.parts.iter().map(|part| part.sectors).collect();
        let dead = Some(605_657_088);
        assert_eq!(
            sizes,
            [
                Some(1_048_576),
                Some(2_097_152),
                Some(51_380_224),
                dead,
                None
            ]
        );
    }

    #[test]
    fn a_retagged_layout_shares_no_guid() {
        let main = Layout::worker(Order::TankFirst);
        let second = main.clone().retagged('a');
        assert_ne!(main.guid, second.guid);
        for (one, other) in main.parts.iter().zip(&second.parts) {
            assert_ne!(one.guid, other.guid);
            assert_eq!(one.guid[1..], other.guid[1..]);
        }
    }

    #[test]
    fn the_extent_is_read_from_sgdisk() {
        let info = "First sector: 2048 (at 1024.0 KiB)\nLast sector: 1050623 (at 513.0 MiB)\n\
                    Partition size: 1048576 sectors (512.0 MiB)\n";
        let extent = parse_extent(info).unwrap();
        assert_eq!((extent.start, extent.sectors), (2048, 1_048_576));
    }
}
