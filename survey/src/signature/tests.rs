//! Against the table's own offsets, and against `blkid` on what the real tools make.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;
use crate::device::FileDev;
use crate::labels::fixtures::SparseDisk;

const MIB: u64 = 1 << 20;

/// Kind and offset of what is found in the middle of a disk, from the range's start.
fn found(parts: &[(u64, &[u8])], size: u64) -> Vec<(String, u64)> {
    let start = 7 * MIB;
    let mut disk = SparseDisk::new(start + size + MIB);
    for (offset, bytes) in parts {
        disk.put(start + offset, bytes);
    }
    let facts = read_signatures(&disk, start..start + size).unwrap();
    facts
        .into_iter()
        .map(|fact| (fact.kind, fact.offset.0 - start))
        .collect()
}

fn one(kind: &str, offset: u64) -> Vec<(String, u64)> {
    vec![(kind.to_owned(), offset)]
}

#[test]
fn plain_magics_are_found_at_their_offsets_and_only_inside_the_range() {
    for (kind, offset, magic) in PLAIN {
        let part = [(*offset, *magic)];
        let end = offset + magic.len() as u64;
        assert_eq!(found(&part, 16 * MIB), one(kind, *offset));
        assert_eq!(found(&part, end), one(kind, *offset), "{kind} at the end");
        assert_eq!(found(&part, end - 1), [], "{kind} beyond the end");
        let mut other = magic.to_vec();
        other[0] ^= 0x80;
        assert_eq!(found(&[(*offset, &other)], 16 * MIB), [], "{kind} changed");
    }
}

fn ext(features: [u32; 3]) -> Vec<u8> {
    let mut sb = vec![0; 112];
    sb[56..58].copy_from_slice(&[0x53, 0xef]);
    for (index, word) in features.iter().enumerate() {
        sb[92 + index * 4..][..4].copy_from_slice(&word.to_le_bytes());
    }
    sb
}

#[test]
fn the_kinds_of_ext_follow_from_the_features() {
    for (kind, features) in [
        ("ext2", [0x38, 0x2, 0x3]),
        ("ext3", [0x3c, 0x6, 0x7]),
        ("ext4", [0x3c, 0x2c2, 0x46b]),
        ("ext4", [0, 0x40, 0]),
        ("ext4", [0x4, 0x2, 0x8]),
        ("jbd", [0, 0x8, 0]),
    ] {
        assert_eq!(
            found(&[(1024, &ext(features))], MIB),
            one(kind, 1080),
            "{features:x?}"
        );
    }
    for (at, value) in [(24, 7), (76, 2), (56, 0)] {
        let mut sb = ext([0; 3]);
        sb[at] = value;
        assert_eq!(found(&[(1024, &sb)], MIB), [], "byte {at}");
    }
}

#[test]
fn magics_that_say_where_they_stand_must_stand_there() {
    let mut header = vec![0; 512];
    header[..6].copy_from_slice(b"SKUL\xba\xbe");
    header[256..264].copy_from_slice(&0x8000u64.to_be_bytes());
    assert_eq!(
        found(&[(0x8000, &header)], 8 * MIB),
        one("crypto_LUKS", 0x8000)
    );
    assert_eq!(found(&[(0x4000, &header)], 8 * MIB), []);
    let raid = |at: u64| {
        let mut sb = vec![0; 256];
        sb[..4].copy_from_slice(&0xa92b_4efc_u32.to_le_bytes());
        sb[4] = 1;
        sb[144..152].copy_from_slice(&(at / 512).to_le_bytes());
        sb
    };
    let kind = "linux_raid_member";
    let size = MIB + 4096 + 512;
    for at in [0, 4096, MIB + 4096 - 8192] {
        assert_eq!(found(&[(at, &raid(at))], size), one(kind, at));
        assert_eq!(found(&[(at, &raid(at + 512))], size), [], "{at}");
    }
    // 0.90: 64 KiB before the last multiple of 64 KiB, in either byte order.
    for magic in [0xa92b_4efc_u32.to_le_bytes(), 0xa92b_4efc_u32.to_be_bytes()] {
        let at = MIB - (64 << 10);
        assert_eq!(found(&[(at, &magic)], size), one(kind, at));
        assert_eq!(found(&[(at, &magic)], 64 << 10), []);
    }
}

#[test]
fn swap_ends_a_page_and_lvm_stands_in_a_sector() {
    for end in SWAP_ENDS {
        assert_eq!(
            found(&[(end - 10, b"SWAPSPACE2")], MIB),
            one("swap", end - 10)
        );
        assert_eq!(
            found(&[(end - 10, b"S1SUSPEND\0")], MIB),
            one("swsuspend", end - 10)
        );
    }
    assert_eq!(found(&[(0x3000 - 10, b"SWAPSPACE2")], MIB), []);
    for sector in [0, 1, 2, 3, 8] {
        let mut label = vec![0; 32];
        label[..8].copy_from_slice(b"LABELONE");
        label[24..].copy_from_slice(b"LVM2 001");
        assert_eq!(
            found(&[(sector * 512, &label)], MIB),
            one("LVM2_member", sector * 512 + 24)
        );
        label[0] = 0;
        assert_eq!(found(&[(sector * 512, &label)], MIB), []);
    }
}

fn fat() -> Vec<u8> {
    let mut boot = vec![0; 512];
    boot[0] = 0xeb;
    boot[11..17].copy_from_slice(&[0, 2, 8, 32, 0, 2]);
    boot[21] = 0xf8;
    boot[0x52..0x5a].copy_from_slice(b"FAT32   ");
    boot[510..].copy_from_slice(&[0x55, 0xaa]);
    boot
}

#[test]
fn fat_gives_all_its_magics_and_needs_its_fields() {
    let kinds = |at: &[u64]| {
        at.iter()
            .map(|at| ("vfat".to_owned(), *at))
            .collect::<Vec<_>>()
    };
    assert_eq!(found(&[(0, &fat())], MIB), kinds(&[0, 0x52, 510]));
    for (at, value) in [(12, 3), (12, 0x20), (13, 3), (14, 0), (16, 0), (21, 0xf7)] {
        let mut boot = fat();
        boot[at] = value;
        assert_eq!(found(&[(0, &boot)], MIB), [], "byte {at} = {value}");
    }
    let mut boot = fat();
    boot[0x52..0x5a].fill(0);
    assert_eq!(found(&[(0, &boot)], MIB), kinds(&[0, 510]));
    boot[0x36..0x3e].copy_from_slice(b"JFS     ");
    assert_eq!(found(&[(0, &boot)], MIB), []);
    boot[0x36..0x3e].copy_from_slice(b"FAT16   ");
    boot[510] = 0;
    assert_eq!(found(&[(0, &boot)], MIB), kinds(&[0x36]));
}

#[test]
fn a_partition_table_in_a_partition_is_told() {
    assert_eq!(found(&[(512, b"EFI PART")], MIB), one("gpt", 512));
    assert_eq!(found(&[(4096, b"EFI PART")], MIB), one("gpt", 4096));
    let mut boot = vec![0; 512];
    boot[510..].copy_from_slice(&[0x55, 0xaa]);
    assert_eq!(found(&[(0, &boot)], MIB), []);
    boot[446 + 4] = 0x83;
    boot[446 + 12] = 1;
    assert_eq!(found(&[(0, &boot)], MIB), one("dos", 510));
    boot[3..11].copy_from_slice(b"NTFS    ");
    let both = [("ntfs".to_owned(), 3), ("ntfs".to_owned(), 510)];
    assert_eq!(found(&[(0, &boot)], MIB), both);
    boot[3] = 0;
    boot[446 + 16] = 1;
    assert_eq!(found(&[(0, &boot)], MIB), []);
}

#[test]
fn a_range_beyond_the_disk_is_refused() {
    let disk = SparseDisk::new(MIB);
    for range in [0..MIB + 1, Range { start: 1, end: 0 }] {
        let error = read_signatures(&disk, range).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
    assert_eq!(read_signatures(&disk, 5..5).unwrap(), []);
}

fn run(program: &str, args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

fn image(dir: &Path, mib: u64) -> PathBuf {
    let path = dir.join("image");
    File::create(&path).unwrap().set_len(mib * MIB).unwrap();
    path
}

/// The kinds here are the one `blkid` says, and zeroing what is found leaves it, and
/// `wipefs`, nothing.
fn agrees_with_blkid(path: &Path, kind: &str) {
    let file = path.to_str().unwrap();
    let (code, text) = run(
        "/usr/sbin/blkid",
        &["-p", "-o", "value", "-s", "TYPE", file],
    );
    assert_eq!((code, text.trim()), (Some(0), kind));
    let dev = FileDev::open(path, None).unwrap();
    let facts = read_signatures(&dev, 0..dev.len()).unwrap();
    assert!(
        !facts.is_empty() && facts.iter().all(|fact| fact.kind == kind),
        "{kind}: {facts:?}"
    );
    let out = File::options().write(true).open(path).unwrap();
    for fact in &facts {
        out.write_all_at(&vec![0; fact.magic.len() / 2], fact.offset.0)
            .unwrap();
    }
    let (code, text) = run("/usr/sbin/blkid", &["-p", file]);
    assert_eq!((code, text.as_str()), (Some(2), ""), "{kind}: {facts:?}");
    assert_eq!(run("/usr/sbin/wipefs", &["--no-act", file]).1, "", "{kind}");
    assert_eq!(read_signatures(&dev, 0..dev.len()).unwrap(), [], "{kind}");
}

fn make(kind: &str, mib: u64, program: &str, args: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), mib);
    let args: Vec<&str> = args
        .iter()
        .copied()
        .chain([path.to_str().unwrap()])
        .collect();
    let (code, text) = run(program, &args);
    assert_eq!(code, Some(0), "{program}: {text}");
    agrees_with_blkid(&path, kind);
}

#[test]
fn what_e2fsprogs_and_util_linux_make_is_what_blkid_says() {
    make("ext2", 64, "/usr/sbin/mke2fs", &["-q", "-F", "-t", "ext2"]);
    make("ext3", 64, "/usr/sbin/mke2fs", &["-q", "-F", "-t", "ext3"]);
    make("ext4", 64, "/usr/sbin/mke2fs", &["-q", "-F", "-t", "ext4"]);
    make("swap", 64, "/usr/sbin/mkswap", &["-q"]);
}

#[test]
#[ignore = "needs dosfstools, xfsprogs, btrfs-progs, f2fs-tools, ntfs-3g, exfatprogs, cryptsetup-bin, bcache-tools"]
fn what_other_tools_make_is_what_blkid_says() {
    make("vfat", 64, "/usr/sbin/mkfs.vfat", &["-F", "32"]);
    make("vfat", 64, "/usr/sbin/mkfs.vfat", &["-F", "16"]);
    make("vfat", 8, "/usr/sbin/mkfs.vfat", &["-F", "12"]);
    make("xfs", 512, "/usr/sbin/mkfs.xfs", &["-q", "-f"]);
    make("btrfs", 256, "/usr/sbin/mkfs.btrfs", &["-q", "-f"]);
    make("f2fs", 256, "/usr/sbin/mkfs.f2fs", &["-q", "-f"]);
    make("ntfs", 64, "/usr/sbin/mkfs.ntfs", &["-q", "-F", "-f"]);
    make("exfat", 64, "/usr/sbin/mkfs.exfat", &[]);
    let luks = [
        "luksFormat",
        "-q",
        "--key-file",
        "/dev/zero",
        "--keyfile-size",
        "8",
    ];
    let fast = [
        "--pbkdf",
        "pbkdf2",
        "--pbkdf-force-iterations",
        "1000",
        "--type",
    ];
    for version in ["luks1", "luks2"] {
        let args = [&luks[..], &fast, &[version]].concat();
        make("crypto_LUKS", 64, "/usr/sbin/cryptsetup", &args);
    }
    make("bcache", 64, "/usr/sbin/make-bcache", &["-B"]);
}
