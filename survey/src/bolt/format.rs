//! The numbers of the bolt file format, and its page and meta headers.
//!
//! Used by the reader here and by the writer in containerd-clear, so that the two
//! cannot differ. All integers are little-endian: bolt writes the machine's own
//! order, and both architectures that repave runs on are little-endian.

/// The magic number of a meta page (`db.go`).
pub const MAGIC: u32 = 0xED0C_DAED;
/// The only file version there has been (`db.go`).
pub const VERSION: u32 = 2;
/// Bytes of a page header: id, flags, count, overflow.
pub const PAGE_HEADER: usize = 16;
/// Bytes of a meta behind its page header.
pub const META: usize = 64;
/// Bytes of a branch or leaf element, without key and value.
pub const ELEMENT: usize = 16;
/// Bytes of a bucket's value before an inline page: root page and sequence.
pub const BUCKET_HEADER: usize = 16;
/// Page flag: inner node.
pub const BRANCH: u16 = 0x01;
/// Page flag: node with keys and values.
pub const LEAF: u16 = 0x02;
/// Page flag: meta page.
pub const META_PAGE: u16 = 0x04;
/// Page flag: list of free pages.
pub const FREELIST: u16 = 0x10;
/// Leaf element flag: the value is a bucket.
pub const BUCKET_ELEMENT: u32 = 0x01;
/// The freelist page of a file that does not store its freelist.
pub const NO_FREELIST: u64 = u64::MAX;
/// Longest key that bolt accepts (`db.go`, MaxKeySize).
pub const MAX_KEY: usize = 32768;
/// Page sizes that are believed: bolt takes the machine's, 4 KiB to 64 KiB; tools write 512 up.
pub const PAGE_SIZES: std::ops::RangeInclusive<usize> = 512..=65536;

/// The header of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHeader {
    /// The page's own number; 0 in an inline page.
    pub id: u64,
    /// What the page holds.
    pub flags: u16,
    /// Number of elements.
    pub count: u16,
    /// Pages that follow and belong to this one.
    pub overflow: u32,
}

impl PageHeader {
    /// Reads a header from the first 16 bytes; `None` if there are fewer.
    pub fn parse(bytes: &[u8]) -> Option<PageHeader> {
        Some(PageHeader {
            id: u64_at(bytes, 0)?,
            flags: u16_at(bytes, 8)?,
            count: u16_at(bytes, 10)?,
            overflow: u32_at(bytes, 12)?,
        })
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; PAGE_HEADER] {
        let mut out = [0; PAGE_HEADER];
        out[..8].copy_from_slice(&self.id.to_le_bytes());
        out[8..10].copy_from_slice(&self.flags.to_le_bytes());
        out[10..12].copy_from_slice(&self.count.to_le_bytes());
        out[12..].copy_from_slice(&self.overflow.to_le_bytes());
        out
    }
}

/// A meta: where the tree of one committed transaction begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Bytes per page.
    pub page_size: u32,
    /// Page of the root bucket.
    pub root: u64,
    /// Sequence of the root bucket.
    pub sequence: u64,
    /// Page of the freelist, or [`NO_FREELIST`].
    pub freelist: u64,
    /// One more than the highest page in use.
    pub high_water: u64,
    /// The transaction that wrote this meta.
    pub txid: u64,
}

impl Meta {
    /// Reads a meta from its 64 bytes; `None` unless magic, version and checksum are right.
    pub fn parse(bytes: &[u8]) -> Option<Meta> {
        let bytes = bytes.get(..META)?;
        let sound = u32_at(bytes, 0)? == MAGIC
            && u32_at(bytes, 4)? == VERSION
            && u64_at(bytes, 56)? == fnv1a(&bytes[..56]);
        if !sound {
            return None;
        }
        Some(Meta {
            page_size: u32_at(bytes, 8)?,
            root: u64_at(bytes, 16)?,
            sequence: u64_at(bytes, 24)?,
            freelist: u64_at(bytes, 32)?,
            high_water: u64_at(bytes, 40)?,
            txid: u64_at(bytes, 48)?,
        })
    }

    /// The meta's bytes, with its checksum.
    pub fn encode(&self) -> [u8; META] {
        let mut out = [0; META];
        out[..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&VERSION.to_le_bytes());
        out[8..12].copy_from_slice(&self.page_size.to_le_bytes());
        out[16..24].copy_from_slice(&self.root.to_le_bytes());
        out[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        out[32..40].copy_from_slice(&self.freelist.to_le_bytes());
        out[40..48].copy_from_slice(&self.high_water.to_le_bytes());
        out[48..56].copy_from_slice(&self.txid.to_le_bytes());
        let sum = fnv1a(&out[..56]);
        out[56..].copy_from_slice(&sum.to_le_bytes());
        out
    }
}

/// 64-bit FNV-1a, the checksum of a meta.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let raw = bytes.get(at..at.checked_add(2)?)?;
    raw.try_into().ok().map(u16::from_le_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let raw = bytes.get(at..at.checked_add(4)?)?;
    raw.try_into().ok().map(u32::from_le_bytes)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let raw = bytes.get(at..at.checked_add(8)?)?;
    raw.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv1a_matches_the_published_vectors() {
        // draft-eastlake-fnv, the test vectors of FNV-1a 64.
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn headers_and_metas_survive_a_round_trip() {
        let header = PageHeader {
            id: 0x0102_0304_0506_0708,
            flags: LEAF,
            count: 0xfffe,
            overflow: 9,
        };
        assert_eq!(PageHeader::parse(&header.encode()), Some(header));
        assert_eq!(PageHeader::parse(&header.encode()[..15]), None);
        let meta = Meta {
            page_size: 4096,
            root: 3,
            sequence: 7,
            freelist: NO_FREELIST,
            high_water: 11,
            txid: 42,
        };
        assert_eq!(Meta::parse(&meta.encode()), Some(meta));
        for at in 0..META {
            let mut bad = meta.encode();
            bad[at] ^= 1;
            assert_eq!(Meta::parse(&bad), None, "flipped byte {at}");
        }
    }
}
