//! The strict walk: from the bytes of a bolt file to its tree.
//!
//! Pure. Takes the whole file, picks the meta that bolt itself would pick (the valid
//! one of the higher transaction) and follows it. Everything that bolt takes on trust
//! is checked, because bolt's own readers die on a damaged page (measured: Go's 1.3.6
//! panics or hangs on a quarter of mutated files). Memory: at most about four times
//! the file, since an element of 17 bytes becomes an entry of 56.

use thiserror::Error;

use super::format::{self, Meta, PageHeader, u32_at, u64_at};
use super::tree::{Bucket, Database, FreelistMode, Item};

/// Deepest path from the root page to a leaf, nested buckets included. containerd nests
/// seven buckets; a tree of a thousand million keys is five pages deep.
pub const MAX_DEPTH: usize = 64;

/// What is wrong with a bolt file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BoltError {
    /// Neither meta page is whole.
    #[error("find a valid meta page in a file of {size} bytes")]
    NoMeta {
        /// Bytes of the file.
        size: usize,
    },
    /// A page lies outside the file or of what the meta says is in use.
    #[error("reach page {page}: only {limit} pages are in use and in the file")]
    OutOfBounds {
        /// The page's number, with its overflow.
        page: u64,
        /// The limit.
        limit: u64,
    },
    /// A page carries another page's number.
    #[error("read page {page}: it says that it is page {found}")]
    WrongPage {
        /// The page's number.
        page: u64,
        /// The number in its header.
        found: u64,
    },
    /// Two ways lead to one page, or a page is both free and in use.
    #[error("read page {page}: it is used twice")]
    UsedTwice {
        /// The page's number.
        page: u64,
    },
    /// A page is not of the kind that belongs there.
    #[error("read page {page}: unexpected flags {flags:#06x}")]
    WrongKind {
        /// The page's number; 0 for an inline page.
        page: u64,
        /// Its flags.
        flags: u16,
    },
    /// An element points outside its page.
    #[error("read element {element} of page {page}: it leaves the page")]
    BadElement {
        /// The page's number; 0 for an inline page.
        page: u64,
        /// The element's index.
        element: usize,
    },
    /// Keys out of order, twice there, or outside what the branch above promises.
    #[error("read element {element} of page {page}: its key is out of order")]
    KeyOrder {
        /// The page's number; 0 for an inline page.
        page: u64,
        /// The element's index.
        element: usize,
    },
    /// A path is longer than [`MAX_DEPTH`].
    #[error("follow page {page}: more than {MAX_DEPTH} pages and buckets deep")]
    TooDeep {
        /// The page's number.
        page: u64,
    },
}

/// Reads a whole bolt file.
pub fn parse(file: &[u8]) -> Result<Database<'_>, BoltError> {
    let meta = choose_meta(file).ok_or(BoltError::NoMeta { size: file.len() })?;
    let page_size = meta.page_size as usize;
    let in_file = (file.len() / page_size) as u64;
    if meta.high_water > in_file || meta.high_water < 3 {
        return Err(BoltError::OutOfBounds {
            page: meta.high_water,
            limit: in_file,
        });
    }
    let mut walk = Walk {
        file,
        page_size,
        limit: meta.high_water,
        used: vec![false; meta.high_water as usize],
    };
    walk.mark(0, 1)?;
    let freelist = match meta.freelist {
        format::NO_FREELIST => FreelistMode::Unsynced,
        page => {
            walk.freelist(page)?;
            FreelistMode::Synced
        }
    };
    let mut root = Bucket::new(meta.sequence);
    walk.page(meta.root, Bounds::default(), 0, &mut root)?;
    Ok(Database {
        page_size,
        txid: meta.txid,
        freelist,
        root,
    })
}

/// The valid meta of the higher transaction. The second lies one page in, and only the
/// first says how long a page is: without it every page size is tried.
fn choose_meta(file: &[u8]) -> Option<Meta> {
    let read = |id: u64, page_size: usize| {
        let page = file.get(id as usize * page_size..)?;
        let header = PageHeader::parse(page)?;
        let meta = Meta::parse(page.get(format::PAGE_HEADER..)?)?;
        let size = meta.page_size as usize;
        let sound = header.id == id
            && header.flags == format::META_PAGE
            && size.is_power_of_two()
            && format::PAGE_SIZES.contains(&size)
            // A writer adds to it.
            && meta.txid < u64::MAX / 2
            && (id == 0 || size == page_size);
        sound.then_some(meta)
    };
    let first = read(0, 0);
    let second = match first {
        Some(meta) => read(1, meta.page_size as usize),
        None => (9..=16).find_map(|bits| read(1, 1 << bits)),
    };
    [first, second]
        .into_iter()
        .flatten()
        .max_by_key(|meta| meta.txid)
}

/// What the branch above promises of the keys below: not less than `min`, less than `max`.
#[derive(Clone, Copy, Default)]
struct Bounds<'a> {
    min: Option<&'a [u8]>,
    max: Option<&'a [u8]>,
}

struct Walk<'a> {
    file: &'a [u8],
    page_size: usize,
    limit: u64,
    used: Vec<bool>,
}

impl<'a> Walk<'a> {
    /// Marks a page and its overflow as used.
    fn mark(&mut self, page: u64, overflow: u32) -> Result<(), BoltError> {
        let out = BoltError::OutOfBounds {
            page: page.saturating_add(u64::from(overflow)),
            limit: self.limit,
        };
        let end = page.checked_add(u64::from(overflow)).ok_or(out.clone())?;
        if end >= self.limit {
            return Err(out);
        }
        for id in page..=end {
            if std::mem::replace(&mut self.used[id as usize], true) {
                return Err(BoltError::UsedTwice { page: id });
            }
        }
        Ok(())
    }

    /// The header and the bytes of a page with its overflow, marked as used.
    fn take(&mut self, page: u64) -> Result<(PageHeader, &'a [u8]), BoltError> {
        let out = BoltError::OutOfBounds {
            page,
            limit: self.limit,
        };
        if page >= self.limit {
            return Err(out);
        }
        let start = page as usize * self.page_size;
        let bytes = self.file.get(start..).ok_or(out.clone())?;
        let header = PageHeader::parse(bytes).ok_or(out.clone())?;
        if header.id != page {
            return Err(BoltError::WrongPage {
                page,
                found: header.id,
            });
        }
        self.mark(page, header.overflow)?;
        let length = (header.overflow as usize + 1) * self.page_size;
        Ok((header, bytes.get(..length).ok_or(out)?))
    }

    /// Marks the free pages as used: a free page that the tree reaches too would be
    /// overwritten by bolt's next transaction.
    fn freelist(&mut self, page: u64) -> Result<(), BoltError> {
        let (header, bytes) = self.take(page)?;
        if header.flags != format::FREELIST {
            return Err(BoltError::WrongKind {
                page,
                flags: header.flags,
            });
        }
        let bad = |element| BoltError::BadElement { page, element };
        // More than 65534 ids do not fit the count: the first entry is the count then.
        let (first, count) = match header.count {
            u16::MAX => (1, u64_at(bytes, format::PAGE_HEADER).ok_or(bad(0))?),
            count => (0, u64::from(count)),
        };
        let mut before = 1;
        for at in 0..count {
            let element = at as usize;
            let offset = (at.checked_add(first))
                .and_then(|index| index.checked_mul(8))
                .and_then(|offset| usize::try_from(offset).ok())
                .and_then(|offset| offset.checked_add(format::PAGE_HEADER));
            let id = offset.and_then(|offset| u64_at(bytes, offset));
            let id = id.ok_or(bad(element))?;
            if id <= before {
                return Err(BoltError::KeyOrder { page, element });
            }
            self.mark(id, 0)?;
            before = id;
        }
        Ok(())
    }

    /// Reads the tree under a page into a bucket.
    fn page(
        &mut self,
        page: u64,
        bounds: Bounds<'a>,
        depth: usize,
        into: &mut Bucket<'a>,
    ) -> Result<(), BoltError> {
        if depth > MAX_DEPTH {
            return Err(BoltError::TooDeep { page });
        }
        let (header, bytes) = self.take(page)?;
        match header.flags {
            format::LEAF => self.leaf(header, bytes, bounds, depth, into),
            format::BRANCH if header.count > 0 => self.branch(header, bytes, bounds, depth, into),
            flags => Err(BoltError::WrongKind { page, flags }),
        }
    }

    fn branch(
        &mut self,
        header: PageHeader,
        bytes: &'a [u8],
        bounds: Bounds<'a>,
        depth: usize,
        into: &mut Bucket<'a>,
    ) -> Result<(), BoltError> {
        let page = header.id;
        let mut cut = Cut::new(bytes, header.count);
        let mut children = Vec::with_capacity(usize::from(header.count));
        let mut min = bounds.min;
        for element in 0..usize::from(header.count) {
            let mut read = || {
                let at = cut.element(element)?;
                let child = u64_at(bytes, at + 8)?;
                let key = cut.data(at, u32_at(bytes, at)?, u32_at(bytes, at + 4)?)?;
                Some((key, child))
            };
            let (key, child) = read().ok_or(BoltError::BadElement { page, element })?;
            if !key_fits(key, min, bounds.max, element > 0) {
                return Err(BoltError::KeyOrder { page, element });
            }
            min = Some(key);
            children.push((key, child));
        }
        for (at, (key, child)) in children.iter().enumerate() {
            let max = children
                .get(at + 1)
                .map_or(bounds.max, |(key, _)| Some(key));
            let min = Some(*key);
            self.page(*child, Bounds { min, max }, depth + 1, into)?;
        }
        Ok(())
    }

    fn leaf(
        &mut self,
        header: PageHeader,
        bytes: &'a [u8],
        bounds: Bounds<'a>,
        depth: usize,
        into: &mut Bucket<'a>,
    ) -> Result<(), BoltError> {
        let page = header.id;
        let mut cut = Cut::new(bytes, header.count);
        let mut min = bounds.min;
        for element in 0..usize::from(header.count) {
            let mut read = || {
                let at = cut.element(element)?;
                let key = cut.data(at, u32_at(bytes, at + 4)?, u32_at(bytes, at + 8)?)?;
                let value = cut.follow(u32_at(bytes, at + 12)?)?;
                Some((u32_at(bytes, at)?, key, value))
            };
            let (flags, key, value) = read().ok_or(BoltError::BadElement { page, element })?;
            if !key_fits(key, min, bounds.max, element > 0) {
                return Err(BoltError::KeyOrder { page, element });
            }
            min = Some(key);
            let item = match flags {
                0 => Item::Value(value),
                format::BUCKET_ELEMENT => Item::Bucket(self.bucket(page, element, value, depth)?),
                _ => return Err(BoltError::BadElement { page, element }),
            };
            into.insert(key, item);
        }
        Ok(())
    }

    fn bucket(
        &mut self,
        page: u64,
        element: usize,
        value: &'a [u8],
        depth: usize,
    ) -> Result<Bucket<'a>, BoltError> {
        let bad = BoltError::BadElement { page, element };
        let root = u64_at(value, 0).ok_or(bad.clone())?;
        let mut bucket = Bucket::new(u64_at(value, 8).ok_or(bad.clone())?);
        if root != 0 {
            self.page(root, Bounds::default(), depth + 1, &mut bucket)?;
            return Ok(bucket);
        }
        if depth > MAX_DEPTH {
            return Err(BoltError::TooDeep { page });
        }
        // A small bucket is a leaf page inside the value, without a number of its own.
        let inline = value.get(format::BUCKET_HEADER..).ok_or(bad.clone())?;
        let header = PageHeader::parse(inline).ok_or(bad)?;
        if header.flags != format::LEAF || header.overflow != 0 || header.id != 0 {
            return Err(BoltError::WrongKind {
                page,
                flags: header.flags,
            });
        }
        self.leaf(header, inline, Bounds::default(), depth + 1, &mut bucket)?;
        Ok(bucket)
    }
}

/// Cuts keys and values out of a page, in the order in which bolt writes them. No two may
/// overlap: otherwise a small file could stand for a tree that no memory holds.
struct Cut<'a> {
    bytes: &'a [u8],
    free: usize,
}

impl<'a> Cut<'a> {
    fn new(bytes: &'a [u8], count: u16) -> Cut<'a> {
        let free = format::PAGE_HEADER + usize::from(count) * format::ELEMENT;
        Cut { bytes, free }
    }

    /// Where an element begins, if all elements lie on the page.
    fn element(&self, index: usize) -> Option<usize> {
        let at = format::PAGE_HEADER + index * format::ELEMENT;
        (self.free <= self.bytes.len()).then_some(at)
    }

    /// `size` bytes at `pos` bytes behind the element at `at`.
    fn data(&mut self, at: usize, pos: u32, size: u32) -> Option<&'a [u8]> {
        let start = at.checked_add(pos as usize)?;
        if start < self.free {
            return None;
        }
        self.free = start;
        self.follow(size)
    }

    /// The next `size` bytes.
    fn follow(&mut self, size: u32) -> Option<&'a [u8]> {
        let end = self.free.checked_add(size as usize)?;
        let data = self.bytes.get(self.free..end)?;
        self.free = end;
        Some(data)
    }
}

/// Whether a key has a legal length and lies between its neighbours: above the key before
/// it on the page (`after`), or not below what the branch promised, and below `max`.
fn key_fits(key: &[u8], min: Option<&[u8]>, max: Option<&[u8]>, after: bool) -> bool {
    let low = min.is_none_or(|min| if after { key > min } else { key >= min });
    (1..=format::MAX_KEY).contains(&key.len()) && low && max.is_none_or(|max| key < max)
}
