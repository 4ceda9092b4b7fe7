//! The checksum ZFS embeds at the end of a label block.
//!
//! Pure. The last 40 bytes of a block are a magic and four words; the words are the
//! SHA-256 of the block with those four replaced by the block's own offset on the
//! vdev (OpenZFS `include/sys/zio_checksum.h` `zio_eck_t`, `module/zfs/zio_checksum.c`
//! `zio_checksum_label_verifier`). So a label that was copied elsewhere is told from
//! one that was written where it stands. OpenZFS's own tools do not look at it when
//! they clear a label, and neither does the clearing here: it is reported.

use sha2::{Digest as _, Sha256};

use super::nvlist::Endian;

/// The magic of the embedded checksum, `ZEC_MAGIC`.
const MAGIC: u64 = 0x0210_da7a_b10c_7a11;
/// Size of the trailer: magic and four words.
const TRAILER: usize = 40;

/// Whether a block carries its own checksum for this offset on its vdev, in bytes.
pub fn block_is_sealed(block: &[u8], offset_on_vdev: u64) -> bool {
    let Some((body, trailer)) = block.split_last_chunk::<TRAILER>() else {
        return false;
    };
    let (magic, stored) = trailer.split_at(8);
    let endian = if magic == MAGIC.to_le_bytes() {
        Endian::Little
    } else if magic == MAGIC.to_be_bytes() {
        Endian::Big
    } else {
        return false;
    };
    let mut hash = Sha256::new();
    hash.update(body);
    hash.update(magic);
    hash.update(endian.bytes(offset_on_vdev));
    hash.update([0; 24]);
    // The digest is four big-endian words; they are stored in the writer's order.
    let digest = hash.finalize();
    digest
        .chunks(8)
        .zip(stored.chunks(8))
        .all(|(wanted, found)| match endian {
            Endian::Big => wanted.iter().eq(found),
            Endian::Little => wanted.iter().eq(found.iter().rev()),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_without_the_magic_or_too_short_is_not_sealed() {
        for block in [vec![], vec![0; 39], vec![0; 40], vec![0; 1024]] {
            assert!(!block_is_sealed(&block, 0), "{} bytes", block.len());
        }
    }
}
