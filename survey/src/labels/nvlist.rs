//! A packed XDR nvlist, the way a ZFS label holds its configuration.
//!
//! Pure: takes the bytes of a label's configuration block and gives its pairs.
//! The layout is that of OpenZFS `module/nvpair/nvpair.c` (`nvs_xdr_*`): a header
//! of four bytes, then big-endian XDR whatever the writer's byte order was. The
//! input is a disk's and so not trusted: nesting is bounded, no count from the
//! input is allocated before its bytes were seen, and nothing panics.

use serde::{Deserialize, Serialize};

/// Nesting a label can need (pool → top → replacing → spare → leaf), with room.
const MAX_DEPTH: usize = 16;

/// The byte order of the host that wrote a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Endian {
    /// Least significant byte first (x86_64, aarch64).
    Little,
    /// Most significant byte first.
    Big,
}

impl Endian {
    /// Eight bytes of this order as a number.
    pub fn u64(self, raw: [u8; 8]) -> u64 {
        match self {
            Endian::Little => u64::from_le_bytes(raw),
            Endian::Big => u64::from_be_bytes(raw),
        }
    }

    /// A number as eight bytes of this order.
    pub fn bytes(self, value: u64) -> [u8; 8] {
        match self {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        }
    }
}

/// Why bytes are not a packed nvlist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NvError {
    /// The four header bytes are not those of an XDR nvlist.
    #[error("no XDR nvlist header")]
    Header,
    /// The nvlist version is not 0.
    #[error("nvlist version {found}, expected 0")]
    Version {
        /// What is there.
        found: u32,
    },
    /// The bytes end inside a value.
    #[error("cut short at byte {offset}")]
    Short {
        /// Offset from the nvlist's first byte.
        offset: usize,
    },
    /// A pair's size is too small, not a multiple of 4 or beyond the end.
    #[error("pair of {size} bytes at byte {offset}")]
    PairSize {
        /// Offset of the pair.
        offset: usize,
        /// The size it claims.
        size: u32,
    },
    /// A type code OpenZFS does not know.
    #[error("type {code} at byte {offset}")]
    Type {
        /// Offset of the pair.
        offset: usize,
        /// The code.
        code: u32,
    },
    /// A pair's number of elements does not go with its type.
    #[error("{count} elements at byte {offset}")]
    Count {
        /// Offset of the pair.
        offset: usize,
        /// The count.
        count: u32,
    },
    /// Lists nested deeper than a label can need.
    #[error("nested deeper than {MAX_DEPTH} lists")]
    Depth,
}

/// A value. Types that labels do not use are kept as their code only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `DATA_TYPE_BOOLEAN`: the name alone says it.
    Flag,
    /// `DATA_TYPE_UINT64`.
    U64(u64),
    /// `DATA_TYPE_STRING`; bytes that are not UTF-8 are replaced, since texts of a
    /// label are shown to people and never identify anything: guids do.
    Text(String),
    /// `DATA_TYPE_UINT64_ARRAY`.
    U64s(Vec<u64>),
    /// `DATA_TYPE_NVLIST`.
    List(Nvlist),
    /// `DATA_TYPE_NVLIST_ARRAY`.
    Lists(Vec<Nvlist>),
    /// Any other type, by its code.
    Other(u32),
}

/// The pairs of a list, in the order they are stored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Nvlist {
    pairs: Vec<(String, Value)>,
}

impl Nvlist {
    /// The number under this name.
    pub fn u64(&self, name: &str) -> Option<u64> {
        match self.value(name) {
            Some(Value::U64(value)) => Some(*value),
            _ => None,
        }
    }

    /// The text under this name.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.value(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The list under this name.
    pub fn list(&self, name: &str) -> Option<&Nvlist> {
        match self.value(name) {
            Some(Value::List(list)) => Some(list),
            _ => None,
        }
    }

    /// The lists under this name; none when it is not there.
    pub fn lists(&self, name: &str) -> &[Nvlist] {
        match self.value(name) {
            Some(Value::Lists(lists)) => lists,
            _ => &[],
        }
    }

    /// The names, in the order they are stored.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().map(|(name, _)| name.as_str())
    }

    fn value(&self, name: &str) -> Option<&Value> {
        let pair = self.pairs.iter().find(|(key, _)| key == name)?;
        Some(&pair.1)
    }
}

/// What unpacking gave: the writer's byte order, the pairs, and what was wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// The byte order the header names.
    pub endian: Endian,
    /// The pairs. With a `damage`, those that stood before it.
    pub list: Nvlist,
    /// Why the list does not unpack as a whole.
    pub damage: Option<NvError>,
}

/// Unpacks a packed nvlist. Without a header it is not an nvlist at all, which is
/// the one error; damage behind the header is told with the pairs before it,
/// because a torn label still names its pool.
pub fn parse_packed(bytes: &[u8]) -> Result<Unpacked, NvError> {
    // Encoding 1 is XDR; the two reserved bytes are zero (nvs_header_t).
    let endian = match bytes {
        [1, 1, 0, 0, ..] => Endian::Little,
        [1, 0, 0, 0, ..] => Endian::Big,
        _ => return Err(NvError::Header),
    };
    let mut list = Nvlist::default();
    let mut cursor = Cursor { bytes, at: 4 };
    let damage = parse_list(&mut cursor, 0, &mut list).err();
    Ok(Unpacked {
        endian,
        list,
        damage,
    })
}

fn parse_list(cursor: &mut Cursor<'_>, depth: usize, into: &mut Nvlist) -> Result<(), NvError> {
    if depth >= MAX_DEPTH {
        return Err(NvError::Depth);
    }
    match cursor.u32()? {
        0 => {}
        found => return Err(NvError::Version { found }),
    }
    let _flags = cursor.u32()?;
    loop {
        let start = cursor.at;
        let size = cursor.u32()?;
        let decoded = cursor.u32()?;
        if size == 0 && decoded == 0 {
            return Ok(());
        }
        let bad = NvError::PairSize {
            offset: start,
            size,
        };
        if size % 4 != 0 {
            return Err(bad);
        }
        let end = start.checked_add(size as usize).ok_or(bad.clone())?;
        // The pair's own reader ends where the pair ends: a count inside it can
        // not reach into the next pair.
        let mut pair = Cursor {
            bytes: cursor.bytes.get(..end).ok_or(bad)?,
            at: cursor.at,
        };
        let name = pair.text()?;
        let value = parse_value(&mut pair, start, depth)?;
        into.pairs.push((name, value));
        cursor.at = end;
    }
}

fn parse_value(pair: &mut Cursor<'_>, start: usize, depth: usize) -> Result<Value, NvError> {
    let code = pair.u32()?;
    let count = pair.u32()?;
    // One element, none for the flag, any number for the array types.
    let fits = match code {
        1 => count == 0,
        2..=9 | 18 | 19 | 21..=23 | 27 => count == 1,
        10..=17 | 20 | 24..=26 => true,
        _ => {
            return Err(NvError::Type {
                offset: start,
                code,
            });
        }
    };
    if !fits {
        return Err(NvError::Count {
            offset: start,
            count,
        });
    }
    Ok(match code {
        1 => Value::Flag,
        8 => Value::U64(pair.u64()?),
        9 => Value::Text(pair.text()?),
        16 => {
            // XDR arrays repeat their count in front of the elements.
            let count = pair.u32()?;
            let mut numbers = Vec::new();
            for _ in 0..count {
                numbers.push(pair.u64()?);
            }
            Value::U64s(numbers)
        }
        19 => {
            let mut list = Nvlist::default();
            parse_list(pair, depth + 1, &mut list)?;
            Value::List(list)
        }
        20 => {
            let mut lists = Vec::new();
            for _ in 0..count {
                let mut list = Nvlist::default();
                parse_list(pair, depth + 1, &mut list)?;
                lists.push(list);
            }
            Value::Lists(lists)
        }
        code => Value::Other(code),
    })
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], NvError> {
        let short = NvError::Short { offset: self.at };
        let end = self.at.checked_add(len).ok_or(short.clone())?;
        let taken = self.bytes.get(self.at..end).ok_or(short)?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], NvError> {
        let offset = self.at;
        self.take(N)?
            .try_into()
            .map_err(|_| NvError::Short { offset })
    }

    fn u32(&mut self) -> Result<u32, NvError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, NvError> {
        self.array().map(u64::from_be_bytes)
    }

    fn text(&mut self) -> Result<String, NvError> {
        let len = self.u32()? as usize;
        let text = String::from_utf8_lossy(self.take(len)?).into_owned();
        // XDR pads to four bytes; `len` was inside the input, so this cannot wrap.
        self.take(len.next_multiple_of(4) - len)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packs pairs the way `nvs_xdr_*` does, for inputs no genuine label has.
    fn pack(pairs: &[(&str, u32, u32, Vec<u8>)]) -> Vec<u8> {
        let mut out = vec![1, 1, 0, 0];
        out.extend(pack_embedded(pairs));
        out
    }

    fn pack_embedded(pairs: &[(&str, u32, u32, Vec<u8>)]) -> Vec<u8> {
        let mut out = vec![0, 0, 0, 0, 0, 0, 0, 1];
        for (name, code, count, value) in pairs {
            let mut body = (name.len() as u32).to_be_bytes().to_vec();
            body.extend(name.bytes());
            body.resize(body.len().next_multiple_of(4), 0);
            body.extend(code.to_be_bytes());
            body.extend(count.to_be_bytes());
            body.extend(value);
            out.extend((body.len() as u32 + 8).to_be_bytes());
            out.extend(1u32.to_be_bytes());
            out.extend(body);
        }
        out.extend([0; 8]);
        out
    }

    fn number(value: u64) -> Vec<u8> {
        value.to_be_bytes().to_vec()
    }

    #[test]
    fn reads_every_type_a_label_uses() {
        let child = |id| pack_embedded(&[("id", 8, 1, number(id))]);
        let mut array = 2u32.to_be_bytes().to_vec();
        array.extend(number(7));
        array.extend(number(8));
        let bytes = pack(&[
            ("txg", 8, 1, number(42)),
            ("name", 9, 1, b"\0\0\0\x05tank2\0\0\0".to_vec()),
            ("on", 1, 0, vec![]),
            ("tree", 19, 1, child(3)),
            ("children", 20, 2, [child(0), child(1)].concat()),
            ("numbers", 16, 2, array),
            ("later", 5, 1, vec![0, 0, 0, 9]),
        ]);
        let got = parse_packed(&bytes).unwrap();
        assert_eq!(got.damage, None);
        assert_eq!(got.endian, Endian::Little);
        assert_eq!(got.list.u64("txg"), Some(42));
        assert_eq!(got.list.text("name"), Some("tank2"));
        assert_eq!(got.list.value("on"), Some(&Value::Flag));
        assert_eq!(got.list.list("tree").unwrap().u64("id"), Some(3));
        let ids: Vec<_> = got
            .list
            .lists("children")
            .iter()
            .map(|c| c.u64("id"))
            .collect();
        assert_eq!(ids, [Some(0), Some(1)]);
        assert_eq!(got.list.value("numbers"), Some(&Value::U64s(vec![7, 8])));
        assert_eq!(got.list.value("later"), Some(&Value::Other(5)));
        // The same name with another type is not that value.
        assert_eq!((got.list.u64("name"), got.list.text("txg")), (None, None));
    }

    #[test]
    fn bad_input_is_named_and_the_pairs_before_it_are_kept() {
        let good = pack(&[("guid", 8, 1, number(5)), ("state", 8, 1, number(0))]);
        let edit = |at: usize, bytes: &[u8]| {
            let mut copy = good.clone();
            copy[at..at + bytes.len()].copy_from_slice(bytes);
            parse_packed(&copy)
        };
        for (at, bytes) in [(0, &[2u8][..]), (0, &[0]), (1, &[2]), (2, &[1]), (3, &[1])] {
            assert_eq!(
                edit(at, bytes),
                Err(NvError::Header),
                "byte {at} = {bytes:?}"
            );
        }
        assert_eq!(edit(1, &[0]).unwrap().endian, Endian::Big);
        assert_eq!(
            edit(7, &[1]).unwrap().damage,
            Some(NvError::Version { found: 1 })
        );
        // The second pair starts at 4 + 8 + 32.
        for (at, bytes, damage) in [
            (
                44,
                &[0xff; 4][..],
                NvError::PairSize {
                    offset: 44,
                    size: u32::MAX,
                },
            ),
            (
                44,
                &[0x7f, 0xff, 0xff, 0xfc],
                NvError::PairSize {
                    offset: 44,
                    size: 0x7fff_fffc,
                },
            ),
            (
                44,
                &[0, 0, 0, 34],
                NvError::PairSize {
                    offset: 44,
                    size: 34,
                },
            ),
            (44, &[0, 0, 0, 8], NvError::Short { offset: 52 }),
            (52, &[0xff; 4], NvError::Short { offset: 56 }),
            (
                64,
                &[0, 0, 0, 28],
                NvError::Type {
                    offset: 44,
                    code: 28,
                },
            ),
            (
                64,
                &[0, 0, 0, 0],
                NvError::Type {
                    offset: 44,
                    code: 0,
                },
            ),
            (
                68,
                &[0, 0, 0, 2],
                NvError::Count {
                    offset: 44,
                    count: 2,
                },
            ),
        ] {
            let got = edit(at, bytes).unwrap();
            assert_eq!(got.damage, Some(damage), "byte {at} = {bytes:?}");
            assert_eq!(got.list.u64("guid"), Some(5));
            assert_eq!(got.list.u64("state"), None);
        }
        for len in 4..good.len() {
            assert!(
                parse_packed(&good[..len]).unwrap().damage.is_some(),
                "{len} bytes"
            );
        }
    }

    #[test]
    fn a_nesting_bomb_and_a_huge_count_end_at_their_bounds() {
        let mut list = pack_embedded(&[]);
        for depth in 0..200 {
            let packed = [&[1, 1, 0, 0][..], &list].concat();
            let damage = parse_packed(&packed).unwrap().damage;
            assert_eq!(damage.is_some(), depth >= MAX_DEPTH, "{depth} lists");
            list = pack_embedded(&[("x", 19, 1, list)]);
        }
        let empty = pack_embedded(&[]);
        let bomb = pack(&[("c", 20, u32::MAX, empty)]);
        assert!(matches!(
            parse_packed(&bomb).unwrap().damage,
            Some(NvError::Short { .. })
        ));
        let numbers = pack(&[("n", 16, 1, u32::MAX.to_be_bytes().to_vec())]);
        assert!(matches!(
            parse_packed(&numbers).unwrap().damage,
            Some(NvError::Short { .. })
        ));
    }
}
