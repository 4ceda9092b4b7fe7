//! ZFS vdev labels, read without any ZFS at hand.
//!
//! Takes a disk (or an image) and a range of bytes on it, and gives what stands at
//! the four places where a vdev of that size keeps its labels: the first two and the
//! last two 256 KiB, counted on the size rounded down to 256 KiB (OpenZFS
//! `include/sys/vdev_impl.h`, `module/zfs/vdev_label.c`). [`scan_stale`] looks where
//! vdevs of other sizes would keep theirs. Reads only, and never decides what goes.

pub mod checksum;
pub mod info;
pub mod nvlist;
pub mod render;
pub mod stale;
pub mod uberblock;

use std::io;
use std::ops::Range;

use repave_plan::units::PoolGuid;
use serde::{Deserialize, Serialize};

pub use info::{LABEL_SIZE, LabelInfo, LabelState, Remnant, VdevLeaf, VdevTree, Verdict};
pub use render::render;
pub use stale::{StaleLabel, scan_stale};
pub use uberblock::Uberblock;

use crate::block_io::BlockRead;
use info::{ParsedLabel, parse_label};

/// Where a cache device keeps its header, in bytes from its start
/// (`VDEV_LABEL_START_SIZE`).
pub const L2ARC_HEADER: u64 = 4 << 20;
/// Size of that header in bytes (`l2arc_dev_hdr_phys_t`).
pub const L2ARC_HEADER_SIZE: u64 = 512;
/// `L2ARC_DEV_HDR_MAGIC`, "ZFSCACHE".
const L2ARC_MAGIC: u64 = 0x5a46_5343_4143_4845;

/// All label places of one extent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelSet {
    /// The extent on the disk, in bytes.
    pub extent: Range<u64>,
    /// The four places in order; none when the extent is too small for four labels.
    pub places: Vec<Place>,
    /// Whether the header of a cache device stands at 4 MiB.
    pub l2arc_header: bool,
}

/// One place where a label can be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The label's number, 0 to 3.
    pub index: u8,
    /// Its offset from the start of the disk, in bytes.
    pub offset: u64,
    /// What stands there.
    pub verdict: Verdict,
    /// Uberblocks in its ring.
    pub uberblocks: u32,
    /// The newest of them.
    pub newest: Option<Uberblock>,
}

impl LabelSet {
    /// The labels, in the order of their places.
    pub fn labels(&self) -> impl Iterator<Item = &LabelInfo> {
        self.places.iter().filter_map(|place| match &place.verdict {
            Verdict::Label(info) => Some(info.as_ref()),
            _ => None,
        })
    }

    /// The guids of the pools named by labels or by what is left of them, once each,
    /// in the order of their places.
    pub fn pool_guids(&self) -> Vec<PoolGuid> {
        let mut guids = Vec::new();
        for place in &self.places {
            let guid = match &place.verdict {
                Verdict::Label(info) => info.pool_guid,
                Verdict::Remnant(remnant) => remnant.pool_guid,
                Verdict::Clear => None,
            };
            guids.extend(guid.filter(|guid| !guids.contains(guid)));
        }
        guids
    }

    /// Whether nothing of ZFS stands at any of the places.
    pub fn is_clear(&self) -> bool {
        self.places
            .iter()
            .all(|place| place.verdict == Verdict::Clear)
    }
}

/// The numbers and disk offsets (bytes) of an extent's label places; none when it
/// has no room for four. ZFS itself wants 64 MiB (`SPA_MINDEVSIZE`).
pub fn label_places(extent: &Range<u64>) -> Vec<(u8, u64)> {
    let size = extent.end.saturating_sub(extent.start) / LABEL_SIZE * LABEL_SIZE;
    if size < 4 * LABEL_SIZE {
        return Vec::new();
    }
    let tail = extent.start + size;
    vec![
        (0, extent.start),
        (1, extent.start + LABEL_SIZE),
        (2, tail - 2 * LABEL_SIZE),
        (3, tail - LABEL_SIZE),
    ]
}

/// Reads the labels of an extent, given in bytes of the disk: a partition's range,
/// or all of an image. An extent that reaches beyond the disk is `InvalidInput`.
pub fn read_labels(dev: &dyn BlockRead, extent: Range<u64>) -> io::Result<LabelSet> {
    check_inside(dev, &extent)?;
    let mut places = Vec::new();
    for (index, offset) in label_places(&extent) {
        let parsed = read_label(dev, offset, offset - extent.start)?;
        places.push(place(index, offset, parsed));
    }
    Ok(LabelSet {
        l2arc_header: has_l2arc_header(dev, &extent)?,
        extent,
        places,
    })
}

/// Reads and parses the label at a disk offset; `on_vdev` is its offset on the vdev.
pub fn read_label(dev: &dyn BlockRead, offset: u64, on_vdev: u64) -> io::Result<ParsedLabel> {
    let mut bytes = vec![0; LABEL_SIZE as usize];
    dev.read_at(offset, &mut bytes)?;
    Ok(parse_label(&bytes, on_vdev))
}

/// Whether an extent has a cache device's header at its 4 MiB.
pub fn has_l2arc_header(dev: &dyn BlockRead, extent: &Range<u64>) -> io::Result<bool> {
    let offset = extent.start + L2ARC_HEADER;
    if offset + L2ARC_HEADER_SIZE > extent.end {
        return Ok(false);
    }
    let mut magic = [0; 8];
    dev.read_at(offset, &mut magic)?;
    Ok([u64::from_le_bytes(magic), u64::from_be_bytes(magic)].contains(&L2ARC_MAGIC))
}

fn place(index: u8, offset: u64, parsed: ParsedLabel) -> Place {
    Place {
        index,
        offset,
        verdict: parsed.verdict,
        uberblocks: parsed.ring.count,
        newest: parsed.ring.newest,
    }
}

fn check_inside(dev: &dyn BlockRead, extent: &Range<u64>) -> io::Result<()> {
    if extent.start > extent.end || extent.end > dev.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "bytes {} to {} are not on a disk of {} bytes",
                extent.start,
                extent.end,
                dev.len()
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod tests;
