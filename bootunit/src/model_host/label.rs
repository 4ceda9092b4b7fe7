//! The labels of the model's pools, byte for byte as a vdev carries them.
//!
//! Takes a [`Label`], gives its configuration block (112 KiB at 16 KiB of a label) or an
//! uberblock slot, both sealed for their place (OpenZFS `include/sys/vdev_impl.h`,
//! `module/zfs/vdev_label.c`, `module/zfs/zio_checksum.c`). The packed list is that of
//! `module/nvpair/nvpair.c` in its XDR form.

use sha2::{Digest as _, Sha256};

/// Size of the configuration block in bytes.
pub const CONFIG_SIZE: usize = 112 << 10;
/// Where the configuration block stands in a label.
pub const CONFIG_AT: u64 = 16 << 10;
/// Where the ring of uberblocks stands in a label.
pub const RING_AT: u64 = 128 << 10;
/// Size of an uberblock's slot on a vdev of ashift 12.
pub const SLOT: u64 = 4 << 10;

/// What a label says.
#[derive(Debug, Clone)]
pub struct Label<'a> {
    /// The pool's name.
    pub pool: &'a str,
    /// The pool's guid.
    pub pool_guid: u64,
    /// The guid of its one leaf.
    pub vdev_guid: u64,
    /// The transaction group.
    pub txg: u64,
    /// 0 active, 1 exported.
    pub state: u64,
}

/// The configuration block of a label at this offset on its vdev.
pub fn config(label: &Label, label_on_vdev: u64) -> Vec<u8> {
    let tree = Packed::default()
        .text("type", "disk")
        .number("id", 0)
        .number("guid", label.vdev_guid)
        .text("path", "/dev/vda4")
        .number("ashift", 12)
        .list_bytes();
    let pairs = Packed::default()
        .number("version", 5000)
        .text("name", label.pool)
        .number("state", label.state)
        .number("txg", label.txg)
        .number("pool_guid", label.pool_guid)
        .number("hostid", 0x0bad_cafe)
        .text("hostname", "worker-1")
        .number("top_guid", label.vdev_guid)
        .number("guid", label.vdev_guid)
        .number("vdev_children", 1)
        .pair("vdev_tree", 19, &tree)
        .list_bytes();
    // Encoding XDR, written by a little-endian host.
    let mut block = vec![1, 1, 0, 0];
    block.extend(pairs);
    block.resize(CONFIG_SIZE, 0);
    seal(&mut block, label_on_vdev + CONFIG_AT);
    block
}

/// An uberblock and its slot's offset in the label.
pub fn uberblock(txg: u64, label_on_vdev: u64) -> (u64, Vec<u8>) {
    let at = RING_AT + txg % 32 * SLOT;
    let mut slot = vec![0; SLOT as usize];
    for (index, value) in [0x00ba_b10c, 5000, txg, 77, 1_790_000_000]
        .into_iter()
        .enumerate()
    {
        slot[index * 8..index * 8 + 8].copy_from_slice(&u64::to_le_bytes(value));
    }
    seal(&mut slot, label_on_vdev + at);
    (at, slot)
}

/// The embedded checksum: of the block with its own place in the checksum's stead.
fn seal(block: &mut [u8], on_vdev: u64) {
    let trailer = block.len() - 40;
    block[trailer..trailer + 8].copy_from_slice(&0x0210_da7a_b10c_7a11u64.to_le_bytes());
    block[trailer + 8..].fill(0);
    block[trailer + 8..trailer + 16].copy_from_slice(&on_vdev.to_le_bytes());
    let digest = Sha256::digest(&*block);
    for (word, bytes) in digest.chunks(8).enumerate() {
        for (index, byte) in bytes.iter().rev().enumerate() {
            block[trailer + 8 + word * 8 + index] = *byte;
        }
    }
}

/// Pairs of a packed list.
#[derive(Default)]
struct Packed(Vec<u8>);

impl Packed {
    fn number(self, name: &str, value: u64) -> Self {
        self.pair(name, 8, &value.to_be_bytes())
    }

    fn text(self, name: &str, value: &str) -> Self {
        self.pair(name, 9, &xdr_text(value))
    }

    fn pair(mut self, name: &str, code: u32, value: &[u8]) -> Self {
        let name = xdr_text(name);
        let size = (8 + name.len() + 8 + value.len()) as u32;
        for part in [
            &size.to_be_bytes()[..],
            &size.to_be_bytes(),
            &name,
            &code.to_be_bytes(),
            &1u32.to_be_bytes(),
            value,
        ] {
            self.0.extend_from_slice(part);
        }
        self
    }

    /// Version 0, unique names, the pairs, and eight zero bytes as the end.
    fn list_bytes(self) -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, 0, 0, 0, 0, 1];
        bytes.extend(self.0);
        bytes.extend([0; 8]);
        bytes
    }
}

fn xdr_text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text.bytes());
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use repave_plan::units::{PoolGuid, VdevGuid};
    use repave_survey::labels::Verdict;
    use repave_survey::labels::info::parse_label;

    use super::*;

    #[test]
    fn the_survey_reads_it_as_a_sealed_label() {
        let label = Label {
            pool: "tank",
            pool_guid: 7,
            vdev_guid: 8,
            txg: 4,
            state: 1,
        };
        for on_vdev in [0, 256 << 10] {
            let mut bytes = vec![0; 256 << 10];
            bytes[CONFIG_AT as usize..][..CONFIG_SIZE].copy_from_slice(&config(&label, on_vdev));
            let (at, slot) = uberblock(4, on_vdev);
            bytes[at as usize..][..slot.len()].copy_from_slice(&slot);
            let parsed = parse_label(&bytes, on_vdev);
            let Verdict::Label(info) = &parsed.verdict else {
                panic!("{:?}", parsed.verdict);
            };
            assert_eq!(info.pool_name.as_deref(), Some("tank"));
            assert_eq!(info.pool_guid, Some(PoolGuid(7)));
            assert_eq!(info.vdev_guid, VdevGuid(8));
            assert_eq!((info.txg, info.ashift), (Some(4), Some(12)));
            assert!(info.checksum_ok);
            let newest = parsed.ring.newest.unwrap();
            assert_eq!((newest.txg, newest.checksum_ok), (4, true));
        }
    }
}
