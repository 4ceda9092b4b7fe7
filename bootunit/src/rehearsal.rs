//! The new table tried in memory before anything is destroyed.
//!
//! Stage: boot run, preflight. Takes the planned change, lays each moment of the
//! commit out as a disk in memory and has it read by a second parser that shares
//! nothing with ours (the `gpt` crate, fenced because it may panic). Both must see
//! the same entries, number by number, in both copies; an untouched entry must be
//! the same 128 bytes. It reads and writes no disk.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use repave_plan::table::{BackupPlace, Entry};
use repave_plan::table::{
    Copy, Table, TableChange, TableError, TableImage, crc32, parse_table, parse_table_with,
    shadow_header,
};
use repave_plan::units::{Extent, Lba, PartNo};

/// What a rehearsal saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rehearsed {
    /// Entries of the new table.
    pub entries: usize,
    /// Copies whose header was cut to 92 bytes for the second parser, which always
    /// takes the checksum over 92. Our own parser read them as they are.
    pub normalised: Vec<Copy>,
}

/// Why the new table is not what was planned.
#[derive(Debug, thiserror::Error)]
pub enum RehearsalError {
    /// One of the tables does not pass our own gate.
    #[error("accept the {which} table")]
    Gate {
        /// `old`, `new` or `intermediate`.
        which: &'static str,
        /// What is wrong with it.
        #[source]
        source: TableError,
    },
    /// The second parser does not accept a table.
    #[error("have the {copy} copy of the {moment} table read by a second parser: {reason}")]
    Second {
        /// Which copy.
        copy: Copy,
        /// The moment of the commit.
        moment: &'static str,
        /// What it said.
        reason: String,
    },
    /// The second parser panicked.
    #[error("have the {copy} copy of the {moment} table read by a second parser: it panicked")]
    Panicked {
        /// Which copy.
        copy: Copy,
        /// The moment of the commit.
        moment: &'static str,
    },
    /// The two parsers do not see the same.
    #[error(
        "read the same {what} with both parsers in the {copy} copy of the {moment} table: \
         expected {expected}, found {found}"
    )]
    Differs {
        /// Which copy.
        copy: Copy,
        /// The moment of the commit.
        moment: &'static str,
        /// What differs.
        what: String,
        /// What ours says.
        expected: String,
        /// What the second says.
        found: String,
    },
    /// An entry that the plan does not touch is not bit for bit the same.
    #[error("keep {number} as it is: its entry would change")]
    Untouched {
        /// The partition.
        number: PartNo,
    },
}

/// Rehearses a change.
pub fn rehearse(change: &TableChange) -> Result<Rehearsed, RehearsalError> {
    let gate = |which| move |source| RehearsalError::Gate { which, source };
    let before = parse_table_with(change.old(), BackupPlace::MayMove).map_err(gate("old"))?;
    let after = parse_table(change.new_image()).map_err(gate("new"))?;
    check_untouched(change, &before, &after)?;

    let new = change.new_image();
    let mut rehearsed = Rehearsed {
        entries: after.entries.len(),
        normalised: Vec::new(),
    };
    for copy in [Copy::Primary, Copy::Backup] {
        let mut disk = MemoryDisk::of(new);
        if disk.normalise(copy, &after) {
            rehearsed.normalised.push(copy);
        }
        compare(
            disk,
            copy,
            "new",
            &after,
            after_array(&after, copy),
            after.first_usable,
        )?;
    }
    // The moment after the commit: LBA 1 points at the shadow array.
    let mut disk = MemoryDisk::of(new);
    let sector = shadow_header(new, change.shadow()).map_err(gate("intermediate"))?;
    let size = u64::from(new.block.0);
    let array = new.blocks(after.primary_array).unwrap_or_default();
    disk.put(size, &sector);
    disk.put(change.shadow().first.0 * size, array);
    disk.normalise(Copy::Primary, &after);
    let first_usable = match change.shadow_in_gap().map_err(gate("intermediate"))? {
        true => after.first_usable.max(Lba(change.shadow().last.0 + 1)),
        false => after.first_usable,
    };
    compare(
        disk,
        Copy::Primary,
        "intermediate",
        &after,
        change.shadow(),
        first_usable,
    )?;
    Ok(rehearsed)
}

/// Every slot whose entry is in both tables under its number is the same bytes; the
/// slots that no table uses are too, as far as the plan does not name them.
fn check_untouched(
    change: &TableChange,
    before: &Table,
    after: &Table,
) -> Result<(), RehearsalError> {
    let slots = |image: &TableImage, extent| {
        let bytes = image.blocks(extent).unwrap_or_default();
        bytes
            .chunks_exact(128)
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>()
    };
    // A slot may change only when its partition is removed, made or grown, so when
    // the parsed entries differ: unused or equal on both sides means untouched.
    for (old_array, new_array) in [
        (before.primary_array, after.primary_array),
        (before.backup_array, after.backup_array),
    ] {
        let (old, new) = (
            slots(change.old(), old_array),
            slots(change.new_image(), new_array),
        );
        for number in (1..=after.slots).map(PartNo) {
            let at = number.0 as usize - 1;
            let planned = before.entry(number) != after.entry(number);
            if !planned && old.get(at) != new.get(at) {
                return Err(RehearsalError::Untouched { number });
            }
        }
    }
    Ok(())
}

fn after_array(table: &Table, copy: Copy) -> Extent {
    match copy {
        Copy::Primary => table.primary_array,
        Copy::Backup => table.backup_array,
    }
}

/// What the second parser read of one copy.
struct Second {
    header: gpt::header::Header,
    partitions: Vec<(u32, gpt::partition::Partition)>,
}

/// Has one copy read by the second parser and compares field by field.
fn compare(
    disk: MemoryDisk,
    copy: Copy,
    moment: &'static str,
    expected: &Table,
    array: Extent,
    first_usable: Lba,
) -> Result<(), RehearsalError> {
    let block = expected.block.0;
    let second = match catch_unwind(AssertUnwindSafe(|| read_second(disk, copy, block))) {
        Ok(Ok(second)) => second,
        Ok(Err(reason)) => {
            return Err(RehearsalError::Second {
                copy,
                moment,
                reason,
            });
        }
        Err(_) => return Err(RehearsalError::Panicked { copy, moment }),
    };
    let same = |what: String, expected: String, found: String| match expected == found {
        true => Ok(()),
        false => Err(RehearsalError::Differs {
            copy,
            moment,
            what,
            expected,
            found,
        }),
    };
    let h = &second.header;
    let (own, other) = match copy {
        Copy::Primary => (Lba(1), expected.backup_lba),
        Copy::Backup => (expected.backup_lba, Lba(1)),
    };
    for (what, expected, found) in [
        ("own address", own.0, h.current_lba),
        ("other copy's address", other.0, h.backup_lba),
        ("first usable block", first_usable.0, h.first_usable),
        ("last usable block", expected.last_usable.0, h.last_usable),
        ("array's address", array.first.0, h.part_start),
        (
            "number of slots",
            u64::from(expected.slots),
            u64::from(h.num_parts),
        ),
        ("size of a slot", 128, u64::from(h.part_size)),
    ] {
        same(what.to_owned(), expected.to_string(), found.to_string())?;
    }
    let guid = |uuid: &[u8; 16]| repave_plan::units::Guid(*uuid).to_string();
    same(
        "disk GUID".to_owned(),
        expected.disk_guid.to_string(),
        guid(&h.disk_guid.to_bytes_le()),
    )?;
    let numbers = |mut it: Vec<u32>| {
        it.sort_unstable();
        format!("{it:?}")
    };
    same(
        "numbers".to_owned(),
        numbers(expected.entries.iter().map(|e| e.number.0).collect()),
        numbers(second.partitions.iter().map(|(n, _)| *n).collect()),
    )?;
    for (ours, (number, theirs)) in expected.entries.iter().zip(&second.partitions) {
        let found = format!(
            "{number} {} {} {} {} {:#x} {:?}",
            guid(&theirs.part_type_guid.guid.to_bytes_le()),
            guid(&theirs.part_guid.to_bytes_le()),
            theirs.first_lba,
            theirs.last_lba,
            theirs.flags,
            theirs.name,
        );
        same(format!("entry {}", ours.number), describe(ours), found)?;
    }
    Ok(())
}

fn describe(entry: &Entry) -> String {
    format!(
        "{} {} {} {} {} {:#x} {:?}",
        entry.number.0,
        entry.type_guid,
        entry.guid,
        entry.extent.first.0,
        entry.extent.last.0,
        entry.attributes,
        entry.name,
    )
}

fn read_second(mut disk: MemoryDisk, copy: Copy, block: u32) -> Result<Second, String> {
    let size = gpt::disk::LogicalBlockSize::try_from(u64::from(block)).map_err(chain)?;
    // It reads the entries of the first header that is whole: the backup's are seen
    // only when there is no primary.
    if copy == Copy::Backup {
        disk.put(u64::from(block), &[0; 8]);
    }
    let read = gpt::GptConfig::new()
        .writable(false)
        .logical_block_size(size)
        .open_from_device(disk)
        .map_err(chain)?;
    let header = match copy {
        Copy::Primary => read.primary_header(),
        Copy::Backup => read.backup_header(),
    };
    Ok(Second {
        header: header.map_err(|e| format!("{e:?}"))?.clone(),
        partitions: read
            .partitions()
            .iter()
            .filter(|(_, p)| !p.part_type_guid.guid.is_nil())
            .map(|(n, p)| (*n, p.clone()))
            .collect(),
    })
}

fn chain(err: impl std::error::Error) -> String {
    let mut text = err.to_string();
    let mut cause = err.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

/// A disk of which only the table's ends are there; the rest reads as zeros. It
/// refuses to be written.
#[derive(Debug)]
struct MemoryDisk {
    block: u32,
    len: u64,
    /// Later pieces hide earlier ones.
    pieces: Vec<(u64, Vec<u8>)>,
    at: u64,
}

impl MemoryDisk {
    fn of(image: &TableImage) -> MemoryDisk {
        let block = u64::from(image.block.0);
        MemoryDisk {
            block: image.block.0,
            len: image.disk_blocks * block,
            pieces: vec![
                (0, image.head.clone()),
                (image.tail_first.0 * block, image.tail.clone()),
            ],
            at: 0,
        }
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        self.pieces.push((offset, bytes.to_vec()));
    }

    /// Cuts a larger header to the 92 bytes that the second parser knows; whether
    /// that was needed.
    fn normalise(&mut self, copy: Copy, table: &Table) -> bool {
        let lba = match copy {
            Copy::Primary => Lba(1),
            Copy::Backup => table.backup_lba,
        };
        let offset = lba.0 * u64::from(self.block);
        let mut header = [0u8; 92];
        self.fill(offset, &mut header);
        if header[12..16] == 92u32.to_le_bytes() {
            return false;
        }
        header[12..16].copy_from_slice(&92u32.to_le_bytes());
        header[16..20].fill(0);
        let crc = crc32(&header);
        header[16..20].copy_from_slice(&crc.to_le_bytes());
        self.put(offset, &header);
        true
    }

    fn fill(&self, offset: u64, into: &mut [u8]) {
        into.fill(0);
        for (start, bytes) in &self.pieces {
            let from = offset.max(*start);
            let end = (offset + into.len() as u64).min(start + bytes.len() as u64);
            if from < end {
                let source = &bytes[(from - start) as usize..(end - start) as usize];
                into[(from - offset) as usize..(end - offset) as usize].copy_from_slice(source);
            }
        }
    }
}

impl Read for MemoryDisk {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = (buf.len() as u64).min(self.len.saturating_sub(self.at)) as usize;
        self.fill(self.at, &mut buf[..len]);
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for MemoryDisk {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = target.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

impl Write for MemoryDisk {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use repave_plan::table::{MergeMode, TableEdit, edit, merged_spec};

    use super::*;
    use crate::model_disk::gpt::GptLayout;
    use crate::table_write::read_table_image;

    fn change(layout: &GptLayout) -> TableChange {
        let old = read_table_image(&layout.build()).unwrap();
        let table = parse_table(&old).unwrap();
        let put = merged_spec(&table, PartNo(4), &[PartNo(3)], MergeMode::Recreate).unwrap();
        let new = edit(
            &old,
            &TableEdit {
                remove: vec![PartNo(3), PartNo(4)],
                put,
                relocate_backup: false,
            },
        )
        .unwrap();
        let first = (table.primary_array.last.0 + 1).next_multiple_of(8);
        let last = first + table.primary_array.blocks() - 1;
        let shadow = Extent {
            first: Lba(first),
            last: Lba(last),
        };
        TableChange::new(old, new, shadow).unwrap()
    }

    #[test]
    fn good_changes_pass_and_large_headers_are_said_to_be_normalised() {
        for block in [512, 4096] {
            for slots in [56, 128, 256] {
                for header_size in [92, 512] {
                    let layout = GptLayout {
                        slots,
                        header_size,
                        ..GptLayout::worker(block)
                    };
                    let normalised = match header_size {
                        92 => vec![],
                        _ => vec![Copy::Primary, Copy::Backup],
                    };
                    assert_eq!(
                        rehearse(&change(&layout)).unwrap(),
                        Rehearsed {
                            entries: 3,
                            normalised
                        }
                    );
                }
            }
        }
    }

    #[test]
    fn an_unplanned_bit_in_an_unused_slot_is_seen() {
        // Both copies of slot 9 change, checksums right: our gate passes it, the
        // entries are the same, and still it is no change that anybody planned.
        let good = change(&GptLayout::worker(512));
        let mut bad = good.new_image().clone();
        let at = 8 * 128 + 100;
        bad.head[1024 + at] ^= 1;
        bad.tail[at] ^= 1;
        let crc = crc32(&bad.head[1024..1024 + 128 * 128]);
        let end = bad.tail.len() - 512;
        for header in [&mut bad.head[512..1024], &mut bad.tail[end..]] {
            header[88..92].copy_from_slice(&crc.to_le_bytes());
            header[16..20].fill(0);
            let crc = crc32(&header[..92]);
            header[16..20].copy_from_slice(&crc.to_le_bytes());
        }
        let bad = TableChange::new(good.old().clone(), bad, good.shadow()).unwrap();
        assert!(matches!(
            rehearse(&bad),
            Err(RehearsalError::Untouched { number: PartNo(9) })
        ));
    }

    /// The comparison must not be blind: what the second parser sees is broken here
    /// in one field at a time, with all checksums right.
    #[test]
    fn each_field_of_the_second_opinion_counts() {
        let change = change(&GptLayout::worker(512));
        let table = parse_table(change.new_image()).unwrap();
        let backup = table.backup_lba.0 * 512;
        let rows = [
            (Copy::Primary, 24, "own address"),
            (Copy::Primary, 32, "other copy's address"),
            (Copy::Primary, 40, "first usable block"),
            (Copy::Backup, 48, "last usable block"),
            (Copy::Backup, 56, "disk GUID"),
            (Copy::Primary, 1024 + 2 * 128, "entry p3"),
            (Copy::Primary, 1024 + 128 + 16, "entry p2"),
            (Copy::Primary, 1024 + 2 * 128 + 32, "entry p3"),
            (Copy::Primary, 1024 + 2 * 128 + 40, "entry p3"),
            (Copy::Primary, 1024 + 2 * 128 + 48, "entry p3"),
            (Copy::Primary, 1024 + 2 * 128 + 56, "entry p3"),
            (Copy::Primary, 1024 + 7 * 128, "numbers"),
        ];
        for (copy, at, what) in rows {
            let mut disk = MemoryDisk::of(change.new_image());
            let header_at = match copy {
                Copy::Primary => 512,
                Copy::Backup => backup,
            };
            let target = if at < 512 { header_at + at } else { at };
            let mut byte = [0u8];
            disk.fill(target, &mut byte);
            disk.put(target, &[byte[0] ^ 1]);
            let mut array = vec![0u8; 128 * 128];
            disk.fill(1024, &mut array);
            let mut header = [0u8; 92];
            disk.fill(header_at, &mut header);
            if copy == Copy::Primary {
                header[88..92].copy_from_slice(&crc32(&array).to_le_bytes());
            }
            header[16..20].fill(0);
            let crc = crc32(&header);
            header[16..20].copy_from_slice(&crc.to_le_bytes());
            disk.put(header_at, &header);
            let array = after_array(&table, copy);
            match compare(disk, copy, "new", &table, array, table.first_usable) {
                Err(RehearsalError::Differs { what: found, .. }) => assert_eq!(found, what),
                other => panic!("{what}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_panic_of_the_second_parser_is_an_error() {
        let change = change(&GptLayout::worker(512));
        let table = parse_table(change.new_image()).unwrap();
        let mut disk = MemoryDisk::of(change.new_image());
        let mut header = [0u8; 92];
        disk.fill(512, &mut header);
        header[84] = 0; // entry size 0x100 once the next byte is set
        header[85] = 1;
        header[16..20].fill(0);
        let crc = crc32(&header);
        header[16..20].copy_from_slice(&crc.to_le_bytes());
        disk.put(512, &header);
        let array = table.primary_array;
        let err = compare(
            disk,
            Copy::Primary,
            "new",
            &table,
            array,
            table.first_usable,
        );
        assert!(
            matches!(err, Err(RehearsalError::Panicked { .. })),
            "{err:?}"
        );
    }
}
