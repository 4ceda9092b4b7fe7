//! A database as the bytes of a bolt file: the tree written anew, without free pages.
//!
//! Pure. Children come before their parents, so that every page is written once and in
//! order; both metas point at the finished tree. What bolt would write itself is kept to:
//! buckets of up to a quarter page lie inline, branches have two children or more, the
//! freelist is stored only if it was.

use repave_survey::bolt::format::{self, Meta, PageHeader};
use repave_survey::bolt::{Bucket, Database, FreelistMode, Item, MAX_FILE};
use thiserror::Error;

/// Why a database has no encoding.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// The file would be larger than what is read back.
    #[error("write a database of more than {MAX_FILE} bytes")]
    TooLarge,
}

/// The bytes of a bolt file with this content, two transactions later.
pub fn encode(database: &Database<'_>) -> Result<Vec<u8>, EncodeError> {
    let page_size = database.page_size;
    let mut pages = Pages {
        page_size,
        // The metas are filled in last; the freelist, when there is one, comes next.
        bytes: vec![0; 2 * page_size],
    };
    let freelist = match database.freelist {
        FreelistMode::Unsynced => format::NO_FREELIST,
        FreelistMode::Synced => pages.add(format::FREELIST, &[])?,
    };
    let root = pages.bucket_pages(&database.root)?;
    let high_water = pages.next();
    for txid in [database.txid + 1, database.txid + 2] {
        // Bolt writes transaction n to page n % 2.
        let id = txid % 2;
        let header = PageHeader {
            id,
            flags: format::META_PAGE,
            count: 0,
            overflow: 0,
        };
        let meta = Meta {
            page_size: page_size as u32,
            root,
            sequence: database.root.sequence,
            freelist,
            high_water,
            txid,
        };
        let at = id as usize * page_size;
        let body = at + format::PAGE_HEADER;
        pages.bytes[at..body].copy_from_slice(&header.encode());
        pages.bytes[body..body + format::META].copy_from_slice(&meta.encode());
    }
    Ok(pages.bytes)
}

/// What an element says besides key and value.
#[derive(Clone, Copy)]
enum Kind {
    Value,
    Bucket,
    /// A branch's element: the page it leads to.
    Child(u64),
}

/// A key and what belongs to it, ready to be put on a page.
struct Element<'a> {
    key: &'a [u8],
    kind: Kind,
    value: Value<'a>,
}

enum Value<'a> {
    Borrowed(&'a [u8]),
    Owned(Vec<u8>),
}

impl Element<'_> {
    fn value(&self) -> &[u8] {
        match &self.value {
            Value::Borrowed(bytes) => bytes,
            Value::Owned(bytes) => bytes,
        }
    }

    fn size(&self) -> usize {
        format::ELEMENT + self.key.len() + self.value().len()
    }
}

struct Pages {
    page_size: usize,
    bytes: Vec<u8>,
}

impl Pages {
    fn next(&self) -> u64 {
        (self.bytes.len() / self.page_size) as u64
    }

    /// Writes the tree of a bucket and gives the number of its root page.
    fn bucket_pages(&mut self, bucket: &Bucket<'_>) -> Result<u64, EncodeError> {
        let mut elements = Vec::with_capacity(bucket.entries().len());
        for (key, item) in bucket.entries() {
            let (kind, value) = match item {
                Item::Value(value) => (Kind::Value, Value::Borrowed(value)),
                Item::Bucket(inner) => (Kind::Bucket, Value::Owned(self.bucket_value(inner)?)),
            };
            elements.push(Element { key, kind, value });
        }
        let mut level = self.level(format::LEAF, &elements)?;
        while level.len() > 1 {
            let children: Vec<Element<'_>> = level
                .iter()
                .map(|(key, page)| Element {
                    key,
                    kind: Kind::Child(*page),
                    value: Value::Borrowed(&[]),
                })
                .collect();
            level = self.level(format::BRANCH, &children)?;
        }
        Ok(level.first().map_or(0, |(_, page)| *page))
    }

    /// The value of a nested bucket: its header, and its only page if that is small.
    fn bucket_value(&mut self, bucket: &Bucket<'_>) -> Result<Vec<u8>, EncodeError> {
        let values = bucket.entries().iter().map(|(key, item)| match item {
            Item::Value(value) => Some(format::ELEMENT + key.len() + value.len()),
            Item::Bucket(_) => None,
        });
        let inline = values
            .sum::<Option<usize>>()
            .is_some_and(|size| format::PAGE_HEADER + size <= self.page_size / 4);
        let root = if inline {
            0
        } else {
            self.bucket_pages(bucket)?
        };
        let mut out = Vec::new();
        out.extend(root.to_le_bytes());
        out.extend(bucket.sequence.to_le_bytes());
        if inline {
            let elements: Vec<Element<'_>> = bucket
                .entries()
                .iter()
                .filter_map(|(key, item)| match item {
                    Item::Value(value) => Some(Element {
                        key,
                        kind: Kind::Value,
                        value: Value::Borrowed(value),
                    }),
                    Item::Bucket(_) => None,
                })
                .collect();
            write_page(&mut out, 0, format::LEAF, 0, &elements);
        }
        Ok(out)
    }

    /// Puts elements on pages, each as full as it gets; gives each page's first key and number.
    fn level<'a>(
        &mut self,
        flags: u16,
        elements: &[Element<'a>],
    ) -> Result<Vec<(&'a [u8], u64)>, EncodeError> {
        let least = if flags == format::BRANCH { 2 } else { 1 };
        let mut out = Vec::new();
        let mut start = 0;
        loop {
            let mut size = format::PAGE_HEADER;
            let mut end = start;
            while let Some(element) = elements.get(end) {
                // A lone last child would make a branch with one: it goes on this page too.
                let lone = elements.len() - end < least;
                let full = size + element.size() > self.page_size && end - start >= least;
                if full && !lone {
                    break;
                }
                size += element.size();
                end += 1;
            }
            let page = self.add(flags, &elements[start..end])?;
            let key = elements.get(start).map_or(&[][..], |element| element.key);
            out.push((key, page));
            start = end;
            if start >= elements.len() {
                return Ok(out);
            }
        }
    }

    /// Appends a page with its overflow and gives its number.
    fn add(&mut self, flags: u16, elements: &[Element<'_>]) -> Result<u64, EncodeError> {
        let id = self.next();
        let size = format::PAGE_HEADER + elements.iter().map(Element::size).sum::<usize>();
        let pages = size.div_ceil(self.page_size);
        let end = self.bytes.len() + pages * self.page_size;
        if end as u64 > MAX_FILE {
            return Err(EncodeError::TooLarge);
        }
        write_page(&mut self.bytes, id, flags, pages as u32 - 1, elements);
        self.bytes.resize(end, 0);
        Ok(id)
    }
}

/// Appends a page without padding: header, elements, then keys and values in their order.
fn write_page(out: &mut Vec<u8>, id: u64, flags: u16, overflow: u32, elements: &[Element<'_>]) {
    let header = PageHeader {
        id,
        flags,
        // A page is filled to its size and no element is shorter than 17 bytes, so that
        // the count of a page of 64 KiB stays below 4000.
        count: elements.len() as u16,
        overflow,
    };
    out.extend(header.encode());
    let mut data = elements.len() * format::ELEMENT;
    for (index, element) in elements.iter().enumerate() {
        // Bolt's offsets count from the element, not from the page.
        let pos = (data - index * format::ELEMENT) as u32;
        let key_size = element.key.len() as u32;
        match element.kind {
            Kind::Child(page) => {
                out.extend(pos.to_le_bytes());
                out.extend(key_size.to_le_bytes());
                out.extend(page.to_le_bytes());
            }
            Kind::Value | Kind::Bucket => {
                let flags = match element.kind {
                    Kind::Bucket => format::BUCKET_ELEMENT,
                    _ => 0,
                };
                out.extend(flags.to_le_bytes());
                out.extend(pos.to_le_bytes());
                out.extend(key_size.to_le_bytes());
                out.extend((element.value().len() as u32).to_le_bytes());
            }
        }
        data += element.size() - format::ELEMENT;
    }
    for element in elements {
        out.extend(element.key);
        out.extend(element.value());
    }
}
