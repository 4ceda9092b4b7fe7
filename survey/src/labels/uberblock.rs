//! The uberblock ring of a label.
//!
//! Pure: takes the second half of a label and gives how many slots hold an
//! uberblock and the newest of them (OpenZFS `include/sys/uberblock_impl.h`,
//! `include/sys/vdev_impl.h`). The slot size follows the vdev's ashift. Where that
//! is not known, because the configuration is gone, every kibibyte is looked at,
//! which is the smallest slot and what util-linux's older probe does.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::checksum::block_is_sealed;
use super::nvlist::Endian;

/// `UBERBLOCK_MAGIC` ("oo-ba-bloc").
pub const MAGIC: u64 = 0x00ba_b10c;
/// The smallest slot in bytes (`UBERBLOCK_SHIFT`).
pub const MIN_SLOT: usize = 1 << 10;

/// One uberblock of a ring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uberblock {
    /// The transaction group it closes.
    pub txg: u64,
    /// When it was written, in seconds since 1970-01-01 UTC.
    pub timestamp: u64,
    /// The byte order of its writer.
    pub endian: Endian,
    /// Whether its embedded checksum holds where it stands.
    pub checksum_ok: bool,
}

/// What a ring holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ring {
    /// Slots with an uberblock's magic.
    pub count: u32,
    /// The one with the highest txg, then the latest time.
    pub newest: Option<Uberblock>,
    /// Where the first magic stands, in bytes from the start of the ring.
    pub first: Option<usize>,
}

/// Looks through a ring. `ashift` is the vdev's when it is known, `on_vdev` the
/// bytes of the vdev the ring occupies.
pub fn parse_ring(ring: &[u8], ashift: Option<u64>, on_vdev: Range<u64>) -> Ring {
    // VDEV_UBERBLOCK_SHIFT: never below 1 KiB, never above MAX_UBERBLOCK_SHIFT.
    let slot = ashift.map_or(MIN_SLOT, |shift| 1 << shift.clamp(10, 13));
    let mut found = Ring::default();
    for (index, bytes) in ring.chunks_exact(slot).enumerate() {
        let Some(endian) = magic_endian(bytes) else {
            continue;
        };
        found.count += 1;
        found.first.get_or_insert(index * slot);
        let field = |at: usize| {
            let raw = bytes.get(at..at + 8).and_then(|raw| raw.try_into().ok());
            endian.u64(raw.unwrap_or_default())
        };
        let candidate = Uberblock {
            txg: field(16),
            timestamp: field(32),
            endian,
            checksum_ok: false,
        };
        let rank = |u: &Uberblock| (u.txg, u.timestamp);
        if found
            .newest
            .as_ref()
            .is_none_or(|best| rank(&candidate) > rank(best))
        {
            found.newest = Some(Uberblock {
                checksum_ok: is_sealed(ring, index * slot, ashift.map(|_| slot), on_vdev.start),
                ..candidate
            });
        }
    }
    found
}

/// Whether the slot at this byte of the ring is sealed; of an unknown size, whether it
/// is with one of the four sizes a slot can have.
fn is_sealed(ring: &[u8], at: usize, slot: Option<usize>, ring_on_vdev: u64) -> bool {
    let sizes = slot.map_or([10, 11, 12, 13].map(|shift| 1 << shift).to_vec(), |size| {
        vec![size]
    });
    sizes.into_iter().any(|size| {
        ring.get(at..at + size)
            .is_some_and(|bytes| block_is_sealed(bytes, ring_on_vdev + at as u64))
    })
}

fn magic_endian(slot: &[u8]) -> Option<Endian> {
    let raw = slot.first_chunk::<8>()?;
    [Endian::Little, Endian::Big]
        .into_iter()
        .find(|order| order.u64(*raw) == MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(slots: &[(usize, Endian, u64, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; 128 << 10];
        for (at, endian, txg, time) in slots {
            for (offset, value) in [(0, MAGIC), (16, *txg), (32, *time)] {
                bytes[at + offset..at + offset + 8].copy_from_slice(&endian.bytes(value));
            }
        }
        bytes
    }

    #[test]
    fn counts_slots_of_the_size_the_ashift_gives() {
        use Endian::{Big, Little};
        let bytes = ring(&[
            (0, Little, 5, 1),
            (1024, Little, 9, 1),
            (4096, Big, 7, 2),
            (8192, Big, 7, 3),
            (9000, Little, 99, 9),
        ]);
        for (ashift, count, txg, time) in [
            (None, 4, 9, 1),
            (Some(9), 4, 9, 1),
            (Some(10), 4, 9, 1),
            (Some(12), 3, 7, 3),
            (Some(13), 2, 7, 3),
            (Some(16), 2, 7, 3),
            (Some(u64::MAX), 2, 7, 3),
        ] {
            let got = parse_ring(&bytes, ashift, 0..131072);
            let newest = got.newest.unwrap();
            assert_eq!(
                (got.count, newest.txg, newest.timestamp),
                (count, txg, time),
                "{ashift:?}"
            );
            assert_eq!(got.first, Some(0));
            assert!(!newest.checksum_ok);
        }
        assert_eq!(parse_ring(&ring(&[]), None, 0..131072), Ring::default());
        let late = ring(&[(5120, Big, 1, 1)]);
        assert_eq!(parse_ring(&late, None, 0..131072).first, Some(5120));
        // Bytes that end inside a slot hold no uberblock there.
        assert_eq!(parse_ring(&late[..5500], None, 0..131072).count, 0);
    }
}
