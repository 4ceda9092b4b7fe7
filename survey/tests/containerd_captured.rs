//! The reader against databases of real containerds, and against what `ctr` listed from them.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use repave_survey::bolt::{self, FreelistMode};
use repave_survey::containerd::{
    self, Checks, ContentStore, Fate, ImageVerdict, InspectError, Metadata, MetadataError,
    Platform, Preview, Unsound, assess, image_bytes, inspect,
};

const VERSIONS: [&str; 3] = ["1.6.20", "1.7.24", "2.1.9"];
const BUSYBOX_LAYER: &str = "09f26680265f028d192b9fbd5ad78f9c0cb0afb085e518371c9b6ee63f53360a";
const BIG_LAYER: &str = "8e109c489d3cd4e7ff85b7deed9d5863d2be192aba275d64d661d7075a625a36";
const PAUSE_INDEX: &str = "f8538d124ec2cf53cdb3b6b23be3190e6edeaf4b3d7bcd31c32371fa4403cc62";
const PAUSE_MANIFEST: &str = "dcd40f134a7ab3bf48ed5c1f2e805a016d0b552f4ce30eb3cf1f0ba9376c3cd4";
const PAUSE_CONFIG: &str = "23572a202d33f5d28d34fc6eb8ce4df922d5e341be413ecc337ec171cd91385a";
const PAUSE_LAYER: &str = "ec43e6431bf558c6d65789d59e4ab4a5389efe730b274794938e4953d1db773d";

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/containerd")
        .join(path)
}

fn unpacked(path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(File::open(fixture(path)).unwrap())
        .read_to_end(&mut bytes)
        .unwrap();
    bytes
}

/// A containerd root with a captured database and its blobs; the busybox layer is a file of the
/// right size with nothing in it, and the layer of 600 MB is missing.
fn root(version: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let database = containerd::database_path(dir.path());
    fs::create_dir_all(database.parent().unwrap()).unwrap();
    fs::write(database, unpacked(&format!("{version}/meta.db.gz"))).unwrap();
    let blobs = dir.path().join(containerd::CONTENT).join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    for entry in fs::read_dir(fixture("blobs")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), blobs.join(entry.file_name())).unwrap();
    }
    let layer = File::create(blobs.join(BUSYBOX_LAYER)).unwrap();
    layer.set_len(1_986_560).unwrap();
    dir
}

fn checks() -> Checks {
    Checks {
        pinned: Vec::new(),
        verify: false,
        platform: Platform {
            os: "linux".to_owned(),
            architecture: "amd64".to_owned(),
        },
    }
}

fn blob(root: &Path, hex: &str) -> PathBuf {
    root.join(containerd::CONTENT)
        .join("blobs/sha256")
        .join(hex)
}

#[test]
fn the_reader_lists_what_ctr_lists() {
    for version in VERSIONS {
        let bytes = unpacked(&format!("{version}/meta.db.gz"));
        let database = bolt::parse(&bytes).unwrap();
        let metadata = containerd::parse(&database).unwrap();
        let mut found = BTreeSet::new();
        for (name, records) in &metadata.namespaces {
            for (image, record) in &records.images {
                let digest = &record.target.as_ref().unwrap().digest;
                found.insert(format!("{name} image {image} {digest}"));
            }
            found.extend(
                records
                    .blobs
                    .keys()
                    .map(|blob| format!("{name} blob {blob}")),
            );
            found.extend(
                records
                    .containers
                    .keys()
                    .map(|id| format!("{name} container {id}")),
            );
            for snapshotter in ["native", "overlayfs"] {
                let count = records.snapshots.get(snapshotter).unwrap_or(&0);
                found.insert(format!("{name} snapshots {snapshotter} {count}"));
            }
        }
        let listing = fs::read_to_string(fixture(&format!("{version}/listing.txt"))).unwrap();
        let listing: BTreeSet<String> = listing.lines().map(str::to_owned).collect();
        assert_eq!(found, listing, "{version}");
        assert!(listing.len() > 25, "{version}");
    }
}

#[test]
fn schema_freelist_and_leases_are_those_of_the_versions() {
    let mut seen = BTreeMap::new();
    for version in VERSIONS {
        let bytes = unpacked(&format!("{version}/meta.db.gz"));
        let database = bolt::parse(&bytes).unwrap();
        let metadata = containerd::parse(&database).unwrap();
        let leased = metadata.namespaces["k8s.io"].leased["overlayfs"];
        seen.insert(version, (metadata.version, database.freelist, leased));
        let bytes = unpacked(&format!("{version}/metadata.db.gz"));
        let snapshotter = bolt::parse(&bytes).unwrap();
        assert_eq!(snapshotter.freelist, FreelistMode::Synced, "{version}");
        assert!(snapshotter.root.path(&[b"v1", b"snapshots"]).is_some());
    }
    let expected = BTreeMap::from([
        ("1.6.20", (3, FreelistMode::Synced, 2)),
        ("1.7.24", (3, FreelistMode::Unsynced, 2)),
        ("2.1.9", (4, FreelistMode::Unsynced, 2)),
    ]);
    assert_eq!(seen, expected);
}

fn preview(root: &Path, checks: &Checks) -> Preview {
    inspect(root, "overlayfs", checks).unwrap()
}

fn verdict<'a>(preview: &'a Preview, namespace: &str, name: &str) -> &'a ImageVerdict {
    let mut images = preview.assessment.images.iter();
    images
        .find(|image| image.namespace == namespace && image.name == name)
        .unwrap()
}

#[test]
fn whole_images_are_kept_and_measured() {
    for version in VERSIONS {
        let dir = root(version);
        // Imported images are hashed, as nobody may be there to pull them from.
        let preview = preview(dir.path(), &checks());
        let pause = verdict(&preview, "k8s.io", "registry.example/pause:3");
        assert_eq!(pause.fate, Fate::Kept, "{version}");
        assert!(pause.verified && !pause.pinned);
        assert_eq!(pause.bytes, 304 + 572 + 293 + 10240 + 10240, "{version}");
        let app = verdict(&preview, "k8s.io", "registry.example/app:1");
        let why = Unsound::WrongContent {
            digest: format!("sha256:{BUSYBOX_LAYER}"),
        };
        assert_eq!(
            app.fate,
            Fate::Dropped { why },
            "the file of zeroes is found out"
        );
        let losses: Vec<(&str, u64, usize)> = preview
            .losses
            .iter()
            .map(|l| (l.namespace.as_str(), l.snapshots, l.containers.len()))
            .collect();
        assert_eq!(
            losses[0],
            ("default", 3, 1),
            "{version}: the native container stays"
        );
        assert_eq!(losses[1].2, 2, "{version}");
    }
}

/// The captured metadata without the image whose import was cut off.
fn metadata(version: &str) -> Metadata {
    let bytes = unpacked(&format!("{version}/meta.db.gz"));
    let mut metadata = containerd::parse(&bolt::parse(&bytes).unwrap()).unwrap();
    let namespace = metadata.namespaces.get_mut("k8s.io").unwrap();
    namespace.images.remove("registry.example/big:1").unwrap();
    namespace
        .blobs
        .remove(&format!("sha256:{BIG_LAYER}"))
        .unwrap();
    metadata
}

/// The captured metadata as if every blob had been pulled.
fn pulled(version: &str) -> Metadata {
    let mut metadata = metadata(version);
    for namespace in metadata.namespaces.values_mut() {
        for blob in namespace.blobs.values_mut() {
            let label = "containerd.io/distribution.source.registry.example";
            blob.labels.insert(label.to_owned(), "app".to_owned());
        }
    }
    metadata
}

const PAUSE: &str = "registry.example/pause:3";
const APP: &str = "registry.example/app:1";

#[test]
fn a_damaged_blob_costs_the_image_that_needs_it_and_no_other() {
    let digest = |hex: &str| format!("sha256:{hex}");
    let missing = |hex: &str| Unsound::Missing {
        digest: digest(hex),
    };
    type Damage = fn(&Path);
    let cases: [(&str, Damage, Unsound); 7] = [
        (
            PAUSE_LAYER,
            |path| fs::remove_file(path).unwrap(),
            missing(PAUSE_LAYER),
        ),
        (
            PAUSE_CONFIG,
            |path| fs::remove_file(path).unwrap(),
            missing(PAUSE_CONFIG),
        ),
        (
            PAUSE_MANIFEST,
            |path| fs::remove_file(path).unwrap(),
            missing(PAUSE_MANIFEST),
        ),
        (
            PAUSE_INDEX,
            |path| fs::remove_file(path).unwrap(),
            missing(PAUSE_INDEX),
        ),
        (
            PAUSE_LAYER,
            |path| fs::write(path, [0; 10239]).unwrap(),
            Unsound::WrongSize {
                digest: digest(PAUSE_LAYER),
                expected: 10240,
                found: 10239,
            },
        ),
        (
            PAUSE_CONFIG,
            |path| fs::write(path, [b'{'; 293]).unwrap(),
            Unsound::WrongContent {
                digest: digest(PAUSE_CONFIG),
            },
        ),
        (
            PAUSE_LAYER,
            |path| {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            },
            Unsound::Unreadable {
                digest: digest(PAUSE_LAYER),
                detail: "not a regular file".to_owned(),
            },
        ),
    ];
    for (hex, damage, why) in cases {
        let dir = root("1.7.24");
        let path = blob(dir.path(), hex);
        let mut permissions = fs::metadata(&path).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o644);
        fs::set_permissions(&path, permissions).unwrap();
        damage(&path);
        let found = assess(&pulled("1.7.24"), &ContentStore::of(dir.path()), &checks());
        let fates: BTreeMap<(&str, &str), &Fate> = found
            .images
            .iter()
            .map(|i| ((i.namespace.as_str(), i.name.as_str()), &i.fate))
            .collect();
        let dropped = Fate::Dropped { why: why.clone() };
        let expected = BTreeMap::from([
            (("default", APP), &Fate::Kept),
            (("k8s.io", APP), &Fate::Kept),
            (("k8s.io", PAUSE), &dropped),
        ]);
        assert_eq!(fates, expected);
        let bad: Vec<(&str, &str, &Unsound)> = found
            .bad_blobs
            .iter()
            .map(|b| (b.namespace.as_str(), b.digest.as_str(), &b.why))
            .collect();
        assert_eq!(bad, [("k8s.io", digest(hex).as_str(), &why)]);
    }
}

#[test]
fn hashing_is_for_the_pinned_the_unpullable_and_on_demand() {
    let dir = root("1.7.24");
    let store = ContentStore::of(dir.path());
    let rotten = Fate::Dropped {
        why: Unsound::WrongContent {
            digest: format!("sha256:{BUSYBOX_LAYER}"),
        },
    };
    let fate = |metadata: &Metadata, checks: &Checks| {
        let found = assess(metadata, &store, checks);
        let app = |i: &&ImageVerdict| i.namespace == "k8s.io" && i.name == APP;
        let app = found.images.iter().find(app).unwrap().clone();
        (app.fate, app.verified, app.pinned, found.bad_blobs.len())
    };
    let with = |pinned: &[&str], verify| Checks {
        pinned: pinned.iter().map(|name| (*name).to_owned()).collect(),
        verify,
        ..checks()
    };
    let pulled = pulled("1.7.24");
    assert_eq!(
        fate(&pulled, &with(&[], false)),
        (Fate::Kept, false, false, 0)
    );
    // The rotten layer spoils the record in both namespaces that list it.
    assert_eq!(
        fate(&pulled, &with(&[APP], false)),
        (rotten.clone(), true, true, 2)
    );
    assert_eq!(
        fate(&pulled, &with(&[], true)),
        (rotten.clone(), true, false, 2)
    );
    assert_eq!(
        fate(&metadata("1.7.24"), &checks()),
        (rotten.clone(), true, false, 2)
    );
    let mut labelled = pulled.clone();
    let namespace = labelled.namespaces.get_mut("default").unwrap();
    let label = ("io.cri-containerd.pinned".to_owned(), "pinned".to_owned());
    namespace
        .images
        .get_mut(APP)
        .unwrap()
        .labels
        .extend([label]);
    // A pinned image of another namespace proved the shared layer rotten.
    assert_eq!(fate(&labelled, &checks()), (rotten, false, false, 2));
}

#[test]
fn an_image_for_another_platform_is_not_whole_here() {
    let dir = root("2.1.9");
    let arm = Checks {
        platform: Platform {
            os: "linux".to_owned(),
            architecture: "arm64".to_owned(),
        },
        ..checks()
    };
    let preview = preview(dir.path(), &arm);
    let why = Unsound::OtherPlatform {
        digest: format!("sha256:{PAUSE_INDEX}"),
        platform: "linux/arm64".to_owned(),
    };
    let pause = verdict(&preview, "k8s.io", PAUSE);
    assert_eq!(pause.fate, Fate::Dropped { why });
    assert_eq!(image_bytes(&preview.assessment.images, true), 0);
}

#[test]
fn a_blob_that_another_namespace_lists_is_not_this_one_s() {
    let dir = root("1.7.24");
    let mut metadata = pulled("1.7.24");
    let namespace = metadata.namespaces.get_mut("default").unwrap();
    let digest = format!("sha256:{BUSYBOX_LAYER}");
    namespace.blobs.remove(&digest).unwrap();
    let found = assess(&metadata, &ContentStore::of(dir.path()), &checks());
    let fates: Vec<&Fate> = found.images.iter().map(|image| &image.fate).collect();
    let dropped = Fate::Dropped {
        why: Unsound::NotListed { digest },
    };
    assert_eq!(fates, [&dropped, &Fate::Kept, &Fate::Kept]);
}

#[test]
fn a_root_without_a_readable_database_is_an_error_of_its_kind() {
    let dir = tempfile::tempdir().unwrap();
    let look = || inspect(dir.path(), "zfs", &checks());
    assert!(matches!(look(), Err(InspectError::Load(_))));
    let path = containerd::database_path(dir.path());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, [0; 8192]).unwrap();
    assert!(matches!(look(), Err(InspectError::Damaged { .. })));
    // The version, varint 3, set to 5 where the file has it.
    let mut bytes = unpacked("1.7.24/meta.db.gz");
    let at = bytes.windows(8).rposition(|w| w == b"version\x06").unwrap();
    bytes[at + 7] = 10;
    fs::write(&path, bytes).unwrap();
    let Err(InspectError::Records { source, .. }) = look() else {
        panic!("schema 5 was taken");
    };
    let found = "5".to_owned();
    assert_eq!(source, MetadataError::UnknownVersion { found });
}
