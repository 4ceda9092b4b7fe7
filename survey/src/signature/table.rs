//! The magics that need no second look: kind, offset in bytes, bytes.
//!
//! From util-linux `libblkid/src/superblocks/`, one file per kind; `kboff` and `sboff`
//! of its tables added up.

/// Kinds that are told by their magic alone.
pub const PLAIN: &[(&str, u64, &[u8])] = &[
    ("xfs", 0, b"XFSB"),
    ("btrfs", 0x1_0040, b"_BHRfS_M"),
    ("ntfs", 3, b"NTFS    "),
    ("exfat", 3, b"EXFAT   "),
    ("BitLocker", 3, b"-FVE-FS-"),
    ("ReFS", 0, b"\0\0\0ReFS\0"),
    ("f2fs", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("erofs", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("hfsplus", 1024, b"H+\0\x04"),
    ("apfs", 32, b"NXSB"),
    ("jfs", 0x8000, b"JFS1"),
    ("reiserfs", 0x1_0034, b"ReIsEr"),
    ("gfs2", 0x1_0000, &[0x01, 0x16, 0x19, 0x70]),
    ("ocfs2", 1024, b"OCFSV2"),
    ("ocfs2", 2048, b"OCFSV2"),
    ("ocfs2", 4096, b"OCFSV2"),
    ("ocfs2", 8192, b"OCFSV2"),
    ("iso9660", 0x8001, b"CD001"),
    ("udf", 0x8001, b"BEA01"),
    ("squashfs", 0, b"hsqs"),
    ("squashfs", 0, b"sqsh"),
    ("cramfs", 0, &[0x45, 0x3d, 0xcd, 0x28]),
    ("bcache", 0x1018, &BCACHE),
    ("bcachefs", 0x1018, &BCACHEFS),
    ("stratis", 0x204, b"!Stra0tis\x86\xff\x02^\x41rh"),
    ("vdo", 0, b"dmvdo001"),
    ("ceph_bluestore", 0, b"bluestore block device"),
    ("DM_integrity", 0, b"integrity"),
    ("DM_verity_hash", 0, b"verity\0\0"),
    ("DM_snapshot_cow", 0, b"SnAp"),
    ("VMFS_volume_member", 0x10_0000, &[0x0d, 0xd0, 0x01, 0xc0]),
];

const BCACHE: [u8; 16] = [
    0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81,
];
const BCACHEFS: [u8; 16] = [
    0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef,
];

/// Where the second header of LUKS2 can stand, by the size of the first.
pub const LUKS2_COPIES: [u64; 9] = [
    0x4000, 0x8000, 0x1_0000, 0x2_0000, 0x4_0000, 0x8_0000, 0x10_0000, 0x20_0000, 0x40_0000,
];

/// The page sizes swap areas are made with.
pub const SWAP_ENDS: [u64; 5] = [0x1000, 0x2000, 0x4000, 0x8000, 0x1_0000];

/// What ends the first page: swap, or an image of a hibernated system in it.
pub const SWAP_MAGICS: [(&str, &[u8]); 7] = [
    ("swap", b"SWAP-SPACE"),
    ("swap", b"SWAPSPACE2"),
    ("swsuspend", b"S1SUSPEND\0"),
    ("swsuspend", b"S2SUSPEND\0"),
    ("swsuspend", b"ULSUSPEND\0"),
    ("swsuspend", b"LINHIB0001"),
    (
        "swsuspend",
        &[0xed, 0xc3, 0x02, 0xe9, 0x98, 0x56, 0xe5, 0x0c],
    ),
];
