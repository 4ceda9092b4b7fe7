//! Which images are whole: each is walked from its index to its layers.
//!
//! Takes the metadata and the content store; reads files, writes none. An image is kept only
//! if every blob that a container of it needs on this platform is listed in its namespace and
//! lies on disk in the right size. Otherwise its record would do harm: kubelet sees the image
//! as present, does not pull it, and every container of it fails (measured with containerd
//! 1.7.24). The choice of the manifest follows containerd's own (`core/images/image.go`,
//! `Manifest`; `platforms/compare.go`).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::content::{ContentStore, FileState, bytes_match};
use super::metadata::{Descriptor, Image, Metadata, Namespace};

/// Largest index, manifest or image configuration that is read, in bytes.
const MAX_DOCUMENT: u64 = 16 << 20;
/// How many indexes may be nested.
const MAX_INDEXES: usize = 4;

/// How the images are judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checks {
    /// Images whose layers are read and hashed, by name: the pause image and others that the
    /// node cannot start without.
    pub pinned: Vec<String>,
    /// Whether the layers of every image are read and hashed.
    pub verify: bool,
    /// The platform that the node runs.
    pub platform: Platform,
}

/// A platform, in the words of image indexes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// `linux`.
    pub os: String,
    /// Go's name of the architecture: `amd64`, `arm64`.
    pub architecture: String,
}

impl Platform {
    /// The platform of this program.
    pub fn here() -> Platform {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Platform {
            os: "linux".to_owned(),
            architecture: architecture.to_owned(),
        }
    }

    /// How well a manifest of this platform serves: 0 best, `None` not at all. containerd
    /// falls back from amd64 to 386 and from arm64 to arm.
    fn rank(&self, other: &DocumentPlatform) -> Option<u8> {
        if other.os != self.os {
            return None;
        }
        let architecture = match other.architecture.as_str() {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let exact = architecture == self.architecture
            && match architecture {
                "amd64" => matches!(other.variant.as_str(), "" | "v1"),
                "arm64" => matches!(other.variant.as_str(), "" | "v8" | "8"),
                _ => true,
            };
        match (self.architecture.as_str(), architecture) {
            _ if exact => Some(0),
            ("amd64", "386") | ("arm64", "arm") => Some(1),
            _ => None,
        }
    }
}

/// What was found out about all images.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assessment {
    /// A verdict for every image record, by namespace and name.
    pub images: Vec<ImageVerdict>,
    /// Blob records that the disk does not bear out.
    pub bad_blobs: Vec<BadBlob>,
}

/// The verdict on one image record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageVerdict {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The digest it points to; absent if the record is incomplete.
    pub digest: Option<String>,
    /// Bytes of its manifests, configuration and layers for this platform, as far as known.
    pub bytes: u64,
    /// Whether the node cannot start without it.
    pub pinned: bool,
    /// Whether its layers were read and hashed.
    pub verified: bool,
    /// Whether it stays.
    pub fate: Fate,
}

/// What becomes of an image record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fate", rename_all = "kebab-case")]
pub enum Fate {
    /// It is whole and stays.
    Kept,
    /// It is not whole; its record goes, so that it is pulled again.
    Dropped {
        /// What is wrong with it.
        why: Unsound,
    },
}

/// A blob record that goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BadBlob {
    /// The record's namespace.
    pub namespace: String,
    /// The blob's digest.
    pub digest: String,
    /// What is wrong with it.
    pub why: Unsound,
}

/// What is wrong with an image or a blob.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum Unsound {
    /// Everything was cleared, whole or not.
    #[error("everything was cleared")]
    Cleared,
    /// A record lacks a field.
    #[error("its record is incomplete")]
    Incomplete,
    /// The namespace does not list a blob.
    #[error("{digest} is not listed in its namespace")]
    NotListed {
        /// The blob.
        digest: String,
    },
    /// A blob is not on disk.
    #[error("{digest} is not on disk")]
    Missing {
        /// The blob.
        digest: String,
    },
    /// A blob has another size.
    #[error("{digest} has {found} bytes instead of {expected}")]
    WrongSize {
        /// The blob.
        digest: String,
        /// Bytes that the record or the manifest says.
        expected: u64,
        /// Bytes on disk.
        found: u64,
    },
    /// A blob has another content.
    #[error("{digest} has another content")]
    WrongContent {
        /// The blob.
        digest: String,
    },
    /// A blob cannot be read.
    #[error("{digest} cannot be read: {detail}")]
    Unreadable {
        /// The blob.
        digest: String,
        /// What the kernel said.
        detail: String,
    },
    /// A document is not what its media type says.
    #[error("{digest} is no image document: {detail}")]
    NotADocument {
        /// The blob.
        digest: String,
        /// What the parser said.
        detail: String,
    },
    /// An index has nothing for this platform.
    #[error("{digest} has nothing for {platform}")]
    OtherPlatform {
        /// The index.
        digest: String,
        /// The platform looked for.
        platform: String,
    },
    /// Not an image that this program can judge.
    #[error("{digest} has the unknown media type {media_type}")]
    UnknownKind {
        /// The blob.
        digest: String,
        /// Its media type.
        media_type: String,
    },
}

/// Judges every image and every blob record.
pub fn assess(metadata: &Metadata, store: &ContentStore, checks: &Checks) -> Assessment {
    let mut desk = Desk {
        store,
        checks,
        files: BTreeMap::new(),
        contents: BTreeMap::new(),
    };
    let mut bad_blobs = Vec::new();
    for (namespace, records) in &metadata.namespaces {
        for (digest, blob) in &records.blobs {
            let why = match blob.size {
                Some(size) => desk.blob(digest, size).err(),
                None => Some(Unsound::Incomplete),
            };
            bad_blobs.extend(why.map(|why| BadBlob {
                namespace: namespace.clone(),
                digest: digest.clone(),
                why,
            }));
        }
    }
    // The hashed images come first: an image that is only measured may share a layer with
    // one of them, and must not be kept on a layer that is known to be rotten.
    let mut verdicts = BTreeMap::new();
    for hashing in [true, false] {
        for (name, records) in &metadata.namespaces {
            let special = special_targets(records, checks);
            for (image_name, image) in &records.images {
                let digest = image.target.as_ref().map(|target| target.digest.clone());
                let pinned = digest.as_ref().is_some_and(|d| special.pinned.contains(d));
                let hashed = checks.verify
                    || pinned
                    || (digest.as_ref()).is_some_and(|d| special.unpullable.contains(d));
                if hashed != hashing {
                    continue;
                }
                let (bytes, fate) = desk.judge(records, image, hashed);
                let verdict = ImageVerdict {
                    namespace: name.clone(),
                    name: image_name.clone(),
                    digest,
                    bytes,
                    pinned,
                    verified: hashed,
                    fate,
                };
                verdicts.insert((name, image_name), verdict);
            }
        }
    }
    // Bytes that turned out rotten spoil their record in every namespace that lists them.
    for (digest, why) in desk
        .contents
        .iter()
        .filter_map(|(d, c)| Some((d, c.as_ref()?)))
    {
        for (namespace, records) in &metadata.namespaces {
            let known = |bad: &BadBlob| bad.namespace == *namespace && bad.digest == *digest;
            if records.blobs.contains_key(digest) && !bad_blobs.iter().any(known) {
                bad_blobs.push(BadBlob {
                    namespace: namespace.clone(),
                    digest: digest.clone(),
                    why: why.clone(),
                });
            }
        }
    }
    Assessment {
        images: verdicts.into_values().collect(),
        bad_blobs,
    }
}

/// Bytes of the images of one fate, a blob shared by names of the same digest counted once.
pub fn image_bytes(images: &[ImageVerdict], kept: bool) -> u64 {
    let of_fate = images
        .iter()
        .filter(|image| (image.fate == Fate::Kept) == kept);
    let by_digest: BTreeMap<&Option<String>, u64> =
        of_fate.map(|image| (&image.digest, image.bytes)).collect();
    by_digest.values().sum()
}

/// The targets in a namespace that deserve hashing.
struct Special {
    pinned: BTreeSet<String>,
    /// Targets that were not pulled from a registry, and so may not be had again.
    unpullable: BTreeSet<String>,
}

fn special_targets(namespace: &Namespace, checks: &Checks) -> Special {
    let mut special = Special {
        pinned: BTreeSet::new(),
        unpullable: BTreeSet::new(),
    };
    for (name, image) in &namespace.images {
        let Some(target) = &image.target else {
            continue;
        };
        // The label is CRI's (`internal/cri/labels`); a name may be given as people write it.
        let label = image.labels.get("io.cri-containerd.pinned");
        let named = |given: &String| {
            name == given
                || name.strip_prefix("docker.io/") == Some(given)
                || name.strip_prefix("docker.io/library/") == Some(given)
        };
        if label.is_some_and(|label| label == "pinned") || checks.pinned.iter().any(named) {
            special.pinned.insert(target.digest.clone());
        }
        // containerd notes on each pulled blob the registry that it came from.
        let labels = namespace.blobs.get(&target.digest).map(|blob| &blob.labels);
        let pulled = labels.is_some_and(|labels| {
            let mut keys = labels.keys();
            keys.any(|key| key.starts_with("containerd.io/distribution.source."))
        });
        if !pulled {
            special.unpullable.insert(target.digest.clone());
        }
    }
    special
}

/// One pass over all images; what was learned of a file is kept.
struct Desk<'a> {
    store: &'a ContentStore,
    checks: &'a Checks,
    files: BTreeMap<String, FileState>,
    /// Digests whose bytes were hashed, with what was wrong.
    contents: BTreeMap<String, Option<Unsound>>,
}

/// The walk over one image.
struct Walk<'a> {
    namespace: &'a Namespace,
    hashed: bool,
    bytes: BTreeMap<String, u64>,
    /// The first thing found wrong; the walk goes on, to know the size.
    wrong: Option<Unsound>,
}

impl Walk<'_> {
    fn note(&mut self, found: Result<(), Unsound>) {
        if let Err(why) = found {
            self.wrong.get_or_insert(why);
        }
    }
}

impl Desk<'_> {
    fn judge(&mut self, namespace: &Namespace, image: &Image, hashed: bool) -> (u64, Fate) {
        let mut walk = Walk {
            namespace,
            hashed,
            bytes: BTreeMap::new(),
            wrong: None,
        };
        match &image.target {
            Some(target) => {
                let found = self.document(&mut walk, target, 0);
                walk.note(found);
            }
            None => walk.wrong = Some(Unsound::Incomplete),
        }
        let fate = match walk.wrong {
            None => Fate::Kept,
            Some(why) => Fate::Dropped { why },
        };
        (walk.bytes.values().sum(), fate)
    }

    /// An index or a manifest, with all that hangs on it.
    fn document(
        &mut self,
        walk: &mut Walk<'_>,
        target: &Descriptor,
        depth: usize,
    ) -> Result<(), Unsound> {
        let digest = target.digest.clone();
        let kind = target.media_type.as_str();
        let raw = self.json(walk, target)?;
        let not_a_document = |err: serde_json::Error| Unsound::NotADocument {
            digest: target.digest.clone(),
            detail: err.to_string(),
        };
        match kind {
            "application/vnd.oci.image.index.v1+json"
            | "application/vnd.docker.distribution.manifest.list.v2+json"
                if depth < MAX_INDEXES =>
            {
                let index: Index = serde_json::from_slice(&raw).map_err(not_a_document)?;
                let best = self.best(index.manifests);
                let best = best.ok_or_else(|| Unsound::OtherPlatform {
                    digest,
                    platform: format!(
                        "{}/{}",
                        self.checks.platform.os, self.checks.platform.architecture
                    ),
                })?;
                self.document(walk, &best.descriptor(), depth + 1)
            }
            "application/vnd.oci.image.manifest.v1+json"
            | "application/vnd.docker.distribution.manifest.v2+json" => {
                let manifest: Manifest = serde_json::from_slice(&raw).map_err(not_a_document)?;
                let config = self.json(walk, &manifest.config.descriptor());
                let config = config.and_then(|raw| {
                    serde_json::from_slice::<serde::de::IgnoredAny>(&raw)
                        .map(drop)
                        .map_err(|err| Unsound::NotADocument {
                            digest: manifest.config.digest.clone(),
                            detail: err.to_string(),
                        })
                });
                walk.note(config);
                for layer in manifest.layers {
                    let found = self.layer(walk, &layer.descriptor());
                    walk.note(found);
                }
                Ok(())
            }
            _ => Err(Unsound::UnknownKind {
                digest,
                media_type: kind.to_owned(),
            }),
        }
    }

    /// The manifest that containerd would take: the best match, the first among equals. One
    /// that names no platform matches any, but comes last.
    fn best(&self, manifests: Vec<DocumentDescriptor>) -> Option<DocumentDescriptor> {
        let rank = |entry: &DocumentDescriptor| match &entry.platform {
            Some(platform) => self.checks.platform.rank(platform),
            None => Some(u8::MAX),
        };
        let ranked = manifests
            .into_iter()
            .filter_map(|entry| Some((rank(&entry)?, entry)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, entry)| entry)
    }

    /// A blob that is small and always hashed.
    fn json(&mut self, walk: &mut Walk<'_>, target: &Descriptor) -> Result<Vec<u8>, Unsound> {
        self.listed(walk, target)?;
        let digest = || target.digest.clone();
        let raw = self.store.read(&target.digest, MAX_DOCUMENT);
        let raw = raw.map_err(|err| Unsound::Unreadable {
            digest: digest(),
            detail: err.to_string(),
        })?;
        if !bytes_match(&target.digest, &raw) {
            let why = Unsound::WrongContent { digest: digest() };
            self.contents.insert(digest(), Some(why.clone()));
            return Err(why);
        }
        Ok(raw)
    }

    fn layer(&mut self, walk: &mut Walk<'_>, target: &Descriptor) -> Result<(), Unsound> {
        self.listed(walk, target)?;
        if !self.contents.contains_key(&target.digest) {
            if !walk.hashed {
                return Ok(());
            }
            let digest = target.digest.clone();
            let why = match self.store.verify(&target.digest) {
                Ok(true) => None,
                Ok(false) => Some(Unsound::WrongContent { digest }),
                Err(err) => Some(Unsound::Unreadable {
                    digest,
                    detail: err.to_string(),
                }),
            };
            self.contents.insert(target.digest.clone(), why);
        }
        match self.contents.get(&target.digest) {
            Some(Some(why)) => Err(why.clone()),
            _ => Ok(()),
        }
    }

    /// A blob that the namespace lists and the disk has, in the size that both say.
    fn listed(&mut self, walk: &mut Walk<'_>, target: &Descriptor) -> Result<(), Unsound> {
        walk.bytes.insert(target.digest.clone(), target.size);
        let digest = || target.digest.clone();
        let record = walk.namespace.blobs.get(&target.digest);
        let record = record.ok_or_else(|| Unsound::NotListed { digest: digest() })?;
        self.blob(&target.digest, target.size)?;
        match record.size {
            Some(size) if size == target.size => Ok(()),
            Some(size) => Err(Unsound::WrongSize {
                digest: digest(),
                expected: size,
                found: target.size,
            }),
            None => Err(Unsound::Incomplete),
        }
    }

    fn blob(&mut self, digest: &str, expected: u64) -> Result<(), Unsound> {
        let file = self
            .files
            .entry(digest.to_owned())
            .or_insert_with(|| self.store.file(digest));
        let digest = digest.to_owned();
        match file {
            FileState::Present(found) if *found == expected => Ok(()),
            FileState::Present(found) => Err(Unsound::WrongSize {
                digest,
                expected,
                found: *found,
            }),
            FileState::Missing => Err(Unsound::Missing { digest }),
            FileState::Unreadable(detail) => Err(Unsound::Unreadable {
                digest,
                detail: detail.clone(),
            }),
        }
    }
}

// Documents of registries: unknown fields are theirs to add.

#[derive(Deserialize)]
struct Index {
    manifests: Vec<DocumentDescriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    config: DocumentDescriptor,
    layers: Vec<DocumentDescriptor>,
}

#[derive(Deserialize)]
struct DocumentDescriptor {
    #[serde(rename = "mediaType")]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<DocumentPlatform>,
}

#[derive(Deserialize)]
struct DocumentPlatform {
    os: String,
    architecture: String,
    #[serde(default)]
    variant: String,
}

impl DocumentDescriptor {
    fn descriptor(&self) -> Descriptor {
        Descriptor {
            media_type: self.media_type.clone(),
            digest: self.digest.clone(),
            size: self.size,
        }
    }
}
