//! Damaged files: each is an error that says what is wrong, or the same tree; never a panic,
//! never a hang, never a tree that the file does not hold.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::common::{VERSIONS, captured};
use repave_containerd_clear::encode::encode;
use repave_survey::bolt::format::{BRANCH, LEAF, META, Meta, PAGE_HEADER, PageHeader};
use repave_survey::bolt::{self, BoltError, Bucket, Database, FreelistMode, Item};

/// What was done to a file, the file, and the error that belongs to it.
type Case = (&'static str, Vec<u8>, fn(&BoltError) -> bool);

/// A database with three levels of pages, overflow pages and a bucket of each kind.
fn large<'a>(keys: &'a [Vec<u8>], value: &'a [u8]) -> Vec<u8> {
    let mut inner = Bucket::new(3);
    let mut root = Bucket::new(0);
    for key in keys {
        inner.insert(key, Item::Value(&value[..100]));
    }
    let mut small = Bucket::new(1);
    small.insert(b"k", Item::Value(b"v"));
    root.insert(b"inline", Item::Bucket(small));
    root.insert(b"large", Item::Value(value));
    root.insert(b"many", Item::Bucket(inner));
    let database = Database {
        page_size: 512,
        txid: 40,
        freelist: FreelistMode::Synced,
        root,
    };
    encode(&database).unwrap()
}

fn keys() -> Vec<Vec<u8>> {
    (0..3000)
        .map(|n| format!("key-{n:08}").into_bytes())
        .collect()
}

/// The pages of a kind, with their numbers.
fn pages(file: &[u8], page_size: usize, flags: u16) -> Vec<usize> {
    let header = |page: &usize| PageHeader::parse(&file[page * page_size..]).unwrap();
    let mut found = Vec::new();
    let mut page = 2;
    while page < file.len() / page_size {
        let header = header(&page);
        if header.flags == flags && header.id == page as u64 {
            found.push(page);
        }
        page += 1 + header.overflow as usize;
    }
    found
}

/// Replaces bytes at an offset.
fn patched(file: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut out = file.to_vec();
    out[at..at + bytes.len()].copy_from_slice(bytes);
    out
}

/// Changes both metas and gives them right checksums.
fn with_metas(file: &[u8], page_size: usize, change: impl Fn(&mut Meta)) -> Vec<u8> {
    let mut out = file.to_vec();
    for page in 0..2 {
        let at = page * page_size + PAGE_HEADER;
        let mut meta = Meta::parse(&out[at..]).unwrap();
        change(&mut meta);
        out[at..at + META].copy_from_slice(&meta.encode());
    }
    out
}

#[test]
fn each_kind_of_damage_has_its_error() {
    let (keys, value) = (keys(), vec![b'x'; 3000]);
    let file = large(&keys, &value);
    let size = 512;
    let branches = pages(&file, size, BRANCH);
    let leaves = pages(&file, size, LEAF);
    assert!(branches.len() > 10 && leaves.len() > 500);
    let (branch, leaf) = (branches[0], leaves[3]);
    let top = *branches.last().unwrap();
    let child = |page: usize, element: usize| page * size + PAGE_HEADER + 16 * element + 8;
    let number = |n: usize| (n as u64).to_le_bytes();
    let cases: Vec<Case> = vec![
        (
            "a zeroed page",
            patched(&file, leaf * size, &[0; 512]),
            |err| matches!(err, BoltError::WrongPage { found: 0, .. }),
        ),
        (
            "another page's number",
            patched(&file, leaf * size, &number(leaf + 1)),
            |err| matches!(err, BoltError::WrongPage { .. }),
        ),
        (
            "a branch that leads to itself",
            patched(&file, child(branch, 0), &number(branch)),
            |err| matches!(err, BoltError::UsedTwice { .. }),
        ),
        (
            "a branch that leads to the top",
            patched(&file, child(branch, 1), &number(top)),
            |err| matches!(err, BoltError::UsedTwice { .. }),
        ),
        (
            "two ways to one leaf",
            patched(&file, child(branch, 1), &file[child(branch, 0)..][..8]),
            |err| matches!(err, BoltError::UsedTwice { .. }),
        ),
        (
            "a child that is no page",
            patched(&file, child(branch, 0), &u64::MAX.to_le_bytes()),
            |err| matches!(err, BoltError::OutOfBounds { .. }),
        ),
        (
            "a leaf with a meta's flags",
            patched(&file, leaf * size + 8, &4u16.to_le_bytes()),
            |err| matches!(err, BoltError::WrongKind { flags: 4, .. }),
        ),
        (
            "a branch without children",
            patched(&file, branch * size + 10, &0u16.to_le_bytes()),
            |err| matches!(err, BoltError::WrongKind { .. }),
        ),
        (
            "more elements than the page holds",
            patched(&file, leaf * size + 10, &u16::MAX.to_le_bytes()),
            |err| matches!(err, BoltError::BadElement { .. }),
        ),
        (
            "an element that points behind the page",
            patched(
                &file,
                leaf * size + PAGE_HEADER + 4,
                &u32::MAX.to_le_bytes(),
            ),
            |err| matches!(err, BoltError::BadElement { .. }),
        ),
        (
            "a value that is longer than the page",
            patched(&file, leaf * size + PAGE_HEADER + 12, &600u32.to_le_bytes()),
            |err| matches!(err, BoltError::BadElement { .. }),
        ),
        (
            "two elements on the same bytes",
            patched(
                &file,
                leaf * size + PAGE_HEADER + 16 + 4,
                &file[leaf * size + 20..][..4],
            ),
            |err| {
                matches!(
                    err,
                    BoltError::KeyOrder { .. } | BoltError::BadElement { .. }
                )
            },
        ),
        (
            "an unknown element flag",
            patched(&file, leaf * size + PAGE_HEADER, &2u32.to_le_bytes()),
            |err| matches!(err, BoltError::BadElement { .. }),
        ),
        (
            "an overflow behind the end",
            patched(&file, leaf * size + 12, &u32::MAX.to_le_bytes()),
            |err| matches!(err, BoltError::OutOfBounds { .. }),
        ),
        (
            "an overflow over the next page",
            patched(&file, leaf * size + 12, &1u32.to_le_bytes()),
            |err| matches!(err, BoltError::UsedTwice { .. }),
        ),
        (
            "a key above its branch",
            {
                let at = file.windows(12).position(|w| w == b"key-00000050").unwrap();
                patched(&file, at, b"zzz")
            },
            |err| matches!(err, BoltError::KeyOrder { .. }),
        ),
        (
            "a root that is the freelist",
            with_metas(&file, size, |meta| meta.root = 2),
            |err| matches!(err, BoltError::UsedTwice { page: 2 }),
        ),
        (
            "a freelist that is the root",
            with_metas(&file, size, |meta| meta.freelist = meta.root),
            |err| matches!(err, BoltError::WrongKind { .. }),
        ),
        (
            "more pages in use than in the file",
            with_metas(&file, size, |meta| meta.high_water += 1),
            |err| matches!(err, BoltError::OutOfBounds { .. }),
        ),
        (
            "no page in use",
            with_metas(&file, size, |meta| meta.high_water = 2),
            |err| matches!(err, BoltError::OutOfBounds { .. }),
        ),
        (
            "a page size that is no power of two",
            with_metas(&file, size, |meta| meta.page_size = 513),
            |err| matches!(err, BoltError::NoMeta { .. }),
        ),
        (
            "a page size of zero",
            with_metas(&file, size, |meta| meta.page_size = 0),
            |err| matches!(err, BoltError::NoMeta { .. }),
        ),
        (
            "a transaction after which there is none",
            with_metas(&file, size, |meta| meta.txid = u64::MAX),
            |err| matches!(err, BoltError::NoMeta { .. }),
        ),
        (
            "another file version",
            {
                let mut out = file.clone();
                for page in 0..2 {
                    let at = page * size + PAGE_HEADER;
                    out[at + 4] = 3;
                    let sum = bolt::format::fnv1a(&out[at..at + 56]);
                    out[at + 56..at + 64].copy_from_slice(&sum.to_le_bytes());
                }
                out
            },
            |err| matches!(err, BoltError::NoMeta { .. }),
        ),
        (
            "a free page that is in use",
            {
                let mut out = patched(&file, 2 * size + 10, &1u16.to_le_bytes());
                out[2 * size + 16..2 * size + 24].copy_from_slice(&number(leaf));
                out
            },
            |err| matches!(err, BoltError::UsedTwice { .. }),
        ),
        (
            "more free pages than the list has room for",
            {
                let mut out = patched(&file, 2 * size + 10, &u16::MAX.to_le_bytes());
                out[2 * size + 16..2 * size + 24].fill(0xff);
                out
            },
            |err| {
                matches!(
                    err,
                    BoltError::KeyOrder { .. } | BoltError::BadElement { .. }
                )
            },
        ),
    ];
    for (name, bytes, expected) in cases {
        match bolt::parse(&bytes) {
            Err(err) => assert!(expected(&err), "{name}: {err:?}"),
            Ok(_) => panic!("{name}: taken for whole"),
        }
    }
}

#[test]
fn buckets_nested_without_end_are_cut_off() {
    let mut bucket = Bucket::new(0);
    for _ in 0..200 {
        let mut outer = Bucket::new(0);
        outer.insert(b"b", Item::Bucket(bucket));
        bucket = outer;
    }
    let deep = |root| {
        let database = Database {
            page_size: 4096,
            txid: 1,
            freelist: FreelistMode::Unsynced,
            root,
        };
        bolt::parse(&encode(&database).unwrap()).map(drop)
    };
    assert!(matches!(deep(bucket), Err(BoltError::TooDeep { .. })));
}

#[test]
fn every_cut_of_a_file_is_an_error() {
    for version in VERSIONS {
        let whole = captured(&format!("{version}/meta.db.gz"));
        let database = bolt::parse(&whole).unwrap();
        let compact = encode(&database).unwrap();
        for step in 0..64 {
            let length = compact.len() * step / 64;
            assert!(
                bolt::parse(&compact[..length]).is_err(),
                "{version} {length}"
            );
        }
        assert!(bolt::parse(&compact[..compact.len() - 1]).is_err());
    }
}

#[test]
fn every_zeroed_page_in_use_is_an_error() {
    let (keys, value) = (keys(), vec![b'x'; 3000]);
    let large = large(&keys, &value);
    let mut files = vec![(512, large)];
    for version in VERSIONS {
        let whole = captured(&format!("{version}/meta.db.gz"));
        let compact = encode(&bolt::parse(&whole).unwrap()).unwrap();
        files.push((4096, compact));
    }
    let mut zeroed = 0;
    for (size, file) in files {
        let mut page = 2;
        while page < file.len() / size {
            let header = PageHeader::parse(&file[page * size..]).unwrap();
            let bytes = patched(&file, page * size, &vec![0; size]);
            assert!(bolt::parse(&bytes).is_err(), "page {page} of {size}");
            page += 1 + header.overflow as usize;
            zeroed += 1;
        }
    }
    assert!(zeroed > 500, "{zeroed}");
}

/// Bytes flipped anywhere: most land in values and go unseen, as in bolt itself; none may
/// bring the reader down. Each that is seen says so.
#[test]
fn flipped_bytes_neither_crash_nor_hang() {
    let (keys, value) = (keys(), vec![b'x'; 3000]);
    let mut files = vec![large(&keys, &value)];
    for (version, name) in VERSIONS
        .iter()
        .flat_map(|version| ["meta", "metadata"].map(|name| (version, name)))
    {
        // Written anew, without the free pages, where damage is nothing.
        let file = captured(&format!("{version}/{name}.db.gz"));
        files.push(encode(&bolt::parse(&file).unwrap()).unwrap());
    }
    let mut seed = 0x00da_3a6e_u64;
    let mut next = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for file in &files {
        // Half the damage goes to the front of pages, where the structure is.
        for round in 0..240 {
            let mut bytes = file.clone();
            for _ in 0..=next(4) {
                let at = match round % 2 {
                    0 => next(bytes.len()),
                    _ => (next(bytes.len() / 512) * 512 + next(64)).min(bytes.len() - 1),
                };
                bytes[at] = next(256) as u8;
            }
            let started = Instant::now();
            let result = bolt::parse(&bytes);
            assert!(started.elapsed() < Duration::from_secs(10));
            let kind = match result {
                Ok(_) => "unseen".to_owned(),
                Err(err) => {
                    assert!(!err.to_string().is_empty());
                    let name = format!("{err:?}");
                    name.split([' ', '{']).next().unwrap().to_owned()
                }
            };
            *seen.entry(kind).or_default() += 1;
        }
    }
    let found: u32 = seen
        .iter()
        .filter(|(k, _)| *k != "unseen")
        .map(|(_, n)| n)
        .sum();
    assert!(found > 300, "{seen:?}");
    assert!(seen.len() > 5, "{seen:?}");
}
