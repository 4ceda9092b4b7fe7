//! containerd's metadata as values: namespaces with images, blobs, containers.
//!
//! Pure: takes the tree of meta.db. A record that is there but incomplete is kept as an
//! absent field, because the walk over the images has to say of each what is wrong.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::bolt::{Bucket, Database, Item};

/// The schema versions that are understood: 3 was seen in containerd 1.6.20 and 1.7.24,
/// 4 in 2.1.9.
pub const SCHEMA_VERSIONS: std::ops::RangeInclusive<u64> = 1..=4;

/// Why metadata cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MetadataError {
    /// Written by a containerd that came later, or not by containerd.
    #[error("understand containerd's schema {found}: only 1 to 4 are known")]
    UnknownVersion {
        /// The version found; "none" if there is none.
        found: String,
    },
    /// A name is not text.
    #[error("read a name in {bucket}: not UTF-8")]
    NotText {
        /// Where the name is.
        bucket: String,
    },
}

/// Everything of meta.db that repave looks at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The schema version; 0 for a database without any record.
    pub version: u64,
    /// The namespaces by name.
    pub namespaces: BTreeMap<String, Namespace>,
}

/// One containerd namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespace {
    /// Images by name.
    pub images: BTreeMap<String, Image>,
    /// Blobs by digest.
    pub blobs: BTreeMap<String, Blob>,
    /// Containers by id.
    pub containers: BTreeMap<String, Container>,
    /// Sandboxes by id.
    pub sandboxes: BTreeSet<String>,
    /// Number of snapshots per snapshotter.
    pub snapshots: BTreeMap<String, u64>,
    /// Leases by id.
    pub leases: BTreeSet<String>,
    /// Number of snapshots that leases hold, per snapshotter.
    pub leased: BTreeMap<String, u64>,
}

/// An image record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// What the name points to; absent if the record is incomplete.
    pub target: Option<Descriptor>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// A reference to a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// What kind of document it is.
    pub media_type: String,
    /// Algorithm, colon, hexadecimal digits.
    pub digest: String,
    /// Bytes.
    pub size: u64,
}

/// A blob record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blob {
    /// Bytes; absent if the record is incomplete.
    pub size: Option<u64>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// A container record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Container {
    /// The snapshotter that holds its root file system, if it has one.
    pub snapshotter: Option<String>,
    /// The image it was made from.
    pub image: Option<String>,
}

/// Reads the tree of a meta.db.
pub fn parse(database: &Database<'_>) -> Result<Metadata, MetadataError> {
    let Some(v1) = database.root.bucket(b"v1") else {
        // A database that containerd made and never wrote to.
        if database.root.is_empty() {
            return Ok(Metadata::default());
        }
        return Err(MetadataError::UnknownVersion {
            found: "none".to_owned(),
        });
    };
    let raw = v1.value(b"version");
    let version = raw.and_then(varint).and_then(|v| u64::try_from(v).ok());
    let Some(version) = version.filter(|version| SCHEMA_VERSIONS.contains(version)) else {
        return Err(MetadataError::UnknownVersion {
            found: match (raw, version) {
                (_, Some(version)) => version.to_string(),
                (Some(raw), None) => format!("{raw:02x?}"),
                (None, None) => "none".to_owned(),
            },
        });
    };
    let mut namespaces = BTreeMap::new();
    for (name, bucket) in v1.buckets() {
        let name = text("v1", name)?;
        let namespace = parse_namespace(&name, bucket)?;
        namespaces.insert(name, namespace);
    }
    Ok(Metadata {
        version,
        namespaces,
    })
}

fn parse_namespace(name: &str, bucket: &Bucket<'_>) -> Result<Namespace, MetadataError> {
    let place = |kind: &str| format!("v1/{name}/{kind}");
    let mut leases = BTreeSet::new();
    let mut leased = BTreeMap::new();
    for (id, lease) in records(bucket, &[b"leases"]) {
        leases.insert(text(&place("leases"), id)?);
        for (snapshotter, keys) in records(lease, &[b"snapshots"]) {
            let snapshotter = text(&place("leases"), snapshotter)?;
            *leased.entry(snapshotter).or_insert(0) += keys.entries().len() as u64;
        }
    }
    let mut snapshots = BTreeMap::new();
    for (snapshotter, keys) in records(bucket, &[b"snapshots"]) {
        let snapshotter = text(&place("snapshots"), snapshotter)?;
        snapshots.insert(snapshotter, keys.entries().len() as u64);
    }
    let mut namespace = Namespace {
        snapshots,
        leases,
        leased,
        ..Namespace::default()
    };
    for (key, record) in records(bucket, &[b"images"]) {
        let place = place("images");
        let image = Image {
            target: parse_target(&place, record)?,
            labels: parse_labels(&place, record)?,
        };
        namespace.images.insert(text(&place, key)?, image);
    }
    for (key, record) in records(bucket, &[b"content", b"blob"]) {
        let place = place("content/blob");
        let blob = Blob {
            size: record.value(b"size").and_then(size),
            labels: parse_labels(&place, record)?,
        };
        namespace.blobs.insert(text(&place, key)?, blob);
    }
    for (key, record) in records(bucket, &[b"containers"]) {
        let place = place("containers");
        let container = Container {
            snapshotter: field(&place, record, b"snapshotter")?,
            image: field(&place, record, b"image")?,
        };
        namespace.containers.insert(text(&place, key)?, container);
    }
    for (key, _) in records(bucket, &[b"sandboxes"]) {
        namespace.sandboxes.insert(text(&place("sandboxes"), key)?);
    }
    Ok(namespace)
}

fn records<'a, 'b>(
    bucket: &'b Bucket<'a>,
    path: &[&[u8]],
) -> impl Iterator<Item = (&'a [u8], &'b Bucket<'a>)> {
    bucket.path(path).into_iter().flat_map(Bucket::buckets)
}

fn parse_target(place: &str, image: &Bucket<'_>) -> Result<Option<Descriptor>, MetadataError> {
    let Some(target) = image.bucket(b"target") else {
        return Ok(None);
    };
    let media_type = field(place, target, b"mediatype")?;
    let digest = field(place, target, b"digest")?;
    let size = target.value(b"size").and_then(size);
    Ok(match (media_type, digest, size) {
        (Some(media_type), Some(digest), Some(size)) => Some(Descriptor {
            media_type,
            digest,
            size,
        }),
        _ => None,
    })
}

fn parse_labels(
    place: &str,
    record: &Bucket<'_>,
) -> Result<BTreeMap<String, String>, MetadataError> {
    let mut labels = BTreeMap::new();
    let entries = record.bucket(b"labels").map_or(&[][..], Bucket::entries);
    for (key, item) in entries {
        if let Item::Value(value) = item {
            labels.insert(text(place, key)?, text(place, value)?);
        }
    }
    Ok(labels)
}

fn field(place: &str, bucket: &Bucket<'_>, key: &[u8]) -> Result<Option<String>, MetadataError> {
    let value = bucket.value(key).filter(|value| !value.is_empty());
    value.map(|value| text(place, value)).transpose()
}

fn text(place: &str, bytes: &[u8]) -> Result<String, MetadataError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| MetadataError::NotText {
        bucket: place.to_owned(),
    })
}

fn size(bytes: &[u8]) -> Option<u64> {
    varint(bytes).and_then(|size| u64::try_from(size).ok())
}

/// A number as Go's `binary.PutVarint` writes it: seven bits a byte, low first, the sign in
/// the lowest bit.
fn varint(bytes: &[u8]) -> Option<i64> {
    let mut raw = 0u64;
    for (at, byte) in bytes.iter().enumerate() {
        let bits = u64::from(byte & 0x7f);
        let shift = 7 * at as u32;
        if shift > 63 || (bits << shift) >> shift != bits {
            return None;
        }
        raw |= bits << shift;
        if byte & 0x80 == 0 {
            let half = (raw >> 1) as i64;
            return Some(if raw & 1 == 0 { half } else { !half });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bolt::FreelistMode;

    #[test]
    fn varints_are_go_s() {
        let cases: [(&[u8], Option<i64>); 9] = [
            (&[0x06], Some(3)),
            (&[0x08], Some(4)),
            (&[0x01], Some(-1)),
            (&[0x80, 0x02], Some(128)),
            (&[0x80, 0x50], Some(5120)),
            (&[], None),
            (&[0x80], None),
            (&[0xff; 10], None),
            (
                &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
                Some(i64::MAX),
            ),
        ];
        for (bytes, value) in cases {
            assert_eq!(varint(bytes), value, "{bytes:02x?}");
        }
    }

    fn database(version: Option<&'static [u8]>) -> Database<'static> {
        let mut v1 = Bucket::default();
        if let Some(version) = version {
            v1.insert(b"version", Item::Value(version));
        }
        let mut root = Bucket::default();
        root.insert(b"v1", Item::Bucket(v1));
        Database {
            page_size: 4096,
            txid: 2,
            freelist: FreelistMode::Synced,
            root,
        }
    }

    #[test]
    fn only_the_known_schemas_are_understood() {
        for raw in [&[2u8][..], &[4], &[6], &[8]] {
            let version = u64::from(raw[0] / 2);
            let raw: &'static [u8] = Box::leak(raw.into());
            assert_eq!(parse(&database(Some(raw))).unwrap().version, version);
        }
        let unknown = |found: &str| {
            Err(MetadataError::UnknownVersion {
                found: found.to_owned(),
            })
        };
        assert_eq!(parse(&database(Some(&[10]))), unknown("5"));
        assert_eq!(parse(&database(Some(&[0]))), unknown("0"));
        assert_eq!(parse(&database(Some(&[1]))), unknown("[01]"));
        assert_eq!(parse(&database(None)), unknown("none"));
        let mut other = database(None);
        other.root.remove(b"v1");
        assert_eq!(parse(&other), Ok(Metadata::default()));
        other.root.insert(b"v2", Item::Bucket(Bucket::default()));
        assert_eq!(parse(&other), unknown("none"));
    }
}
