//! One slot of the entry array: 128 bytes (UEFI 2.10, table 5.6).
//!
//! Takes the slot's bytes, gives an [`Entry`]; takes an [`EntrySpec`], gives the
//! bytes. A name is kept as its 72 raw bytes, because what follows the NUL and a
//! lone surrogate would be lost in a round trip through text.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::{BadValue, Extent, Guid, Lba, PartNo};

use super::header::{get_guid, get_u64};

/// The size of one slot in bytes. Other sizes are refused by name.
pub(super) const ENTRY_SIZE: usize = 128;

/// A partition's name as it lies on the disk: 36 UTF-16LE units, NUL padded.
///
/// Written in JSON as 144 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct RawName(pub [u8; 72]);

impl fmt::Display for RawName {
    /// Up to the first NUL; what is no UTF-16 prints as U+FFFD.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = self
            .0
            .chunks_exact(2)
            .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
            .take_while(|unit| *unit != 0);
        for c in char::decode_utf16(units) {
            write!(f, "{}", c.unwrap_or(char::REPLACEMENT_CHARACTER))?;
        }
        Ok(())
    }
}

impl From<RawName> for String {
    fn from(name: RawName) -> String {
        name.0.iter().map(|b| format!("{b:02x}")).collect()
    }
}

impl TryFrom<String> for RawName {
    type Error = BadValue;

    fn try_from(text: String) -> Result<Self, BadValue> {
        let mut raw = [0u8; 72];
        match super::image::read_hex(&text, &mut raw) {
            true => Ok(RawName(raw)),
            false => Err(BadValue {
                text: text.chars().take(80).collect(),
                expected: "a raw partition name (144 hexadecimal digits)",
            }),
        }
    }
}

/// One used slot of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The slot's index plus one.
    pub number: PartNo,
    /// What the partition holds.
    pub type_guid: Guid,
    /// The partition's own GUID (PARTUUID).
    pub guid: Guid,
    /// Its logical blocks.
    pub extent: Extent,
    /// The attribute bits as stored.
    pub attributes: u64,
    /// The name's bytes as stored.
    pub name_raw: RawName,
    /// The name for people: lossy, up to the first NUL.
    pub name: String,
}

impl Entry {
    /// The same slot as a thing to write.
    pub fn spec(&self) -> EntrySpec {
        EntrySpec {
            number: self.number,
            type_guid: self.type_guid,
            guid: self.guid,
            extent: self.extent,
            attributes: self.attributes,
            name_raw: self.name_raw,
        }
    }
}

/// A slot to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntrySpec {
    /// The slot's index plus one.
    pub number: PartNo,
    /// What the partition will hold.
    pub type_guid: Guid,
    /// The partition's own GUID (PARTUUID).
    pub guid: Guid,
    /// Its logical blocks.
    pub extent: Extent,
    /// The attribute bits.
    pub attributes: u64,
    /// The name's bytes.
    pub name_raw: RawName,
}

/// Reads a slot of 128 bytes; `None` when its type GUID says that it is unused.
pub(super) fn parse_entry(number: PartNo, slot: &[u8]) -> Option<Entry> {
    let type_guid = get_guid(slot, 0);
    if type_guid == Guid::UNUSED {
        return None;
    }
    let mut raw = [0u8; 72];
    raw.copy_from_slice(&slot[56..128]);
    let name_raw = RawName(raw);
    Some(Entry {
        number,
        type_guid,
        guid: get_guid(slot, 16),
        extent: Extent {
            first: Lba(get_u64(slot, 32)),
            last: Lba(get_u64(slot, 40)),
        },
        attributes: get_u64(slot, 48),
        name_raw,
        name: name_raw.to_string(),
    })
}

/// The slot's 128 bytes.
pub(super) fn encode_entry(spec: &EntrySpec) -> [u8; ENTRY_SIZE] {
    let mut slot = [0u8; ENTRY_SIZE];
    slot[0..16].copy_from_slice(&spec.type_guid.0);
    slot[16..32].copy_from_slice(&spec.guid.0);
    slot[32..40].copy_from_slice(&spec.extent.first.0.to_le_bytes());
    slot[40..48].copy_from_slice(&spec.extent.last.0.to_le_bytes());
    slot[48..56].copy_from_slice(&spec.attributes.to_le_bytes());
    slot[56..128].copy_from_slice(&spec.name_raw.0);
    slot
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(units: &[u16]) -> RawName {
        let mut raw = [0u8; 72];
        for (at, unit) in units.iter().enumerate() {
            raw[at * 2..at * 2 + 2].copy_from_slice(&unit.to_le_bytes());
        }
        RawName(raw)
    }

    #[test]
    fn names_print_lossy_and_keep_their_bytes() {
        // A pair outside the basic plane, a lone surrogate, garbage after the NUL.
        let raw = name(&[0x61, 0xd83d, 0xde00, 0xd800, 0x62, 0, 0x7a]);
        assert_eq!(raw.to_string(), "a\u{1f600}\u{fffd}b");
        let json = serde_json::to_string(&raw).unwrap();
        assert_eq!(serde_json::from_str::<RawName>(&json).unwrap(), raw);
        assert!(serde_json::from_str::<RawName>("\"00\"").is_err());
    }

    #[test]
    fn a_slot_round_trips() {
        let mut slot = [0u8; 128];
        for (at, byte) in slot.iter_mut().enumerate() {
            *byte = at as u8 + 1;
        }
        let entry = parse_entry(PartNo(7), &slot).unwrap();
        assert_eq!(entry.extent.first, Lba(0x2827_2625_2423_2221));
        assert_eq!(encode_entry(&entry.spec()), slot);
        assert_eq!(parse_entry(PartNo(1), &[0u8; 128]), None);
    }
}
