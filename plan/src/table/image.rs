//! Both copies of a table as they lie on the disk, and how to fetch them.
//!
//! Takes a reading function, gives a [`TableImage`]. Reading is lenient: a broken
//! copy is fetched from where it ought to be, so that the survey can show it and
//! a resumed run can compare it. Whether the table is good is `parse`'s to say.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::units::{BlockSize, Digest, Extent, Lba};

use super::entry::ENTRY_SIZE;
use super::header::{Copy, Header, parse_header};
use super::parse::MAX_ENTRIES;

/// The most that is fetched at either end of the disk, in bytes. An array further
/// away than this is not fetched and therefore does not pass the gate.
const REGION_MAX: u64 = 1024 * 1024;

/// The array that is looked at when a header does not say: 128 entries.
const DEFAULT_ARRAY: u64 = 128 * ENTRY_SIZE as u64;

/// Both copies of a partition table, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "ImageText", try_from = "ImageText")]
pub struct TableImage {
    /// The disk's logical block size.
    pub block: BlockSize,
    /// The disk's size in logical blocks.
    pub disk_blocks: u64,
    /// LBA 0 up to the end of the primary array, whole blocks.
    pub head: Vec<u8>,
    /// The first block of `tail`.
    pub tail_first: Lba,
    /// The backup array up to the backup header, whole blocks. On a disk that has
    /// grown it does not end at the disk's last block.
    pub tail: Vec<u8>,
}

/// Why a table could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum ReadError<E: std::error::Error> {
    /// The disk's shape.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The reading failed.
    #[error("read {blocks} blocks at {first}")]
    Read {
        /// First block asked for.
        first: Lba,
        /// How many.
        blocks: u64,
        /// What the reader said.
        #[source]
        source: E,
    },
}

/// Why bytes are not a table image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// Neither 512 nor 4096.
    #[error("use a logical block size of {found} bytes (512 and 4096 are known)")]
    BlockSize {
        /// The size found.
        found: u32,
    },
    /// The disk holds no table and its backup.
    #[error("find room for a partition table on {disk_blocks} blocks")]
    TooSmall {
        /// The disk's size in logical blocks.
        disk_blocks: u64,
    },
    /// A region is not what it must be.
    #[error("take the {region} of a table image: {reason}")]
    Region {
        /// `head` or `tail`.
        region: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl TableImage {
    /// Fetches both copies. `read` fills a buffer of whole blocks from a block on.
    ///
    /// A header that is valid says where its array and its other copy are; for one
    /// that is not, the usual places are taken. At most 1 MiB is read at each end.
    pub fn read<E, F>(
        block: BlockSize,
        disk_blocks: u64,
        mut read: F,
    ) -> Result<TableImage, ReadError<E>>
    where
        E: std::error::Error,
        F: FnMut(Lba, &mut [u8]) -> Result<(), E>,
    {
        check_shape(block, disk_blocks)?;
        let mut fetch = |first: Lba, blocks: u64| {
            let mut bytes = vec![0u8; (blocks * u64::from(block.0)) as usize];
            match read(first, &mut bytes) {
                Ok(()) => Ok(bytes),
                Err(source) => Err(ReadError::Read {
                    first,
                    blocks,
                    source,
                }),
            }
        };
        let primary = parse_header(&fetch(Lba(1), 1)?, Copy::Primary).ok();
        let head_end = primary
            .and_then(|h| array_of(&h, block))
            .filter(|a| a.first.0 >= 2 && within(a.last.0.saturating_add(1), block, disk_blocks))
            .map_or(1 + default_blocks(block), |a| a.last.0);
        let head = fetch(Lba(0), head_end + 1)?;

        let last = disk_blocks - 1;
        let backup_lba = primary
            .map(|h| h.alternate.0)
            .filter(|lba| (2..=last).contains(lba))
            .unwrap_or(last);
        let backup = parse_header(&fetch(Lba(backup_lba), 1)?, Copy::Backup).ok();
        let tail_first = backup
            .and_then(|h| array_of(&h, block))
            .map(|a| a.first.0)
            .filter(|first| *first < backup_lba && within(backup_lba - first + 1, block, last))
            .unwrap_or(backup_lba.saturating_sub(default_blocks(block)).max(1));
        let tail = fetch(Lba(tail_first), backup_lba - tail_first + 1)?;
        Ok(TableImage {
            block,
            disk_blocks,
            head,
            tail_first: Lba(tail_first),
            tail,
        })
    }

    /// The last block of the disk.
    pub fn last_lba(&self) -> Lba {
        Lba(self.disk_blocks.saturating_sub(1))
    }

    /// The last block of `tail`, where the backup header is looked for.
    pub fn backup_lba(&self) -> Lba {
        Lba(self.tail_first.0 + (self.tail.len() as u64 / u64::from(self.block.0)).max(1) - 1)
    }

    /// SHA-256 over everything in `head`: boot code, protective MBR, primary copy.
    pub fn primary_digest(&self) -> Digest {
        Digest::of(&self.head)
    }

    /// SHA-256 over everything in `tail`: the backup copy.
    pub fn backup_digest(&self) -> Digest {
        Digest::of(&self.tail)
    }

    /// The bytes of these blocks, when the image holds them all.
    pub fn blocks(&self, extent: Extent) -> Option<&[u8]> {
        let block = u64::from(self.block.0);
        for (first, bytes) in [(0, &self.head), (self.tail_first.0, &self.tail)] {
            let end = first + bytes.len() as u64 / block;
            if extent.first.0 >= first && extent.last.0 < end && extent.blocks() > 0 {
                let from = ((extent.first.0 - first) * block) as usize;
                return bytes.get(from..from + (extent.blocks() * block) as usize);
            }
        }
        None
    }

    /// The block that holds the header of this copy.
    pub(super) fn header_block(&self, copy: Copy) -> Option<&[u8]> {
        let lba = self.header_lba(copy);
        self.blocks(Extent {
            first: lba,
            last: lba,
        })
    }

    /// Where the header of this copy was looked for.
    pub(super) fn header_lba(&self, copy: Copy) -> Lba {
        match copy {
            Copy::Primary => Lba(1),
            Copy::Backup => self.backup_lba(),
        }
    }

    /// Where these blocks lie in the image's own bytes, for an edit.
    pub(super) fn blocks_mut(&mut self, copy: Copy, extent: Extent) -> Option<&mut [u8]> {
        let block = u64::from(self.block.0);
        let (first, bytes) = match copy {
            Copy::Primary => (0, &mut self.head),
            Copy::Backup => (self.tail_first.0, &mut self.tail),
        };
        let from = extent.first.0.checked_sub(first)?.checked_mul(block)?;
        let len = extent.blocks().checked_mul(block)?;
        bytes.get_mut(from as usize..from.checked_add(len)? as usize)
    }

    /// Checks the shape of an image that came from outside.
    fn check(self) -> Result<Self, ImageError> {
        check_shape(self.block, self.disk_blocks)?;
        let block = u64::from(self.block.0);
        for (region, first, bytes, least) in [
            ("head", 0, &self.head, 3),
            ("tail", self.tail_first.0, &self.tail, 2),
        ] {
            let bad = |reason| Err(ImageError::Region { region, reason });
            let (blocks, rest) = (bytes.len() as u64 / block, bytes.len() as u64 % block);
            if rest != 0 || blocks < least || bytes.len() as u64 > REGION_MAX {
                return bad("its size is no number of blocks from the header to 1 MiB");
            }
            if first.saturating_add(blocks) > self.disk_blocks {
                return bad("it lies beyond the end of the disk");
            }
        }
        Ok(self)
    }
}

fn check_shape(block: BlockSize, disk_blocks: u64) -> Result<(), ImageError> {
    if !matches!(block.0, 512 | 4096) {
        return Err(ImageError::BlockSize { found: block.0 });
    }
    // Twice the usual table and one block: less can hold no partition. The upper
    // bound keeps every byte offset inside a signed 64-bit number.
    let least = 2 * (2 + default_blocks(block)) + 1;
    if disk_blocks < least || disk_blocks > i64::MAX as u64 / u64::from(block.0) {
        return Err(ImageError::TooSmall { disk_blocks });
    }
    Ok(())
}

fn default_blocks(block: BlockSize) -> u64 {
    DEFAULT_ARRAY / u64::from(block.0)
}

/// Whether a region of so many blocks may be fetched.
fn within(blocks: u64, block: BlockSize, disk_blocks: u64) -> bool {
    blocks <= disk_blocks && blocks.saturating_mul(u64::from(block.0)) <= REGION_MAX
}

/// The array that a header names, when its size is one that passes the gate.
fn array_of(header: &Header, block: BlockSize) -> Option<Extent> {
    if header.entry_size as usize != ENTRY_SIZE || !(1..=MAX_ENTRIES).contains(&header.count) {
        return None;
    }
    let first = header.array_lba;
    Some(Extent {
        first,
        last: Lba(first.0.checked_add(header.array_blocks(block) - 1)?),
    })
}

/// The form in JSON: blocks that are not all zero, by their LBA, in hexadecimal.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ImageText {
    block: BlockSize,
    disk_blocks: u64,
    head: RegionText,
    tail: RegionText,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RegionText {
    first: u64,
    blocks: u64,
    data: BTreeMap<BlockKey, String>,
}

/// A block's LBA as a key: text, because the buffer that serde puts behind a tagged
/// enum (a survey's table, a plan's step) gives a key as text and takes no number.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
struct BlockKey(u64);

impl From<BlockKey> for String {
    fn from(key: BlockKey) -> String {
        key.0.to_string()
    }
}

impl TryFrom<String> for BlockKey {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<BlockKey, Self::Error> {
        text.parse().map(BlockKey)
    }
}

impl From<TableImage> for ImageText {
    fn from(image: TableImage) -> ImageText {
        let region = |first: u64, bytes: &[u8]| {
            let blocks = bytes.chunks(image.block.0 as usize);
            RegionText {
                first,
                blocks: blocks.len() as u64,
                data: (first..)
                    .zip(blocks)
                    .filter(|(_, b)| b.iter().any(|byte| *byte != 0))
                    .map(|(lba, b)| {
                        (
                            BlockKey(lba),
                            b.iter().map(|byte| format!("{byte:02x}")).collect(),
                        )
                    })
                    .collect(),
            }
        };
        ImageText {
            block: image.block,
            disk_blocks: image.disk_blocks,
            head: region(0, &image.head),
            tail: region(image.tail_first.0, &image.tail),
        }
    }
}

impl TryFrom<ImageText> for TableImage {
    type Error = ImageError;

    fn try_from(text: ImageText) -> Result<TableImage, ImageError> {
        check_shape(text.block, text.disk_blocks)?;
        let block = text.block.0 as usize;
        let bytes = |region: &'static str, from: &RegionText| {
            let bad = |reason| Err(ImageError::Region { region, reason });
            if from.blocks > REGION_MAX / block as u64 {
                return bad("it is larger than 1 MiB");
            }
            let mut bytes = vec![0u8; from.blocks as usize * block];
            for (BlockKey(lba), hex) in &from.data {
                let slot = lba
                    .checked_sub(from.first)
                    .and_then(|index| bytes.chunks_mut(block).nth(index as usize));
                let Some(slot) = slot else {
                    return bad("a block lies outside of it");
                };
                if !read_hex(hex, slot) {
                    return bad("a block is not its size in hexadecimal digits");
                }
            }
            Ok(bytes)
        };
        if text.head.first != 0 {
            return Err(ImageError::Region {
                region: "head",
                reason: "it does not begin at LBA 0",
            });
        }
        TableImage {
            head: bytes("head", &text.head)?,
            tail: bytes("tail", &text.tail)?,
            block: text.block,
            disk_blocks: text.disk_blocks,
            tail_first: Lba(text.tail.first),
        }
        .check()
    }
}

/// Fills `into` from exactly as many hexadecimal digits as it takes.
pub(super) fn read_hex(text: &str, into: &mut [u8]) -> bool {
    let digit = |c: u8| char::from(c).to_digit(16);
    text.len() == into.len() * 2
        && into
            .iter_mut()
            .zip(text.as_bytes().chunks_exact(2))
            .all(|(byte, pair)| match (digit(pair[0]), digit(pair[1])) {
                (Some(hi), Some(lo)) => {
                    *byte = (hi * 16 + lo) as u8;
                    true
                }
                _ => false,
            })
}
