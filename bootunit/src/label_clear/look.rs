//! What a look at the disk says of a request: what goes, and what must not.
//!
//! Reads; decides; writes nothing. Each place is judged twice: as it stands, to know
//! whose it is, and with the bytes that may never be written masked, to know whether
//! anything is left to do there. So the ghost of a whole-disk pool under a partition
//! table is cleared around the table, and then counts as cleared.

use std::ops::Range;

use repave_plan::units::{PoolGuid, VdevGuid};
use repave_survey::block_io::BlockRead;
use repave_survey::labels::info::{CONFIG_START, LabelState, ParsedLabel, Verdict, parse_label};
use repave_survey::labels::{
    L2ARC_HEADER, L2ARC_HEADER_SIZE, LABEL_SIZE, has_l2arc_header, label_places,
};

use super::ranges::{inside, outward, overlap, subtract, union};
use super::{ClearError, ClearRequest};

/// What one look gives.
#[derive(Debug, Default)]
pub struct Look {
    /// What is to be zeroed.
    pub wipe: Wipe,
    /// What is there of the request, in words.
    pub found: Vec<String>,
    /// What is there and not of the request, in words.
    pub foreign: Vec<String>,
}

/// Ranges to zero, in bytes, in three groups that are written in this order.
#[derive(Debug, Default)]
pub struct Wipe {
    /// Magics of signatures and cache headers: smaller than a block.
    pub magics: Vec<Range<u64>>,
    /// Labels without what makes them seen: whole blocks.
    pub bodies: Vec<Range<u64>>,
    /// What makes them seen: one block each.
    pub anchors: Vec<Range<u64>>,
}

impl Wipe {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.magics.is_empty() && self.bodies.is_empty() && self.anchors.is_empty()
    }
}

/// Whose something is.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    Listed,
    Kept,
    Foreign,
    Nobody,
}

struct Place {
    extent: usize,
    index: u8,
    offset: u64,
    bytes: Vec<u8>,
    parsed: ParsedLabel,
    owner: Owner,
}

/// Looks. A request that contradicts itself or the disk is an error.
pub fn look(dev: &dyn BlockRead, request: &ClearRequest) -> Result<Look, ClearError> {
    let block = u64::from(dev.block());
    check(dev, request)?;
    let places = read_places(dev, request)?;
    let protected = protected(request, &places, block);
    let mut look = Look::default();
    let (mut whole, mut anchors) = (Vec::new(), Vec::new());
    for place in &places {
        if place.owner == Owner::Foreign {
            look.foreign.push(describe(place));
        }
        // A kept label is masked as a whole: nothing is left to do there.
        let masked = masked(place, &protected);
        let Some(anchor) = masked.anchor.filter(|_| masked.verdict != Verdict::Clear) else {
            continue;
        };
        look.found.push(describe(place));
        let seen = place.offset + anchor as u64;
        anchors.push(outward(&(seen..seen + 1), block));
        whole.push(place.offset + CONFIG_START as u64..place.offset + LABEL_SIZE);
        look_at_cache_header(dev, request, place, &protected, &mut look)?;
    }
    look_at_signatures(dev, request, &whole, &mut look)?;
    look.wipe.magics = union(look.wipe.magics);
    look.wipe.anchors = subtract(anchors, &protected);
    let spared = [protected, look.wipe.anchors.clone()].concat();
    look.wipe.bodies = subtract(whole, &spared);
    Ok(look)
}

fn check(dev: &dyn BlockRead, request: &ClearRequest) -> Result<(), ClearError> {
    let bad = |what: String| Err(ClearError::Request { what });
    let block = u64::from(dev.block());
    for extent in &request.extents {
        let Range { start, end } = extent;
        if start >= end || *end > dev.len() {
            return bad(format!("bytes {start} to {end} are no extent of this disk"));
        }
        if start % block != 0 || end % block != 0 {
            return bad(format!(
                "bytes {start} to {end} are not whole blocks of {block}"
            ));
        }
    }
    if let Some(both) = request
        .pools
        .iter()
        .find(|guid| request.kept.contains(guid))
    {
        return bad(format!("pool {both} is to be erased and to be kept"));
    }
    for signature in &request.signatures {
        let at = signature.offset
            ..signature
                .offset
                .saturating_add(signature.magic.len() as u64);
        let kind = &signature.kind;
        if !inside(&at, &request.extents) {
            return bad(format!(
                "the {kind} signature at byte {} is in no extent",
                at.start
            ));
        }
        let blocks = outward(&at, block);
        if request
            .forbidden
            .iter()
            .any(|range| overlap(range, &blocks))
        {
            return bad(format!(
                "the {kind} signature at byte {} must not be written",
                at.start
            ));
        }
    }
    Ok(())
}

fn read_places(dev: &dyn BlockRead, request: &ClearRequest) -> Result<Vec<Place>, ClearError> {
    let mut places: Vec<Place> = Vec::new();
    for (extent, range) in request.extents.iter().enumerate() {
        for (index, offset) in label_places(range) {
            let mut bytes = vec![0; LABEL_SIZE as usize];
            dev.read_at(offset, &mut bytes).map_err(ClearError::Read)?;
            let parsed = parse_label(&bytes, offset - range.start);
            let owner = owner(&parsed.verdict, request);
            places.push(Place {
                extent,
                index,
                offset,
                bytes,
                parsed,
                owner,
            });
        }
    }
    // A remnant that names nobody beside a kept label is the kept pool's: its labels
    // stand in pairs, at the front (0, 1) and at the tail (2, 3).
    let kept: Vec<(usize, u8)> = places
        .iter()
        .filter(|place| place.owner == Owner::Kept)
        .map(|place| (place.extent, place.index / 2))
        .collect();
    for place in &mut places {
        if place.owner == Owner::Nobody && kept.contains(&(place.extent, place.index / 2)) {
            place.owner = Owner::Kept;
        }
    }
    Ok(places)
}

fn owner(verdict: &Verdict, request: &ClearRequest) -> Owner {
    let (pool, vdev) = match verdict {
        Verdict::Clear => return Owner::Nobody,
        Verdict::Label(info) => (info.pool_guid, Some(info.vdev_guid)),
        Verdict::Remnant(remnant) => (remnant.pool_guid, remnant.vdev_guid),
    };
    match (pool, vdev) {
        (Some(pool), _) => pool_owner(pool, request),
        (None, Some(vdev)) => vdev_owner(vdev, request),
        (None, None) => Owner::Nobody,
    }
}

fn pool_owner(pool: PoolGuid, request: &ClearRequest) -> Owner {
    if request.kept.contains(&pool) {
        Owner::Kept
    } else if request.pools.contains(&pool) {
        Owner::Listed
    } else {
        Owner::Foreign
    }
}

fn vdev_owner(vdev: VdevGuid, request: &ClearRequest) -> Owner {
    match request.vdevs.contains(&vdev) {
        true => Owner::Listed,
        false => Owner::Foreign,
    }
}

/// All that must not be written: what the request forbids, in whole blocks, and the
/// labels of kept pools.
fn protected(request: &ClearRequest, places: &[Place], block: u64) -> Vec<Range<u64>> {
    let forbidden = request.forbidden.iter().map(|range| outward(range, block));
    let kept = places
        .iter()
        .filter(|place| place.owner == Owner::Kept)
        .map(|place| place.offset..place.offset + LABEL_SIZE);
    union(forbidden.chain(kept).collect())
}

/// The place with all bytes that must not be written as if they were zero.
fn masked(place: &Place, protected: &[Range<u64>]) -> ParsedLabel {
    let label = place.offset..place.offset + LABEL_SIZE;
    if !protected.iter().any(|range| overlap(range, &label)) {
        return place.parsed.clone();
    }
    let mut bytes = place.bytes.clone();
    for range in protected.iter().filter(|range| overlap(range, &label)) {
        let start = range.start.max(label.start) - label.start;
        let end = range.end.min(label.end) - label.start;
        bytes[start as usize..end as usize].fill(0);
    }
    parse_label(&bytes, 0)
}

fn look_at_cache_header(
    dev: &dyn BlockRead,
    request: &ClearRequest,
    place: &Place,
    protected: &[Range<u64>],
    look: &mut Look,
) -> Result<(), ClearError> {
    let state = match &place.parsed.verdict {
        Verdict::Label(info) => Some(info.state),
        Verdict::Remnant(remnant) => remnant.state,
        Verdict::Clear => None,
    };
    let extent = &request.extents[place.extent];
    if state != Some(LabelState::L2cache)
        || !has_l2arc_header(dev, extent).map_err(ClearError::Read)?
    {
        return Ok(());
    }
    let start = extent.start + L2ARC_HEADER;
    let header = start..start + L2ARC_HEADER_SIZE;
    let blocks = outward(&header, u64::from(dev.block()));
    if !protected.iter().any(|range| overlap(range, &blocks)) {
        look.wipe.magics.push(header);
    }
    Ok(())
}

fn look_at_signatures(
    dev: &dyn BlockRead,
    request: &ClearRequest,
    labels: &[Range<u64>],
    look: &mut Look,
) -> Result<(), ClearError> {
    for signature in &request.signatures {
        let mut bytes = vec![0; signature.magic.len()];
        dev.read_at(signature.offset, &mut bytes)
            .map_err(ClearError::Read)?;
        let at = signature.offset..signature.offset + bytes.len() as u64;
        // Other bytes there are not this signature: it is gone, and whatever has come
        // instead (the new pool's data, after a resume) is not the step's to judge.
        if bytes == signature.magic {
            look.found.push(format!(
                "a {} signature at byte {}",
                signature.kind, at.start
            ));
            // One inside a label goes with the label, in the label's order.
            if !inside(&at, labels) {
                look.wipe.magics.push(at);
            }
        }
    }
    Ok(())
}

fn describe(place: &Place) -> String {
    let Place { index, offset, .. } = place;
    match &place.parsed.verdict {
        Verdict::Label(info) => {
            let vdev = info.vdev_guid;
            let state = info.state.as_str();
            match (&info.pool_name, info.pool_guid) {
                (Some(name), Some(guid)) => {
                    format!("label {index} at byte {offset}: pool {name:?}, guid {guid}, {state}")
                }
                (None, Some(guid)) => {
                    format!("label {index} at byte {offset}: a pool with guid {guid}, {state}")
                }
                (_, None) => format!("label {index} at byte {offset}: {state} device {vdev}"),
            }
        }
        Verdict::Remnant(remnant) => {
            let whose = match (remnant.pool_guid, remnant.vdev_guid) {
                (Some(guid), _) => format!("pool guid {guid}"),
                (None, Some(guid)) => format!("device {guid}"),
                (None, None) => format!("{} uberblocks", place.parsed.ring.count),
            };
            format!("what is left of label {index} at byte {offset}: {whose}")
        }
        Verdict::Clear => format!("nothing at label {index} at byte {offset}"),
    }
}
