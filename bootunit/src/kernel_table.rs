//! The kernel's view of the partitions, brought to the new table.
//!
//! Stage: boot run, step kernel-table. Takes the planned [`KernelTable`] and a
//! [`KernelView`], tells the kernel of single partitions while others are mounted,
//! and compares what it then holds. It never touches a partition that the plan does
//! not name, and never makes one shorter: the kernel would do that to a mounted file
//! system without asking (Linux `block/partitions/core.c`, `bdev_resize_partition`).
//! The caller holds the disk's lock.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};
use nix::sys::stat::{fstat, major, minor};
use repave_plan::step::{KernelPart, KernelTable, Outcome, StepState};
use repave_plan::units::{BlockSize, Bytes, PartNo};

use crate::ioctl::{blkpg_add, blkpg_del, blkpg_resize};

/// sysfs counts in these whatever the disk's block size (Linux
/// `Documentation/ABI/stable/sysfs-block`).
const SYSFS_SECTOR: u64 = 512;

/// How long a pause between two tries lasts.
const PAUSE_MS: u8 = 20;

/// A partition as the kernel holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// Its number.
    pub number: PartNo,
    /// Where it begins.
    pub start: Bytes,
    /// Its size.
    pub len: Bytes,
}

/// What a kernel can be asked and told of one disk's partitions.
pub trait KernelView {
    /// The partitions it holds, in order of number.
    fn parts(&self) -> Result<Vec<Held>, KernelTableError>;

    /// Removes one.
    fn del(&self, number: PartNo) -> io::Result<()>;

    /// Adds one.
    fn add(&self, part: Held) -> io::Result<()>;

    /// Moves the end of one.
    fn resize(&self, part: Held) -> io::Result<()>;

    /// Waits a moment for something that has a partition open to let go of it;
    /// `false` when the time for that is up.
    fn pause(&self) -> bool;
}

/// Why the kernel's view is not the new table.
#[derive(Debug, thiserror::Error)]
pub enum KernelTableError {
    /// sysfs.
    #[error("read {path}")]
    Sysfs {
        /// The file or folder.
        path: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A file of sysfs that does not hold a number.
    #[error("read a number from {path}: found {found:?}")]
    NotANumber {
        /// The file.
        path: String,
        /// Its text, cut to 80 characters.
        found: String,
    },
    /// Somebody has the partition open. The table on the disk is right already; the
    /// next boot reads it.
    #[error("have the kernel let go of {number}: it is in use")]
    Busy {
        /// The partition.
        number: PartNo,
    },
    /// The kernel refused.
    #[error("{what} {number} in the kernel's view")]
    Refused {
        /// `remove`, `add` or `resize`.
        what: &'static str,
        /// The partition.
        number: PartNo,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The plan would make a partition shorter or move its start.
    #[error("resize {number}: from {from} + {len} to {wanted} + {wanted_len} bytes is no growth")]
    NoGrowth {
        /// The partition.
        number: PartNo,
        /// Where it begins, in bytes.
        from: u64,
        /// Its size in bytes.
        len: u64,
        /// Where it should begin.
        wanted: u64,
        /// The size it should have.
        wanted_len: u64,
    },
    /// The kernel holds neither what was before nor what shall be.
    #[error("find the planned partitions in the kernel's view: {found}")]
    Neither {
        /// What it holds.
        found: String,
    },
}

/// Where the kernel is with this step.
pub fn kernel_state(
    view: &dyn KernelView,
    plan: &KernelTable,
    block: BlockSize,
) -> Result<StepState, KernelTableError> {
    Ok(judge(&view.parts()?, plan, block))
}

/// Brings the kernel's view to the plan.
pub fn apply_kernel(
    view: &dyn KernelView,
    plan: &KernelTable,
    block: BlockSize,
) -> Result<Outcome, KernelTableError> {
    let before = view.parts()?;
    match judge(&before, plan, block) {
        StepState::After => return Ok(Outcome::AlreadyDone),
        StepState::Neither { found } => return Err(KernelTableError::Neither { found }),
        StepState::Before => {}
    }
    // ORDER: remove, then resize, then add: the kernel refuses what overlaps.
    for old in &plan.delete {
        if before.contains(&held(*old, block)) {
            remove(view, old.number)?;
        }
    }
    if let Some(part) = plan.resize {
        grow(view, &before, held(part, block))?;
    }
    if let Some(part) = plan.add {
        let refused = |source| KernelTableError::Refused {
            what: "add",
            number: part.number,
            source,
        };
        view.add(held(part, block)).map_err(refused)?;
    }
    // The calls' results are hints: udev may have re-read the table meanwhile.
    match judge(&view.parts()?, plan, block) {
        StepState::After => Ok(Outcome::Changed),
        StepState::Before => Err(KernelTableError::Neither {
            found: "it still holds the old ones".to_owned(),
        }),
        StepState::Neither { found } => Err(KernelTableError::Neither { found }),
    }
}

fn remove(view: &dyn KernelView, number: PartNo) -> Result<(), KernelTableError> {
    loop {
        let source = match view.del(number) {
            Ok(()) => return Ok(()),
            Err(source) => source,
        };
        match source.raw_os_error().map(Errno::from_raw) {
            // Any opener makes it busy, also a probe that is gone in a moment.
            Some(Errno::EBUSY) if view.pause() => {}
            Some(Errno::EBUSY) => return Err(KernelTableError::Busy { number }),
            // It vanished between looking and asking.
            Some(Errno::ENXIO) => return Ok(()),
            _ => {
                return Err(KernelTableError::Refused {
                    what: "remove",
                    number,
                    source,
                });
            }
        }
    }
}

fn grow(view: &dyn KernelView, before: &[Held], wanted: Held) -> Result<(), KernelTableError> {
    let number = wanted.number;
    match before.iter().find(|p| p.number == number) {
        Some(now) if *now == wanted => Ok(()),
        Some(now) if now.start == wanted.start && now.len < wanted.len => view
            .resize(wanted)
            .map_err(|source| KernelTableError::Refused {
                what: "resize",
                number,
                source,
            }),
        Some(now) => Err(KernelTableError::NoGrowth {
            number,
            from: now.start.0,
            len: now.len.0,
            wanted: wanted.start.0,
            wanted_len: wanted.len.0,
        }),
        None => Err(KernelTableError::Neither {
            found: format!("it holds no {number}"),
        }),
    }
}

/// Compares what the kernel holds with the plan.
fn judge(parts: &[Held], plan: &KernelTable, block: BlockSize) -> StepState {
    let wanted: Vec<Held> = plan
        .add
        .iter()
        .chain(&plan.resize)
        .map(|p| held(*p, block))
        .collect();
    let old: Vec<Held> = plan.delete.iter().map(|p| held(*p, block)).collect();
    // In grow mode the pool's partition is there before, shorter.
    let shorter = |p: &Held| {
        let grown = plan.resize.map(|r| held(r, block));
        grown.is_some_and(|g| p.number == g.number && p.start == g.start && p.len < g.len)
    };
    let mut before = false;
    for part in parts {
        let ours = wanted.iter().chain(&old).any(|w| {
            w.number == part.number
                || (part.start.0 < w.start.0.saturating_add(w.len.0)
                    && w.start.0 < part.start.0.saturating_add(part.len.0))
        });
        if !ours || wanted.contains(part) {
            continue;
        }
        if !old.contains(part) && !shorter(part) {
            return StepState::Neither {
                found: format!(
                    "it holds {} at byte {} with {} bytes",
                    part.number, part.start.0, part.len.0
                ),
            };
        }
        before = true;
    }
    match before || !wanted.iter().all(|w| parts.contains(w)) {
        true => StepState::Before,
        false => StepState::After,
    }
}

fn held(part: KernelPart, block: BlockSize) -> Held {
    Held {
        number: part.number,
        start: part.extent.offset(block),
        len: part.extent.bytes(block),
    }
}

/// The running kernel's view of one disk, through sysfs and `BLKPG`.
///
/// It holds its own duplicate of the disk's descriptor. A duplicate shares the lock
/// of `flock(2)`: the lock is gone when it is released by name or when all of them
/// are closed.
#[derive(Debug)]
pub struct SysfsKernel {
    disk: OwnedFd,
    dir: PathBuf,
    until: Instant,
}

impl SysfsKernel {
    /// The view of this open whole disk; `root` is `/` except in tests. `patience` is
    /// how long a busy partition is waited for, counted from now.
    pub fn new(disk: impl AsFd, root: &Path, patience: Duration) -> io::Result<SysfsKernel> {
        let disk = disk.as_fd().try_clone_to_owned()?;
        let device = fstat(&disk)?.st_rdev;
        let name = format!("sys/dev/block/{}:{}", major(device), minor(device));
        Ok(SysfsKernel {
            disk,
            dir: root.join(name),
            until: Instant::now() + patience,
        })
    }
}

impl KernelView for SysfsKernel {
    fn parts(&self) -> Result<Vec<Held>, KernelTableError> {
        read_parts(&self.dir)
    }

    fn del(&self, number: PartNo) -> io::Result<()> {
        blkpg_del(&self.disk, number)
    }

    fn add(&self, part: Held) -> io::Result<()> {
        blkpg_add(&self.disk, part.number, part.start, part.len)
    }

    fn resize(&self, part: Held) -> io::Result<()> {
        blkpg_resize(&self.disk, part.number, part.start, part.len)
    }

    fn pause(&self) -> bool {
        // There is no event for "nobody has it open any more": a poll of nothing is
        // the pause between two tries.
        Instant::now() < self.until && poll(&mut [], PollTimeout::from(PAUSE_MS)).is_ok()
    }
}

/// Reads `*/{partition,start,size}` below a disk's folder in sysfs.
fn read_parts(dir: &Path) -> Result<Vec<Held>, KernelTableError> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |source| KernelTableError::Sysfs { path, source }
    };
    let mut parts = Vec::new();
    for item in std::fs::read_dir(dir).map_err(failed(dir))? {
        let path = item.map_err(failed(dir))?.path();
        // Only a partition's folder has this file (Linux `block/partitions/core.c`).
        let number = match read_number(&path.join("partition")) {
            Ok(number) => number,
            Err(KernelTableError::Sysfs { source, .. })
                if matches!(
                    source.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                continue;
            }
            Err(err) => return Err(err),
        };
        let bytes = |name: &str| {
            read_number(&path.join(name)).map(|n| Bytes(n.saturating_mul(SYSFS_SECTOR)))
        };
        parts.push(Held {
            number: PartNo(
                u32::try_from(number).map_err(|_| KernelTableError::NotANumber {
                    path: path.display().to_string(),
                    found: number.to_string(),
                })?,
            ),
            start: bytes("start")?,
            len: bytes("size")?,
        });
    }
    parts.sort();
    Ok(parts)
}

fn read_number(path: &Path) -> Result<u64, KernelTableError> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(64).read_to_string(&mut text))
        .map_err(|source| KernelTableError::Sysfs {
            path: path.display().to_string(),
            source,
        })?;
    text.trim()
        .parse()
        .map_err(|_| KernelTableError::NotANumber {
            path: path.display().to_string(),
            found: text.chars().take(80).collect(),
        })
}

#[cfg(test)]
#[path = "kernel_table_tests.rs"]
mod tests;
