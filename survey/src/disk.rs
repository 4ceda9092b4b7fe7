//! What is on a disk: table, partitions, labels, signatures.
//!
//! Takes a disk's bytes and the kernel's view of it, gives the survey's [`Disk`]. The
//! table's own entries lead; a table that does not pass the gate is kept as bytes, for
//! the planner to refuse by name, and shows no partitions. A read error is a fact about
//! the disk and not the survey's end.

use std::collections::BTreeMap;
use std::io;

use repave_plan::survey::{Disk, LabelFact, Partition, SignatureFact, StaleLabel, TableFound, Use};
use repave_plan::table::{BackupPlace, Entry, Table, TableImage, parse_table_with};
use repave_plan::units::{BlockSize, Bytes, Extent, Lba, MIB};

use crate::block::{BlockDisk, BlockPartition, chain};
use crate::block_io::BlockRead;
use crate::labels::{LabelSet, Verdict, read_labels, scan_stale};
use crate::signature::read_signatures;

/// How much in front of the first partition is looked at for zeroed blocks, in bytes.
const GAP_MAX: u64 = MIB;

/// The first block of a GPT begins with this (UEFI 2.10, table 5.5).
const GPT_SIGNATURE: &[u8] = b"EFI PART";

/// Sees what is on a disk. What could not be seen is added to `unknown`.
pub fn read_disk(dev: &dyn BlockRead, seen: BlockDisk, unknown: &mut Vec<String>) -> Disk {
    let name = seen.name.clone();
    let mut note = |what: &str, error: &dyn std::error::Error| {
        unknown.push(format!("{what} of {name}: {}", chain(error)));
    };
    let found = match read_table(dev, seen.block) {
        Ok(found) => found,
        Err(why) => TableFound::Unreadable { why },
    };
    let table = match &found {
        // A backup that is not at the end yet is the policy's to allow or not.
        TableFound::Gpt { image } => parse_table_with(image, BackupPlace::MayMove)
            .map_err(|error| note("the partition table", &error))
            .ok(),
        _ => None,
    };
    let partitions = match &table {
        Some(table) => join(dev, table, &seen.partitions, &mut note),
        None => Vec::new(),
    };
    let zero_runs = match &table {
        Some(table) => read_zero_runs(dev, table).unwrap_or_else(|error| {
            note("the blocks in front of the first partition", &error);
            Vec::new()
        }),
        None => Vec::new(),
    };
    let stale = read_stale(dev, table.as_ref(), &seen, &partitions).unwrap_or_else(|error| {
        note("the places of earlier labels", &error);
        Vec::new()
    });
    Disk {
        uses: seen.uses,
        name: seen.name,
        node: seen.node,
        serial: seen.serial,
        wwn: seen.wwn,
        size: seen.size,
        block: seen.block,
        read_only: seen.read_only,
        table: found,
        zero_runs,
        partitions,
        stale,
    }
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

/// The table's entries with what is in them and what the kernel says of them.
fn join(
    dev: &dyn BlockRead,
    table: &Table,
    kernel: &[BlockPartition],
    note: &mut dyn FnMut(&str, &dyn std::error::Error),
) -> Vec<Partition> {
    let mut partitions = Vec::new();
    for entry in &table.entries {
        let mut partition = bare_partition(entry);
        if let Some(seen) = kernel.iter().find(|seen| seen.number == entry.number) {
            partition.kernel = Some(seen.extent);
            partition.uses = seen.uses.clone();
        }
        let range = bytes_of(&entry.extent, table.block);
        match read_labels(dev, range.clone()) {
            Ok(set) => (partition.labels, partition.remnants) = label_facts(&set),
            Err(error) => note(&format!("the ZFS labels in {}", entry.number), &error),
        }
        match read_signatures(dev, range) {
            Ok(found) => partition.signatures = found,
            Err(error) => note(&format!("the signatures in {}", entry.number), &error),
        }
        partitions.push(partition);
    }
    partitions
}

fn bare_partition(entry: &Entry) -> Partition {
    Partition {
        number: entry.number,
        extent: entry.extent,
        type_guid: entry.type_guid,
        guid: entry.guid,
        name: entry.name.clone(),
        labels: Vec::new(),
        remnants: Vec::new(),
        signatures: Vec::<SignatureFact>::new(),
        kernel: None,
        uses: Vec::<Use>::new(),
    }
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
        own.extend(
            crate::labels::label_places(&range)
                .into_iter()
                .map(|(_, offset)| offset),
        );
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
