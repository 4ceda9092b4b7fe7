//! Genuine labels for tests: the label regions of pools that `ztest` (OpenZFS 2.1.11)
//! made in files, and what `zdb -l` of the same version says of them. Each `.gz` is
//! the four labels in order, then the 512 bytes at 4 MiB.

use std::io::{self, Read as _};

use super::checksum;
use super::nvlist::Endian;
use super::{L2ARC_HEADER, LABEL_SIZE, label_places};
use crate::block_io::BlockRead;

pub struct Fixture {
    pub name: &'static str,
    /// Size of the file the labels are of, in bytes.
    pub size: u64,
    pub zdb: &'static str,
    packed: &'static [u8],
}

macro_rules! fixture {
    ($name:literal, $size:expr) => {
        Fixture {
            name: $name,
            size: $size,
            zdb: include_str!(concat!("fixtures/", $name, ".zdb.txt")),
            packed: include_bytes!(concat!("fixtures/", $name, ".gz")),
        }
    };
}

pub const SOLO: Fixture = fixture!("solo", 128 << 20);
pub const MIRROR: Fixture = fixture!("mirror", 128 << 20);
pub const DRAID: Fixture = fixture!("draid", 256 << 20);
pub const SPARE: Fixture = fixture!("spare", 167772160);
pub const CACHE: Fixture = fixture!("cache", 160 << 20);

impl Fixture {
    /// The label of this number, 0 to 3.
    pub fn label(&self, index: usize) -> Vec<u8> {
        let size = LABEL_SIZE as usize;
        self.unpack()[index * size..][..size].to_vec()
    }

    /// Puts the labels on a disk, as those of a vdev that starts there.
    pub fn put(&self, disk: &mut SparseDisk, start: u64) {
        let bytes = self.unpack();
        for (index, offset) in label_places(&(start..start + self.size)) {
            let label = &bytes[usize::from(index) * LABEL_SIZE as usize..];
            disk.put(offset, &label[..LABEL_SIZE as usize]);
        }
        disk.put(start + L2ARC_HEADER, &bytes[4 * LABEL_SIZE as usize..]);
    }

    fn unpack(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(self.packed)
            .read_to_end(&mut bytes)
            .unwrap();
        assert_eq!(bytes.len(), 4 * LABEL_SIZE as usize + 512);
        bytes
    }
}

/// A disk of zeros with some bytes put on it.
pub struct SparseDisk {
    len: u64,
    parts: Vec<(u64, Vec<u8>)>,
}

impl SparseDisk {
    pub fn new(len: u64) -> Self {
        Self {
            len,
            parts: Vec::new(),
        }
    }

    /// Later parts hide earlier ones.
    pub fn put(&mut self, offset: u64, bytes: &[u8]) {
        self.parts.push((offset, bytes.to_vec()));
    }
}

impl BlockRead for SparseDisk {
    fn len(&self) -> u64 {
        self.len
    }

    fn block(&self) -> u32 {
        512
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset + buf.len() as u64 > self.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buf.fill(0);
        for (start, bytes) in &self.parts {
            let first = offset.max(*start);
            let last = (offset + buf.len() as u64).min(start + bytes.len() as u64);
            if first < last {
                let (to, from, len) = (first - offset, first - start, (last - first) as usize);
                buf[to as usize..][..len].copy_from_slice(&bytes[from as usize..][..len]);
            }
        }
        Ok(())
    }
}

/// Gives a block the checksum of this offset, as a writer of this byte order would
/// (OpenZFS `zio_checksum_compute`).
pub fn seal(block: &mut [u8], on_vdev: u64, endian: Endian) {
    use sha2::Digest as _;
    let trailer = block.len() - 40;
    block[trailer..trailer + 8].copy_from_slice(&endian.bytes(0x0210_da7a_b10c_7a11));
    for word in 0..4 {
        let value = if word == 0 { on_vdev } else { 0 };
        block[trailer + 8 + word * 8..][..8].copy_from_slice(&endian.bytes(value));
    }
    let digest = sha2::Sha256::digest(&*block);
    for word in 0..4 {
        let value = u64::from_be_bytes(digest[word * 8..][..8].try_into().unwrap());
        block[trailer + 8 + word * 8..][..8].copy_from_slice(&endian.bytes(value));
    }
    assert!(checksum::block_is_sealed(block, on_vdev));
}

/// Sets the number of the first pair of this name in a label and seals it again.
pub fn set_number(label: &mut [u8], name: &str, value: u64, on_vdev: u64) {
    let config = &mut label[super::info::CONFIG_START..super::info::RING_START];
    let mut key = (name.len() as u32).to_be_bytes().to_vec();
    key.extend(name.bytes());
    key.resize(key.len().next_multiple_of(4), 0);
    key.extend([0, 0, 0, 8, 0, 0, 0, 1]);
    let at = config.windows(key.len()).position(|w| w == key).unwrap() + key.len();
    config[at..at + 8].copy_from_slice(&value.to_be_bytes());
    seal(
        config,
        on_vdev + super::info::CONFIG_START as u64,
        Endian::Little,
    );
}
