//! What other tools see before and after: `blkid` (old ones look for uberblocks, newer
//! ones for the nvlist) and, where ZFS is installed, `zdb`.

use std::path::Path;
use std::process::Command;

use super::*;
use crate::device::DiskDev;

fn image(dir: &Path, disk: &ModelDisk) -> std::path::PathBuf {
    use std::os::unix::fs::FileExt as _;
    let path = dir.join("image");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(disk.len()).unwrap();
    for (number, bytes) in disk.content() {
        file.write_all_at(bytes, number * u64::from(disk.block()))
            .unwrap();
    }
    path
}

fn output(program: &str, args: &[&str], path: &Path) -> (Option<i32>, String) {
    let output = Command::new(program).args(args).arg(path).output().unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

fn solo() -> (tempfile::TempDir, std::path::PathBuf, ClearRequest) {
    let dir = tempfile::tempdir().unwrap();
    let mut disk = disk(SOLO_SIZE);
    let pool = put(&mut disk, "solo", 0);
    let path = image(dir.path(), &disk);
    (dir, path, one(&pool))
}

fn clear(path: &Path, request: &ClearRequest) {
    let mut dev = DiskDev::open(path, Some(512)).unwrap();
    assert_eq!(apply(&mut dev, request).unwrap(), Outcome::Changed);
    prove(&mut dev, request).unwrap();
}

#[test]
fn blkid_sees_a_member_before_and_nothing_after() {
    let (_dir, path, request) = solo();
    let (code, text) = output(
        "/usr/sbin/blkid",
        &["-p", "-o", "value", "-s", "TYPE"],
        &path,
    );
    assert_eq!((code, text.trim()), (Some(0), "zfs_member"));
    clear(&path, &request);
    let (code, text) = output("/usr/sbin/blkid", &["-p"], &path);
    assert_eq!((code, text.as_str()), (Some(2), ""));
    let (_, text) = output("/usr/sbin/wipefs", &["--no-act"], &path);
    assert_eq!(text, "");
}

/// Neither does `wipefs` of either kind leave something this does not see.
#[test]
fn what_wipefs_leaves_is_cleared() {
    let (_dir, path, request) = solo();
    let (code, _) = output("/usr/sbin/wipefs", &["--all", "--quiet"], &path);
    assert_eq!(code, Some(0));
    clear(&path, &request);
    assert_eq!(output("/usr/sbin/blkid", &["-p"], &path).0, Some(2));
    let mut dev = DiskDev::open(&path, Some(512)).unwrap();
    assert_eq!(apply(&mut dev, &request).unwrap(), Outcome::AlreadyDone);
}

#[test]
#[ignore = "needs zdb on the PATH (Debian: zfsutils-linux, contrib)"]
fn zdb_sees_four_labels_before_and_none_after() {
    let (_dir, path, request) = solo();
    let (code, text) = output("zdb", &["-l"], &path);
    assert_eq!(code, Some(0));
    assert!(text.contains("labels = 0 1 2 3"), "{text}");
    clear(&path, &request);
    let (code, text) = output("zdb", &["-l"], &path);
    assert_ne!(code, Some(0));
    assert_eq!(text.matches("failed to unpack label").count(), 4, "{text}");
}
