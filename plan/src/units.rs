//! The newtypes every other file speaks in.
//!
//! Stage: none; these are the words. Each prints the way the field prints it and
//! parses back from that, so that a value in a file, a log line and a message is
//! the same text. Nothing here touches the world.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// One mebibyte in bytes: the alignment every new partition start is given.
pub const MIB: u64 = 1024 * 1024;

/// A logical block address: a count of *logical* blocks (512 or 4096 bytes) from
/// the start of the disk. Never a count of sysfs's 512-byte sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lba(pub u64);

/// A size or an offset in bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A partition's number in its GPT: the entry's index plus one (UEFI 2.10, 5.3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartNo(pub u32);

/// The size of one logical block in bytes, as `BLKSSZGET` gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockSize(pub u32);

/// A run of logical blocks, both ends included, as a GPT entry stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// First logical block.
    pub first: Lba,
    /// Last logical block, included.
    pub last: Lba,
}

impl Extent {
    /// The number of logical blocks; an extent whose ends are swapped has none.
    pub fn blocks(&self) -> u64 {
        (self.last.0 + 1).saturating_sub(self.first.0)
    }

    /// The size in bytes on a disk of this block size.
    pub fn bytes(&self, block: BlockSize) -> Bytes {
        Bytes(self.blocks() * u64::from(block.0))
    }

    /// The offset of the first byte on a disk of this block size.
    pub fn offset(&self, block: BlockSize) -> Bytes {
        Bytes(self.first.0 * u64::from(block.0))
    }

    /// Whether the two share a block.
    pub fn overlaps(&self, other: &Extent) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Whether `other` lies inside this extent.
    pub fn contains(&self, other: &Extent) -> bool {
        self.first <= other.first && other.last <= self.last
    }
}

impl fmt::Display for Lba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LBA {}", self.0)
    }
}

impl fmt::Display for PartNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

impl fmt::Display for Bytes {
    /// Binary units with one decimal, the way `lsblk` prints a size: `457.8 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = UNITS[0];
        for next in &UNITS[1..] {
            if value < 1024.0 {
                break;
            }
            value /= 1024.0;
            unit = next;
        }
        write!(f, "{value:.1} {unit}")
    }
}

/// Why a text is not the value it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct BadValue {
    /// The text as it was found, cut to 80 characters.
    pub text: String,
    /// What was expected, as a noun with its shape.
    pub expected: &'static str,
}

impl BadValue {
    fn new(text: &str, expected: &'static str) -> Self {
        Self {
            text: text.chars().take(80).collect(),
            expected,
        }
    }
}

/// A GUID as GPT stores it: the first three groups little-endian (UEFI 2.10,
/// appendix A). Printed in lower case, the way `/dev/disk/by-partuuid` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Guid(pub [u8; 16]);

impl Guid {
    /// The GUID of an unused entry (UEFI 2.10, table 5.6).
    pub const UNUSED: Guid = Guid([0; 16]);

    /// A GUID made from a name, never random: RFC 9562 version 8 over SHA-256,
    /// so that a plan made twice gives the same table.
    pub fn derive(parts: &[&[u8]]) -> Guid {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let digest: [u8; 32] = hash.finalize().into();
        let mut raw = [0u8; 16];
        raw.copy_from_slice(&digest[..16]);
        // The version sits in the high nibble of the third group, which GPT stores
        // little-endian: its high byte is at index 7. The variant is at index 8.
        raw[7] = (raw[7] & 0x0f) | 0x80;
        raw[8] = (raw[8] & 0x3f) | 0x80;
        Guid(raw)
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = &self.0;
        write!(
            f,
            "{:02x}{:02x}{:02x}{:02x}-{:02x}{:02x}-",
            b[3], b[2], b[1], b[0], b[5], b[4]
        )?;
        write!(f, "{:02x}{:02x}-{:02x}{:02x}-", b[7], b[6], b[8], b[9])?;
        for byte in &b[10..] {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for Guid {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let bad = || BadValue::new(text, "a GUID (8-4-4-4-12 hexadecimal digits)");
        let groups: Vec<&str> = text.split('-').collect();
        if groups.iter().map(|g| g.len()).ne([8, 4, 4, 4, 12]) {
            return Err(bad());
        }
        let mut b = [0u8; 16];
        parse_hex(&groups.concat(), &mut b).ok_or_else(bad)?;
        b[0..4].reverse();
        b[4..6].reverse();
        b[6..8].reverse();
        Ok(Guid(b))
    }
}

impl From<Guid> for String {
    fn from(guid: Guid) -> String {
        guid.to_string()
    }
}

impl TryFrom<String> for Guid {
    type Error = BadValue;

    fn try_from(text: String) -> Result<Self, BadValue> {
        text.parse()
    }
}

fn parse_hex(text: &str, into: &mut [u8]) -> Option<()> {
    if text.len() != into.len() * 2 || !text.is_ascii() {
        return None;
    }
    for (byte, pair) in into.iter_mut().zip(text.as_bytes().chunks(2)) {
        let hi = char::from(pair[0]).to_digit(16)?;
        let lo = char::from(pair[1]).to_digit(16)?;
        *byte = (hi * 16 + lo) as u8;
    }
    Some(())
}

fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
}

/// A SHA-256 digest, printed `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        write_hex(f, &self.0)
    }
}

impl FromStr for Digest {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let bad = || BadValue::new(text, "a digest (sha256: and 64 hexadecimal digits)");
        let mut raw = [0u8; 32];
        text.strip_prefix("sha256:")
            .and_then(|hex| parse_hex(hex, &mut raw))
            .ok_or_else(bad)?;
        Ok(Digest(raw))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = BadValue;

    fn try_from(text: String) -> Result<Self, BadValue> {
        text.parse()
    }
}

macro_rules! zfs_guid {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// Written as a decimal string in JSON: a u64 does not survive every JSON reader.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(into = "String", try_from = "String")]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = BadValue;

            fn from_str(text: &str) -> Result<Self, BadValue> {
                let bad = || BadValue::new(text, "a ZFS guid (a decimal u64)");
                text.parse().map($name).map_err(|_| bad())
            }
        }

        impl From<$name> for String {
            fn from(guid: $name) -> String {
                guid.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadValue;

            fn try_from(text: String) -> Result<Self, BadValue> {
                text.parse()
            }
        }
    };
}

zfs_guid!(
    /// A pool's guid, as `zpool get guid` and the label's `pool_guid` give it.
    PoolGuid
);
zfs_guid!(
    /// A leaf vdev's guid, as the label's `guid` gives it.
    VdevGuid
);
zfs_guid!(
    /// A dataset's guid, as `zfs get guid` gives it.
    DatasetGuid
);

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $expected:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(into = "String", try_from = "String")]
        pub struct $name(String);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = BadValue;

            fn from_str(text: &str) -> Result<Self, BadValue> {
                let valid: fn(&str) -> bool = $valid;
                match valid(text) {
                    true => Ok($name(text.to_owned())),
                    false => Err(BadValue::new(text, $expected)),
                }
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadValue;

            fn try_from(text: String) -> Result<Self, BadValue> {
                text.parse()
            }
        }
    };
}

fn is_hex_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The characters OpenZFS allows in one component of a name
/// (OpenZFS `module/zcommon/zfs_namecheck.c`).
fn is_zfs_component(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':' | b' '))
}

name!(
    /// A pool's name: a letter first, then what OpenZFS allows, 255 bytes at most
    /// (OpenZFS `zfs_namecheck.c`, `pool_namecheck`).
    PoolName,
    "a pool name",
    |t| is_zfs_component(t) && t.len() < 256 && t.as_bytes()[0].is_ascii_alphabetic()
);
name!(
    /// A dataset's full name, the pool first: `tank/containerd`.
    DatasetName,
    "a dataset name",
    |t| t.len() < 256
        && t.split('/').all(is_zfs_component)
        && t.as_bytes()[0].is_ascii_alphabetic()
);
name!(
    /// The machine id of systemd's `/etc/machine-id`: 32 hexadecimal digits.
    MachineId,
    "a machine id (32 hexadecimal digits)",
    is_hex_id
);
name!(
    /// The id of one boot, as `/proc/sys/kernel/random/boot_id` without its dashes.
    BootId,
    "a boot id (32 hexadecimal digits)",
    is_hex_id
);
name!(
    /// The id of one run of repave: a folder name under `runs/`, so letters, digits
    /// and dashes only, 64 at most.
    RunId,
    "a run id (1 to 64 letters, digits or dashes, the first no dash)",
    |t| !t.is_empty()
        && t.len() <= 64
        && !t.starts_with('-')
        && t.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
);

impl DatasetName {
    /// The pool the dataset lives in.
    pub fn pool(&self) -> &str {
        self.0.split('/').next().unwrap_or(&self.0)
    }
}

/// Seconds since 1970-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixTime(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guid_prints_and_parses_mixed_endian() {
        // The EFI system partition's type GUID and its bytes on disk (UEFI 2.10, table 5.7).
        let text = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b";
        let guid: Guid = text.parse().unwrap();
        assert_eq!(
            guid.0[..8],
            [0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11]
        );
        assert_eq!(guid.to_string(), text);
        assert!("c12a7328f81f11d2ba4b00a0c93ec93b".parse::<Guid>().is_err());
        assert!(
            "c12a7328-f81f-11d2-ba4b-00a0c93ec93\u{e9}"
                .parse::<Guid>()
                .is_err()
        );
    }

    #[test]
    fn derived_guids_are_stable_version_8_and_keep_parts_apart() {
        let a = Guid::derive(&[b"ab", b"c"]);
        assert_eq!(a, Guid::derive(&[b"ab", b"c"]));
        assert_ne!(a, Guid::derive(&[b"a", b"bc"]));
        assert_eq!(&a.to_string()[14..15], "8");
        assert!(matches!(&a.to_string()[19..20], "8" | "9" | "a" | "b"));
    }

    #[test]
    fn digest_round_trips() {
        let digest = Digest::of(b"abc");
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse::<Digest>().unwrap(), digest);
        assert!("ba7816bf".parse::<Digest>().is_err());
    }

    #[test]
    fn sizes_print_in_binary_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (491_555_815_424, "457.8 GiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn names_follow_zfs() {
        assert!("tank".parse::<PoolName>().is_ok());
        for bad in ["", "1tank", "tank/x", "ta\nnk", "-x", "t\u{e9}nk"] {
            assert!(bad.parse::<PoolName>().is_err(), "{bad:?}");
        }
        assert!("tank/a b/c".parse::<DatasetName>().is_ok());
        for bad in ["", "tank//x", "tank/", "/tank", "tank@snap", "tank/\u{0}"] {
            assert!(bad.parse::<DatasetName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn run_ids_are_safe_folder_names() {
        assert!("20261130-a1".parse::<RunId>().is_ok());
        for bad in ["", "..", "a/b", "-x", &"a".repeat(65)] {
            assert!(bad.parse::<RunId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn extents_know_their_neighbours() {
        let a = Extent {
            first: Lba(10),
            last: Lba(19),
        };
        assert_eq!(a.blocks(), 10);
        assert_eq!(a.bytes(BlockSize(4096)), Bytes(40960));
        assert!(a.overlaps(&Extent {
            first: Lba(19),
            last: Lba(30)
        }));
        assert!(!a.overlaps(&Extent {
            first: Lba(20),
            last: Lba(30)
        }));
        assert!(
            a.contains(&a)
                && !a.contains(&Extent {
                    first: Lba(9),
                    last: Lba(19)
                })
        );
    }
}
