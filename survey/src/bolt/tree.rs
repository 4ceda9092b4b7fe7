//! A bolt database as a value: nested buckets of keys that borrow from the file.

use std::fmt;

/// Whether the file stores its list of free pages. A rewritten file keeps the mode,
/// because containerd opens its databases with one of the two and measures nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreelistMode {
    /// The list is in the file.
    Synced,
    /// The list is made anew at every open (bbolt's `NoFreelistSync`).
    Unsynced,
}

/// What a bolt file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database<'a> {
    /// Bytes per page.
    pub page_size: usize,
    /// The last committed transaction.
    pub txid: u64,
    /// Whether the file stores its freelist.
    pub freelist: FreelistMode,
    /// The bucket that holds all others.
    pub root: Bucket<'a>,
}

/// Keys in byte order, each with a value or another bucket.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Bucket<'a> {
    /// The bucket's counter (bolt's `NextSequence`); containerd numbers snapshots with it.
    pub sequence: u64,
    entries: Vec<(&'a [u8], Item<'a>)>,
}

/// What a key stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item<'a> {
    /// Plain bytes.
    Value(&'a [u8]),
    /// A nested bucket.
    Bucket(Bucket<'a>),
}

impl<'a> Bucket<'a> {
    /// An empty bucket with this counter.
    pub fn new(sequence: u64) -> Bucket<'a> {
        Bucket {
            sequence,
            entries: Vec::new(),
        }
    }

    /// All entries in key order.
    pub fn entries(&self) -> &[(&'a [u8], Item<'a>)] {
        &self.entries
    }

    /// All entries in key order, to change what the keys stand for.
    pub fn entries_mut(&mut self) -> impl Iterator<Item = (&'a [u8], &mut Item<'a>)> {
        self.entries.iter_mut().map(|(key, item)| (*key, item))
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The nested buckets in key order.
    pub fn buckets(&self) -> impl Iterator<Item = (&'a [u8], &Bucket<'a>)> {
        self.entries.iter().filter_map(|(key, item)| match item {
            Item::Bucket(bucket) => Some((*key, bucket)),
            Item::Value(_) => None,
        })
    }

    /// The value of a key, if it has one.
    pub fn value(&self, key: &[u8]) -> Option<&'a [u8]> {
        match self.get(key)? {
            Item::Value(value) => Some(value),
            Item::Bucket(_) => None,
        }
    }

    /// The bucket of a key, if it has one.
    pub fn bucket(&self, key: &[u8]) -> Option<&Bucket<'a>> {
        match self.get(key)? {
            Item::Bucket(bucket) => Some(bucket),
            Item::Value(_) => None,
        }
    }

    /// As [`Bucket::bucket`], to change it.
    pub fn bucket_mut(&mut self, key: &[u8]) -> Option<&mut Bucket<'a>> {
        let at = self.find(key).ok()?;
        match self.entries.get_mut(at) {
            Some((_, Item::Bucket(bucket))) => Some(bucket),
            _ => None,
        }
    }

    /// The bucket at the end of a path of keys.
    pub fn path(&self, keys: &[&[u8]]) -> Option<&Bucket<'a>> {
        keys.iter().try_fold(self, |bucket, key| bucket.bucket(key))
    }

    /// As [`Bucket::path`], to change it.
    pub fn path_mut(&mut self, keys: &[&[u8]]) -> Option<&mut Bucket<'a>> {
        keys.iter()
            .try_fold(self, |bucket, key| bucket.bucket_mut(key))
    }

    /// Puts an item under a key, in order; gives back what was there.
    pub fn insert(&mut self, key: &'a [u8], item: Item<'a>) -> Option<Item<'a>> {
        // Files are read in key order: the end is the usual place, found without a search.
        if self.entries.last().is_none_or(|(last, _)| *last < key) {
            self.entries.push((key, item));
            return None;
        }
        match self.find(key) {
            Ok(at) => Some(std::mem::replace(&mut self.entries[at].1, item)),
            Err(at) => {
                self.entries.insert(at, (key, item));
                None
            }
        }
    }

    /// Forgets a key; gives back what was there.
    pub fn remove(&mut self, key: &[u8]) -> Option<Item<'a>> {
        let at = self.find(key).ok()?;
        Some(self.entries.remove(at).1)
    }

    /// Forgets every key that `keep` says no to; gives the number forgotten.
    pub fn retain(&mut self, mut keep: impl FnMut(&[u8], &Item<'a>) -> bool) -> usize {
        let before = self.entries.len();
        self.entries.retain(|(key, item)| keep(key, item));
        before - self.entries.len()
    }

    fn get(&self, key: &[u8]) -> Option<&Item<'a>> {
        let at = self.find(key).ok()?;
        self.entries.get(at).map(|(_, item)| item)
    }

    fn find(&self, key: &[u8]) -> Result<usize, usize> {
        self.entries.binary_search_by(|(have, _)| (*have).cmp(key))
    }
}

impl fmt::Debug for Bucket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self
            .entries
            .iter()
            .map(|(key, item)| (String::from_utf8_lossy(key), item));
        f.debug_map().entries(keys).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_in_order_whatever_the_order_of_insertion() {
        let mut bucket = Bucket::default();
        for key in ["m", "a", "z", "b", "m"] {
            bucket.insert(key.as_bytes(), Item::Value(key.as_bytes()));
        }
        let keys: Vec<&[u8]> = bucket.entries().iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, [b"a", b"b", b"m", b"z"]);
        assert_eq!(bucket.remove(b"b"), Some(Item::Value(b"b")));
        assert_eq!(bucket.remove(b"b"), None);
        assert_eq!(bucket.retain(|key, _| key > &b"a"[..]), 1);
        assert_eq!(bucket.entries().len(), 2);
    }

    #[test]
    fn a_path_leads_through_buckets_only() {
        let mut inner = Bucket::default();
        inner.insert(b"k", Item::Value(b"v"));
        let mut outer = Bucket::default();
        outer.insert(b"b", Item::Bucket(inner));
        let mut root = Bucket::default();
        root.insert(b"a", Item::Bucket(outer));
        assert_eq!(
            root.path(&[b"a", b"b"]).unwrap().value(b"k"),
            Some(&b"v"[..])
        );
        assert_eq!(root.path(&[b"a", b"b", b"k"]), None);
        root.path_mut(&[b"a", b"b"]).unwrap().remove(b"k");
        assert!(root.path(&[b"a", b"b"]).unwrap().is_empty());
    }
}
