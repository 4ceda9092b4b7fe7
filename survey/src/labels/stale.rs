//! Labels that an earlier layout of the disk left behind.
//!
//! Readers look for labels only at the four places that follow from a device's
//! present start and size. Labels of a partition that was moved, merged or removed,
//! and those of a whole-disk vdev under a later table, stand elsewhere and come back
//! to sight as soon as some partition has that start or that end again. Given every
//! start and end that was or will be, this looks at all places they can make.
//! Reads only; names what it finds by pool and guid.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::info::{Verdict, parse_label};
use super::{LABEL_SIZE, Place, check_inside, label_places, place};
use crate::block_io::BlockRead;

/// The most places that are looked at. A table of 128 entries aligned to 256 KiB
/// makes fewer; past this the starts and ends are not a partition table's.
const MAX_PLACES: usize = 4096;

/// A label or a remnant, and the vdev it would be a label of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StaleLabel {
    /// The extent it fits, in bytes: one of the asked starts and ends. When the
    /// checksum holds it is the extent the label was written for, up to its end's
    /// remainder below 256 KiB; otherwise the first that has a place here.
    pub extent: Range<u64>,
    /// What stands there.
    pub place: Place,
}

/// Looks for labels inside `range` (bytes of the disk) at the places of every vdev
/// from one of `starts` to one of `ends`, and of the whole disk. The result is in the
/// order of the disk, each place once. More than 4096 places are `InvalidInput`.
pub fn scan_stale(
    dev: &dyn BlockRead,
    range: Range<u64>,
    starts: &[u64],
    ends: &[u64],
) -> io::Result<Vec<StaleLabel>> {
    check_inside(dev, &range)?;
    let mut found: Vec<StaleLabel> = Vec::new();
    for (offset, candidates) in candidates(dev.len(), &range, starts, ends)? {
        let mut bytes = vec![0; LABEL_SIZE as usize];
        dev.read_at(offset, &mut bytes)?;
        found.extend(best_fit(&bytes, offset, candidates));
    }
    // A place that overlaps a sealed label sees that one's uberblocks: one thing, not two.
    let sealed: Vec<u64> = found
        .iter()
        .filter(|label| is_sealed(&label.place))
        .map(at)
        .collect();
    found.retain(|label| {
        !is_nameless(&label.place) || sealed.iter().all(|seal| !overlap(*seal, at(label)))
    });
    Ok(found)
}

fn at(label: &StaleLabel) -> u64 {
    label.place.offset
}

fn overlap(a: u64, b: u64) -> bool {
    a != b && a.abs_diff(b) < LABEL_SIZE
}

type Candidate = (u8, Range<u64>);

fn candidates(
    disk: u64,
    range: &Range<u64>,
    starts: &[u64],
    ends: &[u64],
) -> io::Result<BTreeMap<u64, Vec<Candidate>>> {
    let pairs = starts
        .iter()
        .flat_map(|start| ends.iter().map(|end| *start..*end));
    let mut places: BTreeMap<u64, Vec<Candidate>> = BTreeMap::new();
    for extent in std::iter::once(0..disk).chain(pairs) {
        if extent.end > disk {
            continue;
        }
        for (index, offset) in label_places(&extent) {
            if offset < range.end && offset + LABEL_SIZE > range.start {
                let fits = places.entry(offset).or_default();
                // The first two places are the same for every end.
                if fits
                    .iter()
                    .all(|fit| fit.1.start != extent.start || fit.0 != index)
                {
                    fits.push((index, extent.clone()));
                }
            }
        }
    }
    if places.len() > MAX_PLACES {
        let text = format!(
            "{} label places to look at, at most {MAX_PLACES}",
            places.len()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(places)
}

/// The candidate whose offset the checksum was made for, else the first.
fn best_fit(bytes: &[u8], offset: u64, candidates: Vec<Candidate>) -> Option<StaleLabel> {
    let mut best = None;
    for (index, extent) in candidates {
        let place = place(index, offset, parse_label(bytes, offset - extent.start));
        if place.verdict == Verdict::Clear {
            return None;
        }
        let sealed = is_sealed(&place);
        let label = StaleLabel { extent, place };
        if sealed {
            return Some(label);
        }
        best.get_or_insert(label);
    }
    best
}

fn is_sealed(place: &Place) -> bool {
    match &place.verdict {
        Verdict::Label(info) => info.checksum_ok,
        _ => place
            .newest
            .as_ref()
            .is_some_and(|newest| newest.checksum_ok),
    }
}

fn is_nameless(place: &Place) -> bool {
    match &place.verdict {
        Verdict::Remnant(remnant) => remnant.pool_guid.is_none() && remnant.vdev_guid.is_none(),
        _ => false,
    }
}
