//! Clearing, on captured databases: what goes, what stays, and every way in between.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::common::{VERSIONS, captured, request, root, tree};
use repave_containerd_clear::{ClearError, ClearReport, ClearRequest, LockError, clear, state};
use repave_plan::policy::ClearMode;
use repave_plan::step::{Outcome, StepState};
use repave_survey::bolt::{self, Bucket};
use repave_survey::containerd::{self, Fate, Metadata, Unsound, database_path};

const PAUSE_LAYER: &str = "ec43e6431bf558c6d65789d59e4ab4a5389efe730b274794938e4953d1db773d";
const OVERLAYFS: &str = "io.containerd.snapshotter.v1.overlayfs";

fn metadata(request: &ClearRequest) -> Metadata {
    let bytes = fs::read(database_path(&request.root)).unwrap();
    containerd::parse(&bolt::parse(&bytes).unwrap()).unwrap()
}

/// Names of the images that a report keeps, with their namespace.
fn kept(report: &ClearReport) -> Vec<String> {
    let kept = report.images.iter().filter(|i| i.fate == Fate::Kept);
    kept.map(|i| format!("{}/{}", i.namespace, i.name))
        .collect()
}

#[test]
fn the_lost_snapshotter_goes_and_everything_else_stays() {
    for version in VERSIONS {
        let dir = root(version);
        let request = request(dir.path());
        let before = metadata(&request);
        assert_eq!(state(&request).unwrap(), StepState::Before);
        let report = clear(&request).unwrap();
        assert_eq!(state(&request).unwrap(), StepState::After);
        assert_eq!((report.asked, report.done), (request.mode, request.mode));
        assert_eq!(report.outcome, Outcome::Changed);
        // The busybox layer and that of the import which was cut off are not on disk.
        assert_eq!(
            kept(&report),
            ["k8s.io/registry.example/pause:3"],
            "{version}"
        );
        assert_eq!(report.bytes_kept, 21_649);
        let after = metadata(&request);
        for (name, namespace) in &after.namespaces {
            let old = &before.namespaces[name];
            assert_eq!(namespace.snapshots["overlayfs"], 0, "{version} {name}");
            assert!(old.snapshots["overlayfs"] > 0);
            assert_eq!(
                namespace.snapshots.get("native"),
                old.snapshots.get("native")
            );
            assert_eq!(namespace.leased.get("overlayfs"), None);
            let on_disk = |digest: &&String| {
                let hex = digest.strip_prefix("sha256:").unwrap();
                let blobs = request.root.join(containerd::CONTENT).join("blobs/sha256");
                blobs.join(hex).exists()
            };
            let expected: BTreeSet<&String> = old.blobs.keys().filter(on_disk).collect();
            assert_eq!(namespace.blobs.keys().collect::<BTreeSet<_>>(), expected);
        }
        let ids: Vec<&String> = after.namespaces["default"].containers.keys().collect();
        assert_eq!(ids, ["made-native"], "{version}");
        assert!(after.namespaces["k8s.io"].containers.is_empty());
        assert!(
            before.namespaces["k8s.io"].leased["overlayfs"] > 0,
            "{version}"
        );
        let again = clear(&request).unwrap();
        assert_eq!(again.outcome, Outcome::AlreadyDone, "{version}");
        assert_eq!(metadata(&request), after);
    }
}

#[test]
fn nothing_of_the_database_changes_but_what_is_named() {
    for version in VERSIONS {
        let dir = root(version);
        let request = request(dir.path());
        let old = captured(&format!("{version}/meta.db.gz"));
        clear(&request).unwrap();
        let new = fs::read(database_path(&request.root)).unwrap();
        let (mut old, new) = (bolt::parse(&old).unwrap(), bolt::parse(&new).unwrap());
        assert_eq!(new.txid, old.txid + 2);
        assert_eq!(new.freelist, old.freelist);
        assert_eq!(new.page_size, old.page_size);
        // The same edit, spelled out.
        let v1 = old.root.bucket_mut(b"v1").unwrap();
        for (name, images) in [
            (&b"default"[..], &["app:1"][..]),
            (b"k8s.io", &["app:1", "big:1"]),
        ] {
            let namespace = v1.bucket_mut(name).unwrap();
            for image in images {
                let image = format!("registry.example/{image}");
                let images = namespace.bucket_mut(b"images").unwrap();
                images.remove(image.as_bytes());
            }
            let snapshots = namespace.path_mut(&[b"snapshots", b"overlayfs"]).unwrap();
            assert!(snapshots.sequence > 0);
            snapshots.retain(|_, _| false);
            let containers = namespace.bucket_mut(b"containers").unwrap();
            containers.retain(|id, _| id == b"made-native");
            let blobs = namespace.path_mut(&[b"content", b"blob"]).unwrap();
            blobs
                .remove(b"sha256:09f26680265f028d192b9fbd5ad78f9c0cb0afb085e518371c9b6ee63f53360a");
            blobs
                .remove(b"sha256:8e109c489d3cd4e7ff85b7deed9d5863d2be192aba275d64d661d7075a625a36");
            for (_, lease) in namespace.bucket_mut(b"leases").unwrap().entries_mut() {
                if let bolt::Item::Bucket(lease) = lease {
                    lease.remove(b"snapshots");
                }
            }
        }
        assert_eq!(new.root, old.root, "{version}");
    }
}

#[test]
fn trees_are_moved_and_the_old_database_is_kept() {
    let dir = root("1.7.24");
    let request = request(dir.path());
    let before = tree(dir.path());
    let report = clear(&request).unwrap();
    let after = tree(dir.path());
    let gone: Vec<String> = before
        .keys()
        .filter(|path| !after.contains_key(*path))
        .map(|path| {
            path.to_str()
                .unwrap()
                .replace("containerd/io.containerd.", "")
        })
        .collect();
    assert_eq!(
        gone,
        [
            "grpc.v1.cri/containers/made",
            "grpc.v1.cri/containers/made/status",
            "grpc.v1.cri/sandboxes/made",
            "grpc.v1.cri/sandboxes/made/hosts",
            "runtime.v2.task/k8s.io/made",
            "runtime.v2.task/k8s.io/made/config.json",
            "snapshotter.v1.overlayfs/metadata.db",
            "snapshotter.v1.overlayfs/snapshots",
            "snapshotter.v1.overlayfs/snapshots/1",
            "snapshotter.v1.overlayfs/snapshots/1/fs",
            "snapshotter.v1.overlayfs/snapshots/1/fs/file",
        ]
    );
    for moved in &report.moved {
        let from = moved.from.strip_prefix(dir.path()).unwrap();
        let to = moved.to.strip_prefix(dir.path()).unwrap();
        assert_eq!(before.get(from), after.get(to), "{from:?}");
        assert!(to.starts_with(".repave-aside-test"));
    }
    assert_eq!(report.moved.len(), 5);
    let kept = fs::read(report.kept_database.unwrap()).unwrap();
    assert_eq!(kept, captured("1.7.24/meta.db.gz"));
    let info = fs::metadata(database_path(&request.root)).unwrap();
    assert_eq!(info.mode() & 0o7777, 0o640);
    let beside = fs::read_dir(database_path(&request.root).parent().unwrap());
    assert_eq!(beside.unwrap().count(), 1, "no half-written file stays");
}

/// What a power cut can leave: clearing again ends where clearing once does.
#[test]
fn clearing_goes_on_after_a_power_cut_anywhere() {
    let whole = root("1.7.24");
    let report = clear(&request(whole.path())).unwrap();
    let done = tree(&whole.path().join("containerd"));
    for moves in 0..=report.moved.len() {
        for new in [None, Some(&b"torn"[..])] {
            let cut = root("1.7.24");
            let request = request(cut.path());
            for moved in &report.moved[..moves] {
                let at = |path: &Path| cut.path().join(path.strip_prefix(whole.path()).unwrap());
                fs::create_dir_all(at(&moved.to).parent().unwrap()).unwrap();
                fs::rename(at(&moved.from), at(&moved.to)).unwrap();
            }
            if let Some(new) = new {
                let beside = database_path(&request.root).with_file_name(".meta.db.repave");
                fs::write(beside, new).unwrap();
            }
            assert_eq!(state(&request).unwrap(), StepState::Before, "{moves} moves");
            let resumed = clear(&request).unwrap();
            assert_eq!(resumed.outcome, Outcome::Changed);
            assert_eq!(resumed.images, report.images);
            assert_eq!(tree(&request.root), done, "{moves} moves");
            assert_eq!(state(&request).unwrap(), StepState::After);
        }
    }
}

/// The database says what there is to do: it must be the old one until all else is done.
#[test]
fn a_move_that_fails_leaves_the_question_and_is_called_unfinished() {
    let dir = root("1.7.24");
    let request = request(dir.path());
    let old = fs::read(database_path(&request.root)).unwrap();
    let in_the_way = dir.path().join(".repave-aside-test");
    fs::write(&in_the_way, b"").unwrap();
    let err = clear(&request).unwrap_err();
    assert!(err.changed(), "{err:?}");
    assert_eq!(fs::read(database_path(&request.root)).unwrap(), old);
    assert_eq!(state(&request).unwrap(), StepState::Before);
    fs::remove_file(&in_the_way).unwrap();
    assert_eq!(clear(&request).unwrap().outcome, Outcome::Changed);
    assert_eq!(state(&request).unwrap(), StepState::After);
}

#[test]
fn what_fails_before_the_first_change_changes_nothing() {
    let dir = root("1.7.24");
    let request = request(dir.path());
    // No copy of the old database, no clearing.
    fs::write(&request.keep_dir, b"").unwrap();
    let before = tree(dir.path());
    let err = clear(&request).unwrap_err();
    assert!(matches!(err, ClearError::Keep { .. }), "{err:?}");
    assert!(!err.changed());
    assert_eq!(tree(dir.path()), before);
    fs::remove_file(&request.keep_dir).unwrap();
    // No room for the new one either: its name is a directory.
    let beside = database_path(&request.root).with_file_name(".meta.db.repave");
    fs::create_dir(&beside).unwrap();
    let before = tree(&request.root);
    let err = clear(&request).unwrap_err();
    assert!(matches!(err, ClearError::Rewrite(_)), "{err:?}");
    assert!(!err.changed());
    assert_eq!(tree(&request.root), before);
}

#[test]
fn a_damaged_database_is_set_aside_and_blocks_nothing() {
    let whole = captured("1.7.24/meta.db.gz");
    let cases: [(&str, Vec<u8>); 5] = [
        ("empty", Vec::new()),
        ("zeroes", vec![0; 131_072]),
        ("cut", whole[..whole.len() / 3].to_vec()),
        (
            "metas gone",
            [vec![0; 8192], whole[8192..].to_vec()].concat(),
        ),
        ("text", b"not a database".to_vec()),
    ];
    for (name, bytes) in cases {
        let dir = root("1.7.24");
        let request = request(dir.path());
        let database = database_path(&request.root);
        fs::write(&database, &bytes).unwrap();
        assert_eq!(state(&request).unwrap(), StepState::Before, "{name}");
        let report = clear(&request).unwrap();
        assert_eq!(
            (report.asked, report.done),
            (ClearMode::Snapshots, ClearMode::All)
        );
        assert!(report.images_lost && report.damaged.is_some(), "{name}");
        assert_eq!(
            fs::read(report.kept_database.unwrap()).unwrap(),
            bytes,
            "{name}"
        );
        // The database goes last: it is what says that there is something to do.
        assert_eq!(report.moved.last().unwrap().from, database, "{name}");
        assert_eq!(state(&request).unwrap(), StepState::After, "{name}");
        // The other snapshotter's records are gone too, so its snapshots would collide.
        let left: Vec<String> = tree(&request.root)
            .into_iter()
            .filter(|(path, _)| request.root.join(path).is_file())
            .map(|(path, _)| path.to_str().unwrap().to_owned())
            .collect();
        assert_eq!(left, ["io.containerd.grpc.v1.introspection/uuid"], "{name}");
    }
}

#[test]
fn a_directory_in_the_database_s_place_blocks_nothing() {
    let dir = root("1.7.24");
    let request = request(dir.path());
    let database = database_path(&request.root);
    fs::remove_file(&database).unwrap();
    fs::create_dir(&database).unwrap();
    assert!(clear(&request).unwrap().images_lost);
    assert!(!database.exists());
}

#[test]
fn an_unknown_schema_is_refused_and_nothing_is_changed() {
    let dir = root("1.7.24");
    let request = request(dir.path());
    let mut bytes = captured("1.7.24/meta.db.gz");
    let at = bytes.windows(8).rposition(|w| w == b"version\x06").unwrap();
    bytes[at + 7] = 10;
    fs::write(database_path(&request.root), bytes).unwrap();
    let before = tree(dir.path());
    for result in [clear(&request).map(drop), state(&request).map(drop)] {
        assert!(
            matches!(result, Err(ClearError::Records { .. })),
            "{result:?}"
        );
        assert!(!result.unwrap_err().changed());
    }
    assert_eq!(tree(dir.path()), before);
}

#[test]
fn a_running_containerd_is_refused_and_nothing_is_changed() {
    let dir = root("1.7.24");
    // Bolt takes an exclusive lock to write and a shared one to read; neither is tolerated.
    let exclusive = nix::fcntl::FlockArg::LockExclusive;
    let shared = nix::fcntl::FlockArg::LockShared;
    for (mode, held) in [(ClearMode::Snapshots, shared), (ClearMode::All, exclusive)] {
        let request = ClearRequest {
            mode,
            ..request(dir.path())
        };
        let before = tree(dir.path());
        let file = fs::File::open(database_path(&request.root)).unwrap();
        let lock = nix::fcntl::Flock::lock(file, held).unwrap();
        match clear(&request) {
            Err(ClearError::Lock(LockError::Held { holders, .. })) => {
                assert_eq!(holders, [std::process::id()]);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(tree(dir.path()), before);
        drop(lock);
    }
}

#[test]
fn all_takes_everything_and_says_what_must_be_pulled() {
    let dir = root("1.7.24");
    let request = ClearRequest {
        mode: ClearMode::All,
        ..request(dir.path())
    };
    let report = clear(&request).unwrap();
    assert!(report.images_lost && report.damaged.is_none());
    assert_eq!(kept(&report), Vec::<String>::new());
    assert_eq!(report.bytes_kept, 0);
    let pause = report
        .images
        .iter()
        .find(|i| i.name.contains("pause"))
        .unwrap();
    let why = Unsound::Cleared;
    assert_eq!(pause.fate, Fate::Dropped { why });
    assert!(!database_path(&request.root).exists());
    assert_eq!(state(&request).unwrap(), StepState::After);
    assert_eq!(clear(&request).unwrap().outcome, Outcome::AlreadyDone);
}

#[test]
fn none_touches_nothing() {
    let dir = root("1.7.24");
    let request = ClearRequest {
        mode: ClearMode::None,
        ..request(dir.path())
    };
    let before = tree(dir.path());
    assert_eq!(state(&request).unwrap(), StepState::After);
    assert_eq!(clear(&request).unwrap().outcome, Outcome::AlreadyDone);
    assert_eq!(tree(dir.path()), before);
}

#[test]
fn a_rotten_blob_goes_with_its_record() {
    let dir = root("1.7.24");
    let request = request(dir.path());
    let blob = format!("{}/blobs/sha256/{PAUSE_LAYER}", containerd::CONTENT);
    let path = request.root.join(blob);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[600] ^= 1;
    fs::write(&path, bytes).unwrap();
    let report = clear(&request).unwrap();
    assert_eq!(kept(&report), Vec::<String>::new());
    assert!(
        !path.exists(),
        "containerd would take the file for the blob"
    );
    let records = metadata(&request);
    let digest = format!("sha256:{PAUSE_LAYER}");
    assert!(!records.namespaces["k8s.io"].blobs.contains_key(&digest));
    // What the image shares with nobody, but is whole, stays for the next pull.
    assert!(report.bad_blobs.iter().any(|bad| bad.digest == digest));
    assert_eq!(records.namespaces["k8s.io"].images.len(), 0);
}

#[test]
fn a_lost_snapshotter_without_records_is_still_cleared() {
    let dir = root("1.7.24");
    let request = request(dir.path());
    clear(&request).unwrap();
    let leftover = request.root.join(OVERLAYFS).join("under-the-dataset");
    fs::write(&leftover, b"x").unwrap();
    assert_eq!(state(&request).unwrap(), StepState::Before);
    let report = clear(&request).unwrap();
    assert_eq!(report.moved.len(), 1);
    assert!(!leftover.exists());
    fs::remove_file(database_path(&request.root)).unwrap();
    assert_eq!(state(&request).unwrap(), StepState::After);
    fs::write(&leftover, b"x").unwrap();
    assert_eq!(state(&request).unwrap(), StepState::Before);
    assert_eq!(clear(&request).unwrap().moved.len(), 1);
}

#[test]
fn a_request_that_leads_elsewhere_is_refused() {
    let dir = root("1.7.24");
    let before = tree(dir.path());
    let good = request(dir.path());
    let bad = [
        (
            "snapshotter",
            ClearRequest {
                snapshotter: "../x".to_owned(),
                ..good.clone()
            },
        ),
        (
            "snapshotter",
            ClearRequest {
                snapshotter: String::new(),
                ..good.clone()
            },
        ),
        (
            "aside_name",
            ClearRequest {
                aside_name: "aside".to_owned(),
                ..good.clone()
            },
        ),
        (
            "aside_name",
            ClearRequest {
                aside_name: ".repave-aside-".to_owned(),
                ..good.clone()
            },
        ),
        (
            "aside_name",
            ClearRequest {
                aside_name: ".repave-aside-a/b".to_owned(),
                ..good.clone()
            },
        ),
        (
            "root",
            ClearRequest {
                root: "/".into(),
                ..good.clone()
            },
        ),
        (
            "root",
            ClearRequest {
                root: dir.path().join("absent"),
                ..good.clone()
            },
        ),
    ];
    for (wrong, request) in bad {
        for result in [clear(&request).map(drop), state(&request).map(drop)] {
            match result {
                Err(ClearError::BadRequest { field, .. }) => assert_eq!(field, wrong),
                other => panic!("{wrong}: {other:?}"),
            }
        }
    }
    assert_eq!(tree(dir.path()), before);
}

/// Sandboxes were empty in every captured database: here they are made.
#[test]
fn a_sandbox_stays_only_with_a_container_of_its_own_elsewhere() {
    let dir = root("2.1.9");
    let request = request(dir.path());
    let bytes = fs::read(database_path(&request.root)).unwrap();
    let mut database = bolt::parse(&bytes).unwrap();
    for (namespace, ids) in [
        (
            &b"default"[..],
            &[&b"lone"[..], b"made-native", b"made-overlay"][..],
        ),
        (b"k8s.io", &[b"made"]),
    ] {
        let namespace = database.root.path_mut(&[b"v1", namespace]).unwrap();
        let mut sandboxes = Bucket::default();
        for id in ids {
            let mut record = Bucket::default();
            record.insert(b"sandboxer", bolt::Item::Value(b"podsandbox"));
            sandboxes.insert(id, bolt::Item::Bucket(record));
        }
        namespace.insert(b"sandboxes", bolt::Item::Bucket(sandboxes));
        // As containerd 2.1.9's CRI does: a lease of the sandbox's id, without expiry.
        let leases = namespace.bucket_mut(b"leases").unwrap();
        for id in ids {
            leases.insert(id, bolt::Item::Bucket(Bucket::default()));
        }
    }
    let bytes = repave_containerd_clear::encode::encode(&database).unwrap();
    fs::write(database_path(&request.root), bytes).unwrap();
    let report = clear(&request).unwrap();
    let removed: Vec<(String, Vec<String>)> = report
        .removed
        .into_iter()
        .map(|loss| (loss.namespace, loss.sandboxes.into_iter().collect()))
        .collect();
    let expected = [
        (
            "default".to_owned(),
            vec!["lone".to_owned(), "made-overlay".to_owned()],
        ),
        ("k8s.io".to_owned(), vec!["made".to_owned()]),
    ];
    assert_eq!(removed, expected);
    let after = metadata(&request);
    let left: Vec<&String> = after.namespaces["default"].sandboxes.iter().collect();
    assert_eq!(left, ["made-native"]);
    assert!(after.namespaces["k8s.io"].sandboxes.is_empty());
    let leases: Vec<&String> = after.namespaces["default"].leases.iter().collect();
    assert_eq!(leases, ["held", "made-native"]);
    assert!(!after.namespaces["k8s.io"].leases.contains("made"));
    assert_eq!(after.namespaces["k8s.io"].leases.len(), 1);
}
