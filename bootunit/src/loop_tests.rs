//! Against a real block device: a loop device made here, on a file made here.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use repave_plan::units::{Bytes, PartNo};
use repave_survey::block_io::BlockRead as _;
use repave_survey::device::{FileDev, OpenError};

use crate::block_io::BlockWrite as _;
use crate::device::DiskDev;
use crate::ioctl::{blkpg_add, blkpg_del, blkpg_resize, flush_buffers};

const MIB: u64 = 1 << 20;

/// A loop device on a file of its own, gone when this is dropped.
struct Loop {
    _dir: tempfile::TempDir,
    file: PathBuf,
    device: PathBuf,
}

impl Loop {
    fn new(block: &str) -> Loop {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("image");
        File::create(&file).unwrap().set_len(64 * MIB).unwrap();
        let output = Command::new("/usr/sbin/losetup")
            .args(["--find", "--show", "--sector-size", block])
            .arg(&file)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let device = String::from_utf8(output.stdout).unwrap().trim().into();
        Loop {
            _dir: dir,
            file,
            device,
        }
    }

    fn sysfs(&self, part: u32, name: &str) -> Option<u64> {
        let disk = self.device.file_name().unwrap().to_str().unwrap();
        let path = format!("/sys/block/{disk}/{disk}p{part}/{name}");
        let text = std::fs::read_to_string(Path::new(&path)).ok()?;
        Some(text.trim().parse().unwrap())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let status = Command::new("/usr/sbin/losetup")
            .arg("--detach")
            .arg(&self.device)
            .status();
        assert!(status.unwrap().success());
    }
}

#[test]
#[ignore = "needs root and a loop device"]
fn a_device_is_read_and_written_past_the_page_cache() {
    for (block, size) in [("512", 512), ("4096", 4096)] {
        let disk = Loop::new(block);
        let mut dev = DiskDev::open(&disk.device, None).unwrap();
        assert_eq!(
            (dev.len(), dev.block(), dev.shape().device),
            (64 * MIB, size, true)
        );
        // Pages of the device that a probe left in the cache.
        let cached = File::open(&disk.device).unwrap();
        let mut before = [1; 16];
        std::os::unix::fs::FileExt::read_exact_at(&cached, &mut before, 3 * MIB).unwrap();
        let data: Vec<u8> = (0..3 * MIB).map(|i| (i / 11) as u8).collect();
        dev.write_at(3 * MIB, &data).unwrap();
        dev.flush().unwrap();
        let mut after = [0; 16];
        std::os::unix::fs::FileExt::read_exact_at(&cached, &mut after, 3 * MIB).unwrap();
        assert_eq!(after, data[..16]);
        // Any offset and length, across the largest single read.
        for (skip, len) in [(0, 3 * MIB), (777, 2 * MIB), (MIB - 1, 2), (5, 4091)] {
            let mut back = vec![0; len as usize];
            let reader = FileDev::open(&disk.device, Some(size)).unwrap();
            reader.read_at(3 * MIB + skip, &mut back).unwrap();
            assert!(
                back == data[skip as usize..(skip + len) as usize],
                "{skip} {len}"
            );
        }
        let image = std::fs::read(&disk.file).unwrap();
        assert!(image[3 * MIB as usize..6 * MIB as usize] == data);
        assert!(image[..3 * MIB as usize].iter().all(|byte| *byte == 0));
        let other = if size == 512 { 4096 } else { 512 };
        let error = DiskDev::open(&disk.device, Some(other)).unwrap_err();
        assert!(matches!(error, OpenError::Block { .. }), "{error}");
    }
}

#[test]
#[ignore = "needs root and a loop device"]
fn the_kernels_partitions_follow_blkpg() {
    let disk = Loop::new("512");
    let dev = DiskDev::open(&disk.device, None).unwrap();
    let part = PartNo(3);
    let errno = |result: std::io::Result<()>| result.unwrap_err().raw_os_error().unwrap();
    blkpg_add(&dev, part, Bytes(MIB), Bytes(8 * MIB)).unwrap();
    assert_eq!(disk.sysfs(3, "start"), Some(2048));
    assert_eq!(disk.sysfs(3, "size"), Some(16384));
    let overlapping = blkpg_add(&dev, PartNo(4), Bytes(4 * MIB), Bytes(8 * MIB));
    assert_eq!(errno(overlapping), nix::libc::EBUSY);
    let unaligned = blkpg_add(&dev, PartNo(4), Bytes(32 * MIB + 1), Bytes(MIB));
    assert_eq!(errno(unaligned), nix::libc::EINVAL);
    blkpg_resize(&dev, part, Bytes(MIB), Bytes(16 * MIB)).unwrap();
    assert_eq!(disk.sysfs(3, "size"), Some(32768));
    let moved = blkpg_resize(&dev, part, Bytes(2 * MIB), Bytes(16 * MIB));
    assert_eq!(errno(moved), nix::libc::EINVAL);
    blkpg_del(&dev, part).unwrap();
    assert_eq!(disk.sysfs(3, "start"), None);
    assert_eq!(errno(blkpg_del(&dev, part)), nix::libc::ENXIO);
    assert!(blkpg_del(&dev, PartNo(u32::MAX)).is_err());
    flush_buffers(&dev).unwrap();
}
