//! Reads what QEMU's `blklogwrites` driver logged: every write and flush of a disk.
//!
//! The format is that of the kernel's dm-log-writes (`Documentation/admin-guide/
//! device-mapper/log-writes.rst`): a superblock, then for each entry one sector with
//! four little-endian u64 (sector, number of sectors, flags, length of inline data),
//! then the data.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The superblock's magic.
const MAGIC: u64 = 0x006a_7366_7773_6872;
/// The entry is a flush.
const FLUSH: u64 = 1;
/// The entry is a discard and carries no data.
const DISCARD: u64 = 4;

/// One write, discard or flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedWrite {
    /// First sector of 512 bytes.
    pub sector: u64,
    /// How many.
    pub count: u64,
    /// Whether it is a flush.
    pub flush: bool,
}

/// Every entry that is in the log now. QEMU counts entries in the superblock only now
/// and then, so the log is read to its end.
pub fn read_write_log(path: &Path) -> Result<Vec<LoggedWrite>> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let end = file.metadata()?.len();
    let mut file = BufReader::new(file);
    let mut head = [0u8; 28];
    file.read_exact(&mut head).context("read the superblock")?;
    let word = |bytes: &[u8], at: usize| {
        let mut raw = [0u8; 8];
        raw.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(raw)
    };
    let magic = word(&head, 0);
    ensure!(magic == MAGIC, "{} begins with {magic:#x}", path.display());
    let sector_size = u64::from(u32::from_le_bytes([head[24], head[25], head[26], head[27]]));
    ensure!(
        sector_size == 512,
        "the log counts in sectors of {sector_size} bytes"
    );
    let mut at = sector_size;
    let mut entries = Vec::new();
    while at + sector_size <= end {
        file.seek(SeekFrom::Start(at))?;
        let mut entry = [0u8; 32];
        file.read_exact(&mut entry)?;
        let (sector, count, flags) = (word(&entry, 0), word(&entry, 8), word(&entry, 16));
        if (sector, count, flags) == (0, 0, 0) {
            break;
        }
        let data = if flags & DISCARD == 0 {
            count * sector_size
        } else {
            0
        };
        at += sector_size + data;
        // A write whose data is not there yet is not written yet either.
        if at > end {
            break;
        }
        entries.push(LoggedWrite {
            sector,
            count,
            flush: flags & FLUSH != 0,
        });
    }
    Ok(entries)
}
