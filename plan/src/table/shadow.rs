//! The place for the shadow array and the header that points at it.
//!
//! Takes the old and the new image and what is known of the free space, gives a
//! place; gives the LBA 1 sector that commits the new table from there. Linux, EDK2
//! and libblkid do not care where the primary array lies (UEFI 2.10, 5.3.2 lets
//! PartitionEntryLBA be any).

use crate::units::{Extent, Lba};

use super::header::{Copy, at, put_u64, seal_header};
use super::image::TableImage;
use super::parse::{BackupPlace, TableError, parse_table, parse_table_with};

/// Bytes at either end of a changed partition that the shadow keeps out of: four
/// labels, the boot area and the cache header of a ZFS vdev lie there (OpenZFS
/// `vdev_impl.h`: 4 MiB in front, 512 KiB behind).
pub const LABEL_GUARD: u64 = 4 * 1024 * 1024 + 512 * 1024;

/// The shadow begins at a multiple of this, so that a disk with 4 KiB physical
/// sectors rewrites none that hold anything else.
const SHADOW_ALIGN: u64 = 4096;

/// Finds room for one array: in front of the first partition where every byte is
/// zero, else inside an extent that the plan destroys, but where no label of the
/// new partition will be. `None` means that there is no safe place.
///
/// `zero_runs` are the extents in front of the first partition that were read and
/// found to be zero; `removed` are extents whose content is given up.
pub fn shadow_place(
    old: &TableImage,
    new: &TableImage,
    zero_runs: &[Extent],
    removed: &[Extent],
) -> Option<Extent> {
    let (before, after) = (
        parse_table_with(old, BackupPlace::MayMove).ok()?,
        parse_table(new).ok()?,
    );
    let block = u64::from(old.block.0);
    let first_partition = before
        .entries
        .iter()
        .chain(&after.entries)
        .map(|e| e.extent.first)
        .min()
        .unwrap_or(before.last_usable);
    let gap = clip(
        before.primary_array.last.0.checked_add(1)?,
        first_partition.0.checked_sub(1)?,
    );
    let guard = LABEL_GUARD.div_ceil(block);
    let changed = after.entries.iter().filter(|e| !before.entries.contains(e));
    // Inside a partition that changes there is none that stays: the gate of the new
    // table saw to that.
    let inner: Vec<Extent> = changed
        .filter_map(|e| {
            clip(
                e.extent.first.0 + guard,
                e.extent.last.0.checked_sub(guard)?,
            )
        })
        .collect();
    let gaps = zero_runs.iter().filter_map(|run| meet(*run, gap?));
    let insides = removed
        .iter()
        .flat_map(|run| inner.iter().filter_map(|i| meet(*run, *i)));
    let blocks = before.primary_array.blocks();
    gaps.chain(insides)
        .filter_map(|run| {
            let first = run
                .first
                .0
                .next_multiple_of(SHADOW_ALIGN / block.min(SHADOW_ALIGN));
            let place = clip(first, first + blocks - 1)?;
            run.contains(&place).then_some(place)
        })
        .next()
}

/// The sector for LBA 1 that makes the array at `shadow` the primary one. The first
/// usable block is raised above a shadow that lies in front of the partitions, as
/// the array must be outside the usable range.
pub fn shadow_header(new: &TableImage, shadow: Extent) -> Result<Vec<u8>, TableError> {
    let table = parse_table(new)?;
    let mut sector = new
        .header_block(Copy::Primary)
        .ok_or(TableError::Missing {
            copy: Copy::Primary,
            what: "header",
        })?
        .to_vec();
    put_u64(&mut sector, at::ARRAY_LBA, shadow.first.0);
    let in_front = table.entries.iter().all(|e| e.extent.first > shadow.last);
    if in_front && shadow.last >= table.first_usable {
        put_u64(&mut sector, at::FIRST_USABLE, shadow.last.0 + 1);
    }
    seal_header(&mut sector);
    Ok(sector)
}

fn clip(first: u64, last: u64) -> Option<Extent> {
    (first <= last).then_some(Extent {
        first: Lba(first),
        last: Lba(last),
    })
}

fn meet(a: Extent, b: Extent) -> Option<Extent> {
    clip(a.first.max(b.first).0, a.last.min(b.last).0)
}
