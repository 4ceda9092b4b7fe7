//! The table-write step on the disks that differ in what matters to it, and the
//! orders in which other tools write.

use anyhow::{Context as _, bail, ensure};
use repave_boot::block_io::BlockWrite;
use repave_boot::model_disk::ModelDisk;
use repave_boot::model_disk::gpt::{GptLayout, PartLayout};
use repave_boot::table_write::{apply_table, read_table_image, zero_runs};
use repave_plan::table::{
    Entry, MergeMode, TableChange, TableEdit, TableImage, edit, merged_spec, parse_table, relocate,
    shadow_header, shadow_place,
};
use repave_plan::units::{Extent, Lba, PartNo};
use repave_survey::block_io::BlockRead as _;

use super::Case;
use super::kernel_gpt::{Scanned, scan};

/// Which partitions are merged, and how.
#[derive(Debug, Clone, Copy)]
struct Merge {
    pool: u32,
    dead: u32,
    mode: MergeMode,
}

const USUAL: Merge = Merge {
    pool: 4,
    dead: 3,
    mode: MergeMode::Recreate,
};

struct TableCase {
    name: String,
    start: ModelDisk,
    change: TableChange,
    milestones: Vec<ModelDisk>,
    order: Order,
    old_parts: Vec<Part>,
    new_parts: Vec<Part>,
}

/// Number, first and last block, as the kernel lists a partition.
type Part = (u32, u64, u64);

/// The order of the writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Ours.
    Shadow,
    /// sgdisk and parted's: no flush before the end (gptfdisk `gpt.cc`,
    /// `SaveGPTData`).
    Sgdisk,
    /// libfdisk's: the same order with a flush after each (util-linux
    /// `libfdisk/src/gpt.c`, `gpt_write_disklabel`).
    Libfdisk,
}

/// The step on every kind of disk.
pub fn table_cases() -> anyhow::Result<Vec<Box<dyn Case>>> {
    let mut cases: Vec<Box<dyn Case>> = Vec::new();
    for block in [512, 4096] {
        let worker = GptLayout::worker(block);
        let mib = 1024 * 1024 / u64::from(block);
        // Entries far apart: two blocks of each array change.
        let mut apart = worker.clone();
        apart.parts[3].number = 120;
        let grow = Merge {
            pool: 3,
            dead: 4,
            mode: MergeMode::Grow,
        };
        let mut behind = worker.clone();
        behind.parts.push(PartLayout {
            number: 7,
            first: 61 * mib,
            last: 62 * mib - 1,
            name: "kept \u{1f4be}".to_owned(),
            attributes: 1 << 63,
        });
        let rows: [(&str, GptLayout, Merge, bool); 9] = [
            ("usual", worker.clone(), USUAL, false),
            ("shadow in a removed extent", worker.clone(), USUAL, true),
            (
                "numbers far apart",
                apart,
                Merge { pool: 120, ..USUAL },
                false,
            ),
            ("a partition behind", behind, USUAL, false),
            ("grow", worker.clone(), grow, false),
            (
                "256 entries",
                GptLayout {
                    slots: 256,
                    ..worker.clone()
                },
                USUAL,
                false,
            ),
            (
                "56 entries",
                GptLayout {
                    slots: 56,
                    ..worker.clone()
                },
                USUAL,
                false,
            ),
            (
                "header of 512 bytes",
                GptLayout {
                    header_size: 512,
                    ..worker.clone()
                },
                USUAL,
                false,
            ),
            (
                "grown disk",
                GptLayout {
                    blocks: 80 * mib,
                    ..worker
                },
                USUAL,
                false,
            ),
        ];
        for (name, layout, merge, full) in rows {
            let name = format!("{block}, {name}");
            let case = TableCase::new(name, &layout, merge, full, Order::Shadow)?;
            cases.push(Box::new(case));
        }
    }
    Ok(cases)
}

/// The controls: what the usual tools would do with the same edit.
pub(super) fn other_orders() -> anyhow::Result<Vec<Box<dyn Case>>> {
    let mut cases: Vec<Box<dyn Case>> = Vec::new();
    for block in [512, 4096] {
        for (order, name) in [
            (Order::Sgdisk, "the order of sgdisk"),
            (Order::Libfdisk, "the order of libfdisk"),
        ] {
            let layout = GptLayout::worker(block);
            let name = format!("{block}, {name}");
            cases.push(Box::new(TableCase::new(
                name, &layout, USUAL, false, order,
            )?));
        }
    }
    Ok(cases)
}

impl TableCase {
    fn new(
        name: String,
        layout: &GptLayout,
        merge: Merge,
        gap_full: bool,
        order: Order,
    ) -> anyhow::Result<TableCase> {
        let mut start = layout.build();
        let block = u64::from(layout.block);
        let array_end = 2 + layout.array_blocks();
        let first = layout.parts[0].first;
        if gap_full {
            start.set(
                array_end * block,
                &vec![0xee; ((first - array_end) * block) as usize],
            );
        }
        // Something on every partition, so that a stray write would show.
        for part in &layout.parts {
            start.set(part.first * block, &[part.number as u8; 64]);
            start.set(part.last * block, &[part.number as u8; 64]);
        }
        let change = change(&start, array_end, first, merge)?;
        let milestones = match order {
            Order::Shadow => milestones(&start, &change)?,
            Order::Sgdisk | Order::Libfdisk => Vec::new(),
        };
        Ok(TableCase {
            name,
            old_parts: list(change.old())?,
            new_parts: list(change.new_image())?,
            start,
            change,
            milestones,
            order,
        })
    }
}

fn list(image: &TableImage) -> anyhow::Result<Vec<Part>> {
    let table = parse_table(&relocate(image)?)?;
    let place = |e: &Entry| (e.number.0, e.extent.first.0, e.extent.last.0);
    Ok(table.entries.iter().map(place).collect())
}

fn change(
    start: &ModelDisk,
    array_end: u64,
    first: u64,
    merge: Merge,
) -> anyhow::Result<TableChange> {
    let old = read_table_image(start)?;
    let table = parse_table(&relocate(&old)?)?;
    let (pool, dead) = (PartNo(merge.pool), PartNo(merge.dead));
    let put = merged_spec(&table, pool, &[dead], merge.mode)?;
    let remove = match merge.mode {
        MergeMode::Recreate => vec![dead, pool],
        MergeMode::Grow => vec![dead],
    };
    let removed: Vec<Extent> = remove
        .iter()
        .filter_map(|n| table.entry(*n).map(|e| e.extent))
        .collect();
    let new = edit(
        &old,
        &TableEdit {
            remove,
            put,
            relocate_backup: true,
        },
    )?;
    let gap = Extent {
        first: Lba(array_end),
        last: Lba(first - 1),
    };
    let place = shadow_place(&old, &new, &zero_runs(start, gap)?, &removed);
    Ok(TableChange::new(
        old,
        new,
        place.context("no place for the shadow")?,
    )?)
}

/// The disks in between, laid out from the design's list of steps and not from what
/// the code writes.
fn milestones(start: &ModelDisk, change: &TableChange) -> anyhow::Result<Vec<ModelDisk>> {
    let new = change.new_image();
    let table = parse_table(new)?;
    let block = u64::from(new.block.0);
    let one = |lba: Lba| Extent {
        first: lba,
        last: lba,
    };
    let part = |extent: Extent| {
        let bytes = new.blocks(extent).context("a part of the new image")?;
        anyhow::Ok((extent.first, bytes.to_vec()))
    };
    let array = part(table.primary_array)?.1;
    let mut steps = vec![
        part(table.backup_array)?,
        part(one(table.backup_lba))?,
        (change.shadow().first, array.clone()),
        (Lba(1), shadow_header(new, change.shadow())?),
        part(table.primary_array)?,
        part(one(Lba(1)))?,
        part(one(Lba(0)))?,
        (change.shadow().first, vec![0; array.len()]),
    ];
    let mut disks = vec![start.clone()];
    for (lba, bytes) in steps.drain(..) {
        let mut disk = disks[disks.len() - 1].clone();
        disk.set(lba.0 * block, &bytes);
        disks.push(disk);
    }
    // Steps that change nothing (LBA 0 unless the backup moves) are no milestones.
    disks.dedup();
    Ok(disks)
}

impl Case for TableCase {
    fn step(&self) -> &'static str {
        "table-write"
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn start(&self) -> &ModelDisk {
        &self.start
    }

    fn apply(&self, dev: &mut dyn BlockWrite) -> anyhow::Result<()> {
        match self.order {
            Order::Shadow => {
                apply_table(&self.change, dev)?;
                Ok(())
            }
            Order::Sgdisk => write_plainly(self.change.new_image(), dev, Flushes::AtTheEnd),
            Order::Libfdisk => write_plainly(self.change.new_image(), dev, Flushes::AfterEach),
        }
    }

    fn safe(&self, disk: &ModelDisk) -> anyhow::Result<()> {
        let parts = match scan(disk) {
            Scanned::Gpt(parts) => parts,
            Scanned::Nothing { why } => bail!("Linux finds no partition: {why}"),
        };
        let (old, new) = (&self.old_parts, &self.new_parts);
        ensure!(
            parts == *old || parts == *new,
            "Linux lists neither the old nor the new partitions: {parts:?}"
        );
        // What stays is in both lists, so EFI and root are there unchanged; their
        // content must be too.
        for (number, first, last) in old.iter().filter(|p| new.contains(p)) {
            for lba in [*first, *last] {
                let mut bytes = [0u8; 64];
                disk.read_at(lba * u64::from(disk.block()), &mut bytes)?;
                ensure!(bytes == [*number as u8; 64], "p{number} was written");
            }
        }
        Ok(())
    }

    fn milestones(&self) -> &[ModelDisk] {
        &self.milestones
    }

    fn is_control(&self) -> bool {
        self.order == Order::Shadow
            && ["usual", "grown disk"]
                .iter()
                .any(|n| self.name.ends_with(n))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flushes {
    AtTheEnd,
    AfterEach,
}

/// Backup array, backup header, primary array, primary header.
fn write_plainly(
    new: &TableImage,
    dev: &mut dyn BlockWrite,
    flushes: Flushes,
) -> anyhow::Result<()> {
    let table = parse_table(new)?;
    let block = u64::from(dev.block());
    let one = |lba: Lba| Extent {
        first: lba,
        last: lba,
    };
    for extent in [
        table.backup_array,
        one(table.backup_lba),
        table.primary_array,
        one(Lba(1)),
    ] {
        let bytes = new.blocks(extent).context("a part of the new image")?;
        let mut now = vec![0u8; bytes.len()];
        dev.read_at(extent.first.0 * block, &mut now)?;
        for (lba, (want, is)) in
            (extent.first.0..).zip(bytes.chunks(block as usize).zip(now.chunks(block as usize)))
        {
            if want != is {
                dev.write_at(lba * block, want)?;
            }
        }
        if flushes == Flushes::AfterEach {
            dev.flush()?;
        }
    }
    dev.flush()?;
    Ok(())
}
