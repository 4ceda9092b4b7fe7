//! The walker: removes what was moved aside, and nothing else.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use repave_containerd_clear::remove_aside;

fn put(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, b"x").unwrap();
}

#[test]
fn every_tree_aside_goes_and_what_links_point_to_stays() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("containerd");
    for path in [
        ".repave-aside-1/sn/1/fs/a",
        ".repave-aside-2/b",
        "containerd/.repave-aside-1/c",
    ] {
        put(&dir.path().join(path));
    }
    for path in [
        "precious/file",
        "containerd/content/blob",
        ".repave/file",
        "aside/file",
    ] {
        put(&dir.path().join(path));
    }
    let aside = dir.path().join(".repave-aside-1");
    symlink(dir.path().join("precious"), aside.join("to-dir")).unwrap();
    symlink(dir.path().join("precious/file"), aside.join("sn/to-file")).unwrap();
    symlink("..", aside.join("sn/up")).unwrap();
    symlink(
        dir.path().join("precious"),
        dir.path().join(".repave-aside-link"),
    )
    .unwrap();
    let report = remove_aside(&root).unwrap();
    assert_eq!((report.files, report.directories), (6, 6));
    // A link where a tree should be is not followed, and not ours to remove.
    assert_eq!(report.left_count, 1);
    assert_eq!(report.left[0].path, dir.path().join(".repave-aside-link"));
    let mut left: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(
        left,
        [
            ".repave",
            ".repave-aside-link",
            "aside",
            "containerd",
            "precious"
        ]
    );
    assert!(dir.path().join("precious/file").exists());
    assert!(root.join("content/blob").exists());
    assert!(!root.join(".repave-aside-1").exists());
}

#[test]
fn a_tree_deeper_than_the_handles_goes() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("containerd");
    fs::create_dir(&root).unwrap();
    let mut deep = dir.path().join(".repave-aside-1");
    for _ in 0..400 {
        deep.push("d");
    }
    put(&deep.join("file"));
    let report = remove_aside(&root).unwrap();
    assert_eq!(
        (report.files, report.directories, report.left_count),
        (1, 401, 0)
    );
    assert!(!dir.path().join(".repave-aside-1").exists());
}

/// In a mount namespace of its own, so that no mount of the test outlives it.
#[test]
fn a_mount_in_the_tree_is_not_crossed() {
    let dir = tempfile::tempdir().unwrap();
    put(&dir.path().join("precious/file"));
    put(&dir.path().join("precious/dir/file"));
    put(&dir.path().join("single"));
    put(&dir.path().join(".repave-aside-1/a/gone"));
    put(&dir.path().join(".repave-aside-1/a/pinned"));
    for path in [
        "containerd",
        ".repave-aside-1/a/bind",
        ".repave-aside-1/tmpfs",
    ] {
        fs::create_dir_all(dir.path().join(path)).unwrap();
    }
    let script = "set -e; mount --bind precious .repave-aside-1/a/bind
        mount --bind single .repave-aside-1/a/pinned
        mount -t tmpfs none .repave-aside-1/tmpfs; echo x > .repave-aside-1/tmpfs/file
        code=0; \"$CLEAR\" remove-aside --root containerd || code=$?
        test -e .repave-aside-1/tmpfs/file; exit $code";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .env("CLEAR", env!("CARGO_BIN_EXE_containerd-clear"))
        .current_dir(dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(20), "{output:?}");
    for place in ["a/bind", "a/pinned", "tmpfs"] {
        let line = format!(".repave-aside-1/{place} stays: something is mounted there");
        assert!(text.contains(&line), "{text}");
    }
    assert!(dir.path().join("precious/file").exists());
    assert!(dir.path().join("precious/dir/file").exists());
    assert!(dir.path().join("single").exists());
    assert!(!dir.path().join(".repave-aside-1/a/gone").exists());
}
