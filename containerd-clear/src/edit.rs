//! The edit: which records leave the tree. Pure.
//!
//! Takes out only what [`losses`](repave_survey::containerd::losses) and
//! [`assess`](repave_survey::containerd::assess) name; everything else stays as it is, byte
//! for byte. A cleared snapshotter keeps its empty bucket: the bucket's counter numbers new
//! snapshots, and one that began at 1 again would collide with whatever the snapshotter
//! itself still knows (`core/metadata/snapshot.go`, createKey).

use repave_survey::bolt::{Bucket, Item};
use repave_survey::containerd::{Assessment, Fate, NamespaceLosses};

/// Takes the lost snapshotter's records and those of unsound images out of the tree.
pub fn forget(
    root: &mut Bucket<'_>,
    snapshotter: &str,
    losses: &[NamespaceLosses],
    assessment: &Assessment,
) {
    let Some(v1) = root.bucket_mut(b"v1") else {
        return;
    };
    for loss in losses {
        if let Some(namespace) = v1.bucket_mut(loss.namespace.as_bytes()) {
            forget_losses(namespace, snapshotter, loss);
        }
    }
    for image in &assessment.images {
        let path = [image.namespace.as_bytes(), b"images"];
        if let (Fate::Dropped { .. }, Some(images)) = (&image.fate, v1.path_mut(&path)) {
            images.remove(image.name.as_bytes());
        }
    }
    for blob in &assessment.bad_blobs {
        let path = [blob.namespace.as_bytes(), b"content", b"blob"];
        if let Some(blobs) = v1.path_mut(&path) {
            blobs.remove(blob.digest.as_bytes());
        }
    }
}

fn forget_losses(namespace: &mut Bucket<'_>, snapshotter: &str, loss: &NamespaceLosses) {
    if let Some(snapshots) = namespace.path_mut(&[b"snapshots", snapshotter.as_bytes()]) {
        snapshots.retain(|_, _| false);
    }
    for (kind, ids) in [
        (&b"containers"[..], &loss.containers),
        (b"sandboxes", &loss.sandboxes),
        (b"leases", &loss.leases),
    ] {
        if let Some(records) = namespace.bucket_mut(kind) {
            records.retain(|id, _| std::str::from_utf8(id).map_or(true, |id| !ids.contains(id)));
        }
    }
    let Some(leases) = namespace.bucket_mut(b"leases") else {
        return;
    };
    for (_, item) in leases.entries_mut() {
        let Item::Bucket(lease) = item else {
            continue;
        };
        if let Some(held) = lease.bucket_mut(b"snapshots") {
            held.remove(snapshotter.as_bytes());
            if held.is_empty() {
                lease.remove(b"snapshots");
            }
        }
    }
}
