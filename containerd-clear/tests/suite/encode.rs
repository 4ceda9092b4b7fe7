//! The writer against the reader: trees of every shape survive, in every page size.

use crate::common::{VERSIONS, captured};
use repave_containerd_clear::encode::encode;
use repave_survey::bolt::format::{Meta, PAGE_HEADER};
use repave_survey::bolt::{self, Bucket, Database, FreelistMode, Item};

/// Numbers that only look random (xorshift64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// A tree of nested buckets whose keys and values are cut out of `bytes`.
fn tree<'a>(numbers: &mut Numbers, bytes: &'a [u8], depth: u64) -> Bucket<'a> {
    let mut bucket = Bucket::new(numbers.next(1000));
    let count = [0, 1, 3, 40, 300][numbers.next(5) as usize];
    for _ in 0..count {
        let start = numbers.next(60_000) as usize;
        let long = if numbers.next(50) == 0 { 4000 } else { 30 };
        let key = &bytes[start..start + 1 + numbers.next(long) as usize];
        let item = match numbers.next(24) {
            0 if depth > 0 => Item::Bucket(tree(numbers, bytes, depth - 1)),
            1 => Item::Value(&bytes[..numbers.next(4000) as usize]),
            _ => Item::Value(&bytes[start..start + numbers.next(60) as usize]),
        };
        bucket.insert(key, item);
    }
    bucket
}

fn data() -> Vec<u8> {
    let mut numbers = Numbers(7);
    (0..70_000).map(|_| numbers.next(256) as u8).collect()
}

#[test]
fn every_tree_survives_in_every_page_size() {
    let data = data();
    let mut numbers = Numbers(0x5eed);
    for bits in 9..=16 {
        for round in 0..12 {
            let freelist = match round % 2 {
                0 => FreelistMode::Synced,
                _ => FreelistMode::Unsynced,
            };
            let database = Database {
                page_size: 1 << bits,
                txid: numbers.next(1 << 40),
                freelist,
                root: tree(&mut numbers, &data, 2),
            };
            let bytes = encode(&database).unwrap();
            let back = bolt::parse(&bytes).unwrap();
            let expected = Database {
                txid: database.txid + 2,
                ..database
            };
            assert!(back == expected, "page size {} round {round}", 1 << bits);
        }
    }
}

#[test]
fn both_metas_lead_to_the_tree() {
    for version in VERSIONS {
        let old = captured(&format!("{version}/meta.db.gz"));
        let old = bolt::parse(&old).unwrap();
        let bytes = encode(&old).unwrap();
        let meta = |page: usize| Meta::parse(&bytes[page * old.page_size + PAGE_HEADER..]).unwrap();
        let (even, odd) = (meta(0), meta(1));
        // Bolt writes transaction n to page n % 2.
        assert_eq!((even.txid % 2, odd.txid % 2), (0, 1));
        assert_eq!(even.txid.max(odd.txid), old.txid + 2);
        assert_eq!(even.txid.abs_diff(odd.txid), 1);
        assert_eq!(even.high_water as usize * old.page_size, bytes.len());
        assert_eq!((even.root, even.freelist), (odd.root, odd.freelist));
        // With either meta gone, the other is enough.
        for page in 0..2 {
            let mut half = bytes.clone();
            half[page * old.page_size..][..80].fill(0);
            assert_eq!(bolt::parse(&half).unwrap().root, old.root, "{version}");
        }
    }
}

#[test]
fn a_rewritten_file_has_no_free_pages() {
    let old = captured("1.7.24/meta.db.gz");
    let once = encode(&bolt::parse(&old).unwrap()).unwrap();
    let twice = encode(&bolt::parse(&once).unwrap()).unwrap();
    assert_eq!(once.len(), twice.len());
    assert!(once.len() < old.len() / 2, "{} bytes", once.len());
}
