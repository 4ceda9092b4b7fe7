//! The model's disk: its volatile cache, the kernel's view of it, and udev's links.
//!
//! A write is durable after the next flush; the kernel reads the table at boot by rules
//! of its own (Linux `block/partitions/efi.c`), so that the writer is not its own judge;
//! udev makes links only while nobody holds the lock.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use nix::errno::Errno;
use repave_plan::table::crc32;
use repave_plan::units::{Bytes, Guid, PartNo};
use repave_survey::block_io::BlockRead;

use super::World;
use crate::block_io::BlockWrite;
use crate::host::LockedDisk;
use crate::kernel_table::{Held, KernelTableError, KernelView};
use crate::model_disk::ModelDisk;
use crate::zfs::device_of;

/// The disk, open and locked.
pub(super) struct Handle(pub(super) Rc<RefCell<World>>);

impl Drop for Handle {
    fn drop(&mut self) {
        let mut world = self.0.borrow_mut();
        world.locked = false;
        if world.effect("close", |_, _| {}).is_ok() {
            world.udev();
        }
    }
}

impl BlockRead for Handle {
    fn len(&self) -> u64 {
        self.0.borrow().disk.len()
    }

    fn block(&self) -> u32 {
        self.0.borrow().disk.block()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let world = self.0.borrow();
        match world.dead {
            true => Err(io::Error::other("the power is off")),
            false => world.disk.read_at(offset, buf),
        }
    }
}

impl BlockWrite for Handle {
    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.0.borrow_mut().write_disk("disk", offset, buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush_disk("disk")
    }
}

impl LockedDisk for Handle {
    fn kernel(&self) -> &dyn KernelView {
        self
    }
}

impl KernelView for Handle {
    fn parts(&self) -> Result<Vec<Held>, KernelTableError> {
        Ok(self.0.borrow().kernel.clone())
    }

    fn del(&self, number: PartNo) -> io::Result<()> {
        let mut world = self.0.borrow_mut();
        if let Some(times @ 1..) = world.busy.get_mut(&number.0) {
            *times -= 1;
            return Err(Errno::EBUSY.into());
        }
        world.effect(format!("kernel del {number}"), |world, _| {
            world.kernel.retain(|part| part.number != number);
        })
    }

    fn add(&self, part: Held) -> io::Result<()> {
        let mut world = self.0.borrow_mut();
        let end = |p: &Held| p.start.0 + p.len.0;
        let taken =
            |p: &Held| p.number == part.number || p.start.0 < end(&part) && part.start.0 < end(p);
        if world.kernel.iter().any(taken) {
            return Err(Errno::EBUSY.into());
        }
        world.effect(format!("kernel add {}", part.number), |world, _| {
            world.kernel.push(part);
            world.kernel.sort();
        })
    }

    fn resize(&self, part: Held) -> io::Result<()> {
        let mut world = self.0.borrow_mut();
        world.effect(format!("kernel resize {}", part.number), |world, _| {
            world.kernel.retain(|p| p.number != part.number);
            world.kernel.push(part);
            world.kernel.sort();
        })
    }

    fn pause(&self) -> bool {
        let mut world = self.0.borrow_mut();
        world.patience = world.patience.saturating_sub(1);
        world.patience > 0
    }
}

/// An entry of the table, as the kernel reads it.
pub(super) struct Entry {
    pub number: u32,
    pub first: u64,
    pub last: u64,
    pub guid: Guid,
}

/// The entries of the primary table; none when it is not whole: Linux looks at the
/// backup only after the primary passed.
pub(super) fn entries(disk: &ModelDisk) -> Vec<Entry> {
    whole_entries(disk).unwrap_or_default()
}

fn whole_entries(disk: &ModelDisk) -> Option<Vec<Entry>> {
    let block = u64::from(disk.block());
    let mut header = vec![0; disk.block() as usize];
    disk.read_at(block, &mut header).ok()?;
    let u32_at = |bytes: &[u8], at: usize| {
        let raw = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(raw))
    };
    let u64_at = |bytes: &[u8], at: usize| {
        let raw = bytes.get(at..at + 8)?.try_into().ok()?;
        Some(u64::from_le_bytes(raw))
    };
    let size = u32_at(&header, 12)? as usize;
    let crc = u32_at(&header, 16)?;
    let mut plain = header.get(..size)?.to_vec();
    plain[16..20].fill(0);
    if !header.starts_with(b"EFI PART") || crc32(&plain) != crc || u64_at(&header, 24)? != 1 {
        return None;
    }
    let (count, entry) = (u32_at(&header, 80)?, u32_at(&header, 84)?);
    let mut array = vec![0; (count * entry) as usize];
    disk.read_at(u64_at(&header, 72)? * block, &mut array)
        .ok()?;
    if crc32(&array) != u32_at(&header, 88)? {
        return None;
    }
    let mut found = Vec::new();
    for (index, slot) in array.chunks(entry as usize).enumerate() {
        if slot[..16].iter().all(|b| *b == 0) {
            continue;
        }
        found.push(Entry {
            number: index as u32 + 1,
            first: u64_at(slot, 32)?,
            last: u64_at(slot, 40)?,
            guid: Guid(slot[16..32].try_into().ok()?),
        });
    }
    Some(found)
}

impl World {
    pub(super) fn write_disk(&mut self, who: &str, offset: u64, buf: &[u8]) -> io::Result<()> {
        let call = format!("{who} write {offset} {}", buf.len());
        let block = self.disk.block() as usize;
        self.effect(call, |world, part| {
            let half = (buf.len() / block / 2 * block).min(buf.len());
            let bytes = match part {
                super::Part::Whole => buf,
                super::Part::Half => &buf[..half],
            };
            world.disk.write_at(offset, bytes)?;
            world.disk.forget();
            world.pending.push((offset, bytes.to_vec()));
            Ok(())
        })?
    }

    pub(super) fn flush_disk(&mut self, who: &str) -> io::Result<()> {
        self.effect(format!("{who} flush"), |world, part| {
            let keep = match part {
                super::Part::Whole => world.pending.len(),
                super::Part::Half => world.pending.len() / 2,
            };
            for (offset, bytes) in world.pending.drain(..keep) {
                world.durable.set(offset, &bytes);
            }
        })
    }

    /// What the power cut leaves of the writes that were not flushed.
    pub(super) fn settle(&mut self, how: super::Cut) {
        let block = self.disk.block() as usize;
        for (index, (offset, bytes)) in std::mem::take(&mut self.pending).into_iter().enumerate() {
            for (chunk, sector) in bytes.chunks(block).enumerate() {
                let kept = match how {
                    super::Cut::Lost => false,
                    super::Cut::Kept => true,
                    super::Cut::Torn(seed) => {
                        let mixed = (seed + index as u64 * 31 + chunk as u64 * 7 + 1)
                            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
                        mixed >> 63 == 1
                    }
                };
                if kept {
                    self.durable.set(offset + (chunk * block) as u64, sector);
                }
            }
        }
        self.disk = self.durable.clone();
    }

    /// The kernel reads the table: at boot only.
    pub(super) fn read_partitions(&mut self) {
        let block = u64::from(self.disk.block());
        self.kernel = entries(&self.disk)
            .iter()
            .map(|entry| held(entry, block))
            .collect();
    }

    /// udev links every partition that the kernel holds by the GUID in the table.
    pub(super) fn udev(&mut self) {
        let block = u64::from(self.disk.block());
        self.links = entries(&self.disk)
            .iter()
            .filter(|entry| self.kernel.contains(&held(entry, block)))
            .map(|entry| (device_of(entry.guid), held(entry, block)))
            .collect();
    }
}

fn held(entry: &Entry, block: u64) -> Held {
    Held {
        number: PartNo(entry.number),
        start: Bytes(entry.first * block),
        len: Bytes((entry.last - entry.first + 1) * block),
    }
}
