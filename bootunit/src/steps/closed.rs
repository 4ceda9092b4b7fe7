//! The newest transaction group that a vdev has closed, as its rings of uberblocks tell.
//!
//! Reads only. Labels say more than is true: `zpool create` writes them with its first
//! group before that one's uberblocks (OpenZFS `module/zfs/vdev_label.c`,
//! `vdev_config_sync`), and a pool without a closed group cannot be imported.

use std::io;

use repave_survey::block_io::BlockRead;
use repave_survey::labels::checksum::block_is_sealed;
use repave_survey::labels::info::RING_START;
use repave_survey::labels::nvlist::Endian;
use repave_survey::labels::uberblock::MAGIC;
use repave_survey::labels::{LABEL_SIZE, LabelSet, Verdict};

/// The sizes that a slot can have, as powers of two (`VDEV_UBERBLOCK_SHIFT`).
const SHIFTS: std::ops::RangeInclusive<u32> = 10..=13;

/// The highest group of which a sealed uberblock stands in any of the rings; none when
/// nothing was ever closed. A torn one on top of older ones hides none of them: a pool
/// that is there must never be taken for one that is not.
pub fn closed_txg(dev: &dyn BlockRead, set: &LabelSet) -> io::Result<Option<u64>> {
    let mut newest = None;
    for place in set.places.iter().filter(|p| p.verdict != Verdict::Clear) {
        let mut ring = vec![0; LABEL_SIZE as usize - RING_START];
        let start = place.offset + RING_START as u64;
        dev.read_at(start, &mut ring)?;
        newest = newest.max(closed_in(&ring, start - set.extent.start));
    }
    Ok(newest)
}

fn closed_in(ring: &[u8], on_vdev: u64) -> Option<u64> {
    let slots = SHIFTS.flat_map(|shift| {
        let size = 1usize << shift;
        let slots = ring.chunks_exact(size).enumerate();
        slots.map(move |(index, slot)| (index * size, slot))
    });
    slots
        .filter_map(|(at, slot)| {
            let number = |at: usize| slot.get(at..at + 8)?.try_into().ok();
            let magic: [u8; 8] = number(0)?;
            let endian = [Endian::Little, Endian::Big]
                .into_iter()
                .find(|endian| endian.u64(magic) == MAGIC)?;
            let sealed = block_is_sealed(slot, on_vdev + at as u64);
            sealed.then_some(endian.u64(number(16)?))
        })
        .max()
}
