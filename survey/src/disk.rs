//! What is on a disk: table, partitions, labels, signatures.
//!
//! Takes a disk's bytes and the kernel's view of it, gives the survey's [`Disk`]. The
//! table's own entries lead; a table that does not pass the gate is kept as bytes, for
//! the planner to refuse by name, and shows no partitions. A read error is a fact about
//! the disk and not the survey's end: the disk is then unreadable, never empty.

use std::collections::BTreeMap;
use std::io;

use repave_plan::chain::chain;
use repave_plan::survey::{Disk, LabelFact, Partition, StaleLabel, TableFound};
use repave_plan::table::{BackupPlace, Entry, Table, TableImage, parse_table_with};
use repave_plan::units::{BlockSize, Bytes, Extent, Lba, MIB};

use crate::block::{BlockDisk, BlockPartition};
use crate::block_io::BlockRead;
use crate::labels::{LabelSet, Verdict, label_places, read_labels, scan_stale};
use crate::signature::read_signatures;

/// How much in front of the first partition is looked at for zeroed blocks, in bytes.
const GAP_MAX: u64 = MIB;

/// The first block of a GPT begins with this (UEFI 2.10, table 5.5).
const GPT_SIGNATURE: &[u8] = b"EFI PART";

/// Sees what is on a disk. What could not be seen is added to `unknown`.
///
/// A disk that cannot be read in one of the places that count is unreadable as a whole:
/// a partition whose labels could not be read must never look like an empty one.
pub fn read_disk(dev: &dyn BlockRead, seen: BlockDisk, unknown: &mut Vec<String>) -> Disk {
    let content = read_content(dev, &seen, unknown).unwrap_or_else(|why| {
        unknown.push(format!("disk {}: {why}", seen.name));
        Content::unreadable(why)
    });
    with_content(seen, content)
}

/// The survey's entry for a disk that could not be opened.
pub fn unreadable_disk(seen: BlockDisk, why: String) -> Disk {
    with_content(seen, Content::unreadable(why))
}

/// What is on a disk.
struct Content {
    table: TableFound,
    zero_runs: Vec<Extent>,
    partitions: Vec<Partition>,
    stale: Vec<StaleLabel>,
}

impl Content {
    fn unreadable(why: String) -> Content {
        Content {
            table: TableFound::Unreadable { why },
            zero_runs: Vec::new(),
            partitions: Vec::new(),
            stale: Vec::new(),
        }
    }
}

fn with_content(seen: BlockDisk, content: Content) -> Disk {
    Disk {
        name: seen.name,
        node: seen.node,
        serial: seen.serial,
        wwn: seen.wwn,
        size: seen.size,
        block: seen.block,
        read_only: seen.read_only,
        table: content.table,
        zero_runs: content.zero_runs,
        partitions: content.partitions,
        stale: content.stale,
        uses: seen.uses,
    }
}

fn read_content(
    dev: &dyn BlockRead,
    seen: &BlockDisk,
    unknown: &mut Vec<String>,
) -> Result<Content, String> {
    let found = read_table(dev, seen.block)?;
    let table = match &found {
        // A backup that is not at the end yet is the policy's to allow or not.
        TableFound::Gpt { image } => parse_table_with(image, BackupPlace::MayMove)
            .map_err(|error| {
                unknown.push(format!(
                    "the partition table of {}: {}",
                    seen.name,
                    chain(&error)
                ));
            })
            .ok(),
        _ => None,
    };
    let (mut partitions, mut zero_runs) = (Vec::new(), Vec::new());
    if let Some(table) = &table {
        for entry in &table.entries {
            partitions.push(read_partition(dev, table, entry, &seen.partitions)?);
        }
        zero_runs = read_zero_runs(dev, table)
            .map_err(|error| format!("the blocks in front of the first partition: {error}"))?;
    }
    let stale = read_stale(dev, table.as_ref(), seen, &partitions)
        .map_err(|error| format!("the places of earlier labels: {error}"))?;
    Ok(Content {
        table: found,
        zero_runs,
        partitions,
        stale,
    })
}

/// Fetches both copies of the table, or says that there is none.
pub fn read_table(dev: &dyn BlockRead, block: BlockSize) -> Result<TableFound, String> {
    let size = u64::from(block.0);
    let blocks = dev.len() / size.max(1);
    let has_signature = |lba: u64| -> io::Result<bool> {
        let mut bytes = vec![0; block.0 as usize];
        dev.read_at(lba * size, &mut bytes)?;
        Ok(bytes.starts_with(GPT_SIGNATURE))
    };
    // With a header at either end it is a GPT, whole or broken.
    let is_gpt = match blocks {
        0..=2 => Ok(false),
        _ => has_signature(1).and_then(|first| Ok(first || has_signature(blocks - 1)?)),
    };
    if !is_gpt.map_err(|error| error.to_string())? {
        return Ok(TableFound::None);
    }
    let mut fetch = |first: Lba, into: &mut [u8]| dev.read_at(first.0 * size, into);
    TableImage::read(block, blocks, &mut fetch)
        .map(|image| TableFound::Gpt { image })
        .map_err(|error| chain(&error))
}

/// An entry of the table with what is in it and what the kernel says of it.
fn read_partition(
    dev: &dyn BlockRead,
    table: &Table,
    entry: &Entry,
    kernel: &[BlockPartition],
) -> Result<Partition, String> {
    let range = bytes_of(&entry.extent, table.block);
    let fail = |what, error: io::Error| format!("the {what} of {}: {error}", entry.number);
    let set = read_labels(dev, range.clone()).map_err(|error| fail("ZFS labels", error))?;
    let signatures = read_signatures(dev, range).map_err(|error| fail("signatures", error))?;
    let (labels, remnants) = label_facts(&set);
    let seen = kernel.iter().find(|seen| seen.number == entry.number);
    Ok(Partition {
        number: entry.number,
        extent: entry.extent,
        type_guid: entry.type_guid,
        guid: entry.guid,
        name: entry.name.clone(),
        labels,
        remnants,
        signatures,
        kernel: seen.map(|seen| seen.extent),
        uses: seen.map(|seen| seen.uses.clone()).unwrap_or_default(),
    })
}

/// The labels of a set, one fact per vdev in the order of their first places, and the
/// places that hold a remnant. Places of one vdev may be of different ages (a crash
/// between two writes): the newest one speaks for them.
pub fn label_facts(set: &LabelSet) -> (Vec<LabelFact>, Vec<u8>) {
    let mut facts: Vec<LabelFact> = Vec::new();
    let mut remnants = Vec::new();
    for place in &set.places {
        let info = match &place.verdict {
            Verdict::Label(info) => info,
            Verdict::Remnant(_) => {
                remnants.push(place.index);
                continue;
            }
            Verdict::Clear => continue,
        };
        let mut fact = LabelFact {
            places: vec![place.index],
            pool: info.pool_name.clone(),
            pool_guid: info.pool_guid,
            vdev_guid: info.vdev_guid,
            state: info.state as u64,
            txg: info.txg.unwrap_or(0),
            ashift: info.ashift,
            leaves: info
                .tree
                .as_ref()
                .map_or(1, |tree| tree.leaves.len() as u32),
            top_level: info.vdev_children.unwrap_or(0),
            checksum_ok: info.checksum_ok,
        };
        let same = |other: &&mut LabelFact| {
            (other.pool_guid, other.vdev_guid) == (fact.pool_guid, fact.vdev_guid)
        };
        match facts.iter_mut().find(same) {
            None => facts.push(fact),
            Some(known) => {
                let mut places = std::mem::take(&mut known.places);
                places.push(place.index);
                let checksum_ok = known.checksum_ok && fact.checksum_ok;
                if fact.txg > known.txg {
                    std::mem::swap(known, &mut fact);
                }
                known.places = places;
                known.checksum_ok = checksum_ok;
            }
        }
    }
    (facts, remnants)
}

/// Runs of zeroed blocks between the primary array and the first partition.
pub fn read_zero_runs(dev: &dyn BlockRead, table: &Table) -> io::Result<Vec<Extent>> {
    let size = u64::from(table.block.0);
    let from = table.primary_array.last.0 + 1;
    let first = table.entries.iter().map(|entry| entry.extent.first.0).min();
    let end = first
        .unwrap_or(table.last_usable.0)
        .min(from + GAP_MAX / size);
    if end <= from {
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; ((end - from) * size) as usize];
    dev.read_at(from * size, &mut bytes)?;
    let mut runs: Vec<Extent> = Vec::new();
    for (lba, block) in (from..).zip(bytes.chunks(size as usize)) {
        if block.iter().any(|byte| *byte != 0) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.last.0 + 1 == lba => run.last = Lba(lba),
            _ => runs.push(Extent {
                first: Lba(lba),
                last: Lba(lba),
            }),
        }
    }
    Ok(runs)
}

/// Labels at places that no partition's own four are.
///
/// Looked at is every vdev from a start to an end that is or could come to be: those of
/// the entries, of the partitions the kernel knows, of the gaps between them, and the
/// whole disk.
fn read_stale(
    dev: &dyn BlockRead,
    table: Option<&Table>,
    seen: &BlockDisk,
    partitions: &[Partition],
) -> io::Result<Vec<StaleLabel>> {
    let mut own = Vec::new();
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    let extents = partitions.iter().map(|partition| partition.extent);
    for extent in extents
        .clone()
        .chain(seen.partitions.iter().map(|known| known.extent))
    {
        let range = bytes_of(&extent, seen.block);
        starts.extend([range.start, range.end.next_multiple_of(MIB)]);
        ends.push(range.end.min(dev.len()));
    }
    for extent in extents {
        let range = bytes_of(&extent, seen.block);
        own.extend(label_places(&range).into_iter().map(|(_, offset)| offset));
    }
    if let Some(table) = table {
        starts.push((table.first_usable.0 * u64::from(table.block.0)).next_multiple_of(MIB));
        ends.push((table.last_usable.0 + 1) * u64::from(table.block.0));
    }
    for list in [&mut starts, &mut ends] {
        list.retain(|at| *at <= dev.len());
        list.sort_unstable();
        list.dedup();
    }
    let found = scan_stale(dev, 0..dev.len(), &starts, &ends)?;
    let mut by_offset = BTreeMap::new();
    for stale in found
        .into_iter()
        .filter(|stale| !own.contains(&stale.place.offset))
    {
        let (pool, pool_guid, vdev_guid) = match &stale.place.verdict {
            Verdict::Label(info) => (info.pool_name.clone(), info.pool_guid, Some(info.vdev_guid)),
            Verdict::Remnant(remnant) => (None, remnant.pool_guid, remnant.vdev_guid),
            Verdict::Clear => continue,
        };
        let offset = Bytes(stale.place.offset);
        by_offset.insert(
            offset,
            StaleLabel {
                offset,
                pool,
                pool_guid,
                vdev_guid,
            },
        );
    }
    Ok(by_offset.into_values().collect())
}

fn bytes_of(extent: &Extent, block: BlockSize) -> std::ops::Range<u64> {
    let start = extent.offset(block).0;
    start..start + extent.bytes(block).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labels::fixtures::{CACHE, SOLO, SparseDisk};

    const DISK: u64 = 320 << 20;

    /// A disk with one bad range.
    struct Failing(SparseDisk, std::ops::Range<u64>);

    impl BlockRead for Failing {
        fn len(&self) -> u64 {
            self.0.len()
        }

        fn block(&self) -> u32 {
            512
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            if offset < self.1.end && self.1.start < offset + buf.len() as u64 {
                return Err(io::Error::from_raw_os_error(nix::libc::EIO));
            }
            self.0.read_at(offset, buf)
        }
    }

    fn seen() -> BlockDisk {
        BlockDisk {
            name: "vda".into(),
            node: "/dev/vda".into(),
            serial: None,
            wwn: None,
            size: Bytes(DISK),
            block: BlockSize(512),
            read_only: false,
            uses: Vec::new(),
            partitions: Vec::new(),
        }
    }

    fn disk() -> SparseDisk {
        let mut disk = SparseDisk::new(DISK);
        crate::golden_tests::put_gpt(&mut disk, 512);
        SOLO.put(&mut disk, 41 << 20);
        disk
    }

    #[test]
    fn a_place_that_cannot_be_read_is_never_an_empty_one() {
        // The table, a label of the dead partition, its first signature, the gap.
        for bad in [512, 169 << 20, (316 << 20) - 4096, 40 << 10] {
            let mut unknown = Vec::new();
            let disk = read_disk(&Failing(disk(), bad..bad + 512), seen(), &mut unknown);
            let TableFound::Unreadable { why } = disk.table else {
                panic!("{bad}: {:?}", disk.table)
            };
            assert!(why.contains("os error 5"), "{why}");
            assert_eq!(disk.partitions, []);
            assert_eq!(unknown, [format!("disk vda: {why}")]);
        }
        let mut unknown = Vec::new();
        let far = 100 << 20;
        let disk = read_disk(&Failing(disk(), far..far + 512), seen(), &mut unknown);
        assert_eq!((disk.partitions.len(), unknown.len()), (4, 0));
    }

    #[test]
    fn labels_of_two_vdevs_and_of_two_ages_are_told_apart() {
        let range = 0..SOLO.size;
        let mut disk = SparseDisk::new(DISK);
        SOLO.put(&mut disk, 0);
        let (facts, remnants) = label_facts(&read_labels(&disk, range.clone()).unwrap());
        assert_eq!((facts.len(), remnants.len()), (1, 0));
        let txg = facts[0].txg;

        // A write that was cut: the second place is one group ahead, and speaks.
        let second = label_places(&range)[1].1;
        let mut ahead = SOLO.label(1);
        crate::labels::fixtures::set_number(&mut ahead, "txg", txg + 1, second);
        disk.put(second, &ahead);
        let (facts, _) = label_facts(&read_labels(&disk, range.clone()).unwrap());
        assert_eq!(facts.len(), 1);
        assert_eq!(
            (facts[0].txg, facts[0].places.as_slice()),
            (txg + 1, &[0, 1, 2, 3][..])
        );

        // One wrong checksum is enough: a byte of the padding behind the configuration.
        assert!(facts[0].checksum_ok);
        disk.put(100 << 10, &[1]);
        let (facts, _) = label_facts(&read_labels(&disk, range.clone()).unwrap());
        assert!(!facts[0].checksum_ok);

        // The last place is another device's, the third holds uberblocks only.
        disk.put(label_places(&range)[3].1, &CACHE.label(3));
        disk.put(label_places(&range)[2].1, &[0; 128 << 10]);
        let (facts, remnants) = label_facts(&read_labels(&disk, range).unwrap());
        assert_eq!(facts.len(), 2);
        assert_eq!(
            (facts[0].places.as_slice(), remnants.as_slice()),
            (&[0, 1][..], &[2][..])
        );
        assert_eq!((facts[1].places.as_slice(), facts[1].state), (&[3][..], 4));
        assert_eq!((facts[1].pool_guid, facts[1].checksum_ok), (None, false));
    }

    #[test]
    fn zero_runs_end_at_what_is_written() {
        let mut disk = disk();
        disk.put(100 * 512 + 17, &[1]);
        disk.put(34 * 512, &[1]);
        let Ok(TableFound::Gpt { image }) = read_table(&disk, BlockSize(512)) else {
            panic!("no table")
        };
        let table = parse_table_with(&image, BackupPlace::AtEnd).unwrap();
        let run = |first, last| Extent {
            first: Lba(first),
            last: Lba(last),
        };
        let runs = read_zero_runs(&disk, &table).unwrap();
        assert_eq!(runs, [run(35, 99), run(101, 2047)]);
    }

    #[test]
    fn a_backup_alone_is_still_a_table() {
        let mut disk = disk();
        disk.put(512, &[0; 512]);
        assert!(matches!(
            read_table(&disk, BlockSize(512)),
            Ok(TableFound::Gpt { .. })
        ));
        disk.put(DISK - 512, &[0; 512]);
        assert_eq!(read_table(&disk, BlockSize(512)), Ok(TableFound::None));
        assert_eq!(
            read_table(&SparseDisk::new(1024), BlockSize(512)),
            Ok(TableFound::None)
        );
    }
}
