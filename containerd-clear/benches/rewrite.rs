//! A database of 64 MB with 100,000 snapshots, cleared: under 3 s and 400 MB, or it fails.
//! And a snapshotter's directory of 200,000 files, moved aside in under 50 ms.
//!
//! `cargo bench -p repave-containerd-clear`; with `KEEP_DB=FILE` the large database and its
//! rewritten form are left behind for Go's checker.

#![expect(clippy::unwrap_used, reason = "a bench")]

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use repave_containerd_clear::{ClearRequest, clear, encode};
use repave_plan::policy::ClearMode;
use repave_survey::bolt::{Bucket, Database, FreelistMode, Item};
use repave_survey::containerd::database_path;

const SNAPSHOTS: usize = 100_000;
const FILES: usize = 200_000;

/// A meta.db with one namespace; the labels bring it to the size.
fn database(keys: &[String], label: &str) -> Vec<u8> {
    let bucket = |entries: Vec<(&'static str, &'static str)>| {
        let mut bucket = Bucket::new(0);
        for (key, value) in entries {
            bucket.insert(key.as_bytes(), Item::Value(value.as_bytes()));
        }
        bucket
    };
    let mut snapshots = Bucket::new(SNAPSHOTS as u64);
    for key in keys {
        let mut snapshot = bucket(vec![("createdat", "time-time-time-"), ("parent", "")]);
        snapshot.insert(b"name", Item::Value(key.as_bytes()));
        // In the snapshot itself: a nested bucket would take a page of its own.
        snapshot.insert(b"label", Item::Value(label.as_bytes()));
        snapshots.insert(key.as_bytes(), Item::Bucket(snapshot));
    }
    let mut by_name = Bucket::new(0);
    by_name.insert(b"overlayfs", Item::Bucket(snapshots.clone()));
    // The other half stays, so that the new file is large, too.
    by_name.insert(b"zfs", Item::Bucket(snapshots));
    let mut namespace = Bucket::new(0);
    namespace.insert(b"snapshots", Item::Bucket(by_name));
    let mut v1 = Bucket::new(0);
    v1.insert(b"k8s.io", Item::Bucket(namespace));
    v1.insert(b"version", Item::Value(&[8]));
    let mut root = Bucket::new(0);
    root.insert(b"v1", Item::Bucket(v1));
    let database = Database {
        page_size: 4096,
        txid: 100,
        freelist: FreelistMode::Unsynced,
        root,
    };
    encode::encode(&database).unwrap()
}

/// The most memory that this process ever had, in MB, since the last reset.
fn peak_mb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kb: u64 = line
        .unwrap()
        .split_ascii_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    kb / 1024
}

fn timed(request: &ClearRequest) -> Duration {
    let started = Instant::now();
    clear(request).unwrap();
    started.elapsed()
}

fn main() -> ExitCode {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let request = ClearRequest {
        root: dir.path().join("containerd"),
        snapshotter: "overlayfs".to_owned(),
        mode: ClearMode::Snapshots,
        keep_dir: dir.path().join("run"),
        aside_name: ".repave-aside-bench".to_owned(),
        pinned: Vec::new(),
        verify: false,
    };
    let path = database_path(&request.root);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let keys: Vec<String> = (0..SNAPSHOTS / 2)
        .map(|n| format!("k8s.io/{n}/sha256:{n:064x}"))
        .collect();
    let bytes = database(&keys, &"r".repeat(350));
    let size_mb = bytes.len() >> 20;
    fs::write(&path, &bytes).unwrap();
    drop((bytes, keys));
    let kept = std::env::var("KEEP_DB").ok();
    if let Some(kept) = &kept {
        fs::copy(&path, format!("{kept}.before")).unwrap();
    }
    // proc(5): 5 resets the peak to what is resident now.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let rewrite = timed(&request);
    let peak = peak_mb();
    println!("rewrite: {size_mb} MB, {SNAPSHOTS} snapshots: {rewrite:.2?}, peak {peak} MB");
    if let Some(kept) = &kept {
        fs::copy(&path, kept).unwrap();
    }

    let tree = request
        .root
        .join("io.containerd.snapshotter.v1.overlayfs/snapshots");
    fill(&tree);
    fs::remove_file(&path).unwrap();
    let moving = timed(&request);
    println!("move aside: {FILES} files: {moving:.2?}");
    let good = (60..=80).contains(&size_mb)
        && rewrite < Duration::from_secs(3)
        && peak < 400
        && moving < Duration::from_millis(50);
    match good {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn fill(tree: &Path) {
    for n in 0..FILES {
        let dir = tree.join((n / 1000).to_string());
        if n % 1000 == 0 {
            fs::create_dir_all(&dir).unwrap();
        }
        fs::write(dir.join(n.to_string()), b"").unwrap();
    }
}
