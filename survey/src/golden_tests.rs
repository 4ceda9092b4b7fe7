//! A whole worker as a folder: what the kernel, systemd, k3s and OpenZFS show of it, and
//! the exact survey that comes of it, unprivileged.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use repave_plan::policy::{DropIn, Policy, parse_policy};
use repave_plan::survey::{Survey, TableFound, Use};
use repave_plan::table::crc32;
use repave_plan::units::{BlockSize, Bytes, Guid, PartNo, UnixTime};

use crate::block_io::BlockRead as _;
use crate::host_tools::{ToolError, ToolOutput, Tools};
use crate::labels::fixtures::{MIRROR, SOLO, SparseDisk};
use crate::read::{Detail, SurveyRequest, read_image_survey, read_survey};
use crate::root::Root;

const MIB: u64 = 1024 * 1024;
const DISK: u64 = 320 * MIB;
const NOW: UnixTime = UnixTime(1_795_000_000);

const EFI: &str = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b";
const LINUX: &str = "0fc63daf-8483-4772-8e79-3d69d8477de4";
const ZFS: &str = "6a898cc3-1dd2-11b2-99a6-080020736631";

/// Number, type, first and last MiB (the last not included), name.
const LAYOUT: [(u32, &str, u64, u64, &str); 4] = [
    (1, EFI, 1, 9, "EFI"),
    (2, LINUX, 9, 41, "root"),
    (3, ZFS, 41, 169, "tank"),
    (4, LINUX, 169, 316, "mayastor"),
];

const POLICY: &str = r#"
version = 1
mode = "recreate"
[disk]
pool = "tank"
[pool]
partition_label = "tank"
[[remove]]
label = "mayastor"
contains = "no-filesystem"
[[datasets]]
name = "tank/containerd"
[[datasets]]
name = "tank/k8s/volumes"
"#;

/// A GPT of 128 entries as UEFI 2.10, 5.3 lays it out, written without the code under
/// test.
pub fn put_gpt(disk: &mut SparseDisk, block: u64) {
    let blocks = DISK / block;
    let array_blocks = 128 * 128 / block;
    let mut array = vec![0u8; 128 * 128];
    for (number, kind, first, last, name) in LAYOUT {
        let entry = &mut array[(number as usize - 1) * 128..][..128];
        entry[..16].copy_from_slice(&kind.parse::<Guid>().unwrap().0);
        entry[16..32].copy_from_slice(&Guid::derive(&[name.as_bytes()]).0);
        entry[32..40].copy_from_slice(&(first * MIB / block).to_le_bytes());
        entry[40..48].copy_from_slice(&(last * MIB / block - 1).to_le_bytes());
        for (at, unit) in name.encode_utf16().enumerate() {
            entry[56 + 2 * at..][..2].copy_from_slice(&unit.to_le_bytes());
        }
    }
    let header = |mine: u64, other: u64, array_lba: u64| {
        let mut header = vec![0u8; block as usize];
        header[..8].copy_from_slice(b"EFI PART");
        header[8..12].copy_from_slice(&0x0001_0000u32.to_le_bytes());
        header[12..16].copy_from_slice(&92u32.to_le_bytes());
        for (at, value) in [
            (24, mine),
            (32, other),
            (40, 2 + array_blocks),
            (48, blocks - 2 - array_blocks),
            (72, array_lba),
        ] {
            header[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        header[56..72].copy_from_slice(&Guid::derive(&[b"disk"]).0);
        header[80..84].copy_from_slice(&128u32.to_le_bytes());
        header[84..88].copy_from_slice(&128u32.to_le_bytes());
        header[88..92].copy_from_slice(&crc32(&array).to_le_bytes());
        let crc = crc32(&header[..92]);
        header[16..20].copy_from_slice(&crc.to_le_bytes());
        header
    };
    let mut mbr = vec![0u8; 512];
    mbr[446 + 1..446 + 5].copy_from_slice(&[0, 2, 0, 0xee]);
    mbr[446 + 5..446 + 8].copy_from_slice(&[0xff; 3]);
    mbr[446 + 8..446 + 12].copy_from_slice(&1u32.to_le_bytes());
    mbr[446 + 12..446 + 16].copy_from_slice(&((blocks - 1) as u32).to_le_bytes());
    mbr[510..].copy_from_slice(&[0x55, 0xaa]);
    disk.put(0, &mbr);
    disk.put(block, &header(1, blocks - 1, 2));
    disk.put(2 * block, &array);
    disk.put(
        DISK - block,
        &header(blocks - 1, 1, blocks - 1 - array_blocks),
    );
    disk.put(DISK - block - 128 * 128, &array);
}

/// The disk: a table, the pool's labels, an ext4 magic, and a label of a vdev that was
/// the whole disk once.
fn write_disk(path: &Path, block: u64) {
    let mut disk = SparseDisk::new(DISK);
    disk.put(DISK - 512 * 1024, &MIRROR.label(2));
    SOLO.put(&mut disk, 41 * MIB);
    disk.put(9 * MIB + 0x438, &[0x53, 0xef]);
    put_gpt(&mut disk, block);
    let file = fs::File::create(path).unwrap();
    file.set_len(DISK).unwrap();
    let mut chunk = vec![0; MIB as usize];
    // The mebibytes that hold something: the rest stays a hole.
    for offset in [0, 9, 41, 45, 168, 319].map(|at| at * MIB) {
        disk.read_at(offset, &mut chunk).unwrap();
        file.write_all_at(&chunk, offset).unwrap();
    }
}

struct Worker {
    dir: tempfile::TempDir,
    answers: BTreeMap<String, String>,
}

impl Worker {
    fn new() -> Worker {
        let worker = Worker {
            dir: tempfile::tempdir().unwrap(),
            answers: answers(),
        };
        for line in include_str!("golden/worker.tree").split("=== ").skip(1) {
            let (path, content) = line.split_once('\n').unwrap();
            worker.write(path, content);
        }
        for program in [
            "usr/sbin/zpool",
            "usr/sbin/zfs",
            "usr/sbin/modprobe",
            "usr/bin/mount",
        ] {
            worker.write(program, "");
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(worker.dir.path().join(program), mode).unwrap();
        }
        worker.write("usr/sbin/udevadm", "not executable, so not found");
        fs::create_dir_all(worker.dir.path().join("dev")).unwrap();
        write_disk(&worker.dir.path().join("dev/vda"), 512);
        worker
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.dir.path().join(path)).unwrap();
    }

    fn survey(&self, policy: Option<&Policy>, detail: Detail) -> Result<Survey, String> {
        let root = Root::at(self.dir.path()).unwrap();
        let request = SurveyRequest {
            root: &root,
            tools: self,
            now: NOW,
            state_dir: "/var/lib/repave",
            policy,
            detail,
        };
        let mut survey =
            read_survey(&request).map_err(|error| repave_plan::chain::chain(&error))?;
        // The temporary directory's own file system is another on each machine.
        if let Some(host) = &mut survey.host {
            assert!(host.state_dir.free.0 > 0);
            host.state_dir.free = Bytes(0);
        }
        if let Some(containerd) = &mut survey.containerd {
            containerd.root.free = Bytes(0);
            containerd.snapshotter_dir.free = Bytes(0);
        }
        Ok(survey)
    }
}

impl Tools for Worker {
    fn run(&self, program: &str, args: &[&str], _: Duration) -> Result<ToolOutput, ToolError> {
        let command = format!("{program} {}", args.join(" "));
        let (code, stdout) = match self.answers.get(&command) {
            Some(answer) => (0, answer.clone()),
            None => (2, String::new()),
        };
        let stderr = format!("nobody expected `{command}`");
        Ok(ToolOutput {
            code: Some(code),
            stdout,
            stderr,
        })
    }
}

/// The commands and what they print: OpenZFS 2.3.9's formats.
fn answers() -> BTreeMap<String, String> {
    let mut answers = BTreeMap::new();
    for part in include_str!("golden/worker.answers").split("=== ").skip(1) {
        let (command, answer) = part.split_once('\n').unwrap();
        assert!(
            answers
                .insert(command.to_owned(), answer.to_owned())
                .is_none(),
            "{command}"
        );
    }
    answers
}

fn policy() -> Policy {
    let bytes = POLICY.as_bytes().to_vec();
    parse_policy(&[DropIn {
        path: "policy".into(),
        bytes,
    }])
    .unwrap()
}

/// Compares with the stored survey. To store another on purpose, run the test with
/// `REPAVE_GOLDEN=write` and read the difference.
fn assert_golden(name: &str, survey: &Survey) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("src/golden")
        .join(name);
    let text = serde_json::to_string_pretty(survey).unwrap() + "\n";
    if std::env::var_os("REPAVE_GOLDEN").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let stored = fs::read_to_string(&path).unwrap();
    for (at, (found, expected)) in text.lines().zip(stored.lines()).enumerate() {
        assert_eq!(found, expected, "{name}:{}", at + 1);
    }
    assert_eq!(text, stored);
}

#[test]
fn a_worker_gives_exactly_this_survey() {
    let survey = Worker::new().survey(Some(&policy()), Detail::Full).unwrap();
    assert_golden("worker.survey.json", &survey);
    assert_eq!(survey.unknown, Vec::<String>::new());
    let back: Survey = serde_json::from_str(&serde_json::to_string(&survey).unwrap()).unwrap();
    assert_eq!(back, survey);
}

#[test]
fn the_bound_survey_has_disks_ids_and_names_only() {
    let survey = Worker::new().survey(None, Detail::Bound).unwrap();
    let full = Worker::new().survey(Some(&policy()), Detail::Full).unwrap();
    assert_eq!(survey.disks, full.disks);
    assert_eq!(survey.containerd, None);
    assert_eq!(survey.host.unwrap().zfs_tools, None);
    let pool = &survey.pools[0];
    assert_eq!(
        (pool.name.as_str(), pool.guid),
        ("tank", full.pools[0].guid)
    );
    assert!(pool.datasets.is_empty() && pool.properties.is_empty() && pool.leaves.is_empty());
}

#[test]
fn without_the_module_no_zfs_program_is_started() {
    let mut worker = Worker::new();
    worker.remove("sys/module/zfs/version");
    fs::remove_dir(worker.dir.path().join("sys/module/zfs")).unwrap();
    // Every question fails now: one that is asked all the same ends the survey, or
    // leaves a line in `unknown`.
    worker.answers.clear();
    for detail in [Detail::Full, Detail::Bound] {
        let survey = worker.survey(Some(&policy()), detail).unwrap();
        assert_eq!(survey.pools, []);
        assert_eq!(survey.unknown, Vec::<String>::new());
        let host = survey.host.unwrap();
        assert_eq!((host.zfs_tools, host.zfs_module), (None, None));
    }
}

#[test]
fn the_pool_of_the_matter_must_answer_and_others_need_not() {
    let mut worker = Worker::new();
    worker
        .answers
        .remove("/usr/sbin/zpool status -g back up")
        .unwrap();
    let survey = worker.survey(Some(&policy()), Detail::Full).unwrap();
    assert_eq!(survey.pools.len(), 2);
    assert!(survey.unknown[0].starts_with("pool back up: /usr/sbin/zpool status -g"));

    let mut worker = Worker::new();
    worker
        .answers
        .remove("/usr/sbin/zpool status -g tank")
        .unwrap();
    let error = worker.survey(Some(&policy()), Detail::Full).unwrap_err();
    assert!(
        error.starts_with("survey the pools: /usr/sbin/zpool status -g tank ended"),
        "{error}"
    );

    // A row that is not understood is the survey's end, not a pool less.
    let mut worker = Worker::new();
    let list = "/usr/sbin/zpool list -Hp -o name,guid,health,size,allocated";
    worker
        .answers
        .insert(list.to_owned(), "tank\tx\tONLINE\t1\t1\n".to_owned());
    let error = worker.survey(Some(&policy()), Detail::Full).unwrap_err();
    assert!(
        error.contains("understand line 1 of `zpool list`, no guid"),
        "{error}"
    );
}

#[test]
fn the_module_without_its_tools_is_an_error() {
    let worker = Worker::new();
    worker.remove("usr/sbin/zfs");
    let error = worker.survey(None, Detail::Bound).unwrap_err();
    assert!(
        error.contains("find zfs although the zfs module is loaded"),
        "{error}"
    );
}

#[test]
fn a_disk_that_cannot_be_read_is_noted() {
    let worker = Worker::new();
    worker.remove("dev/vda");
    let survey = worker.survey(Some(&policy()), Detail::Full).unwrap();
    assert!(matches!(
        survey.disks[0].table,
        TableFound::Unreadable { .. }
    ));
    assert_eq!(survey.disks[0].partitions, []);
    assert!(
        survey.unknown[0].starts_with("disk vda: find /dev/vda"),
        "{:?}",
        survey.unknown
    );
}

#[test]
fn uses_of_partitions_and_disks_are_seen() {
    let worker = Worker::new();
    worker.write("sys/class/block/vda/vda4/holders/dm-0", "");
    worker.write("sys/class/block/vda/holders/md127", "");
    worker.write("sys/class/block/loop3/loop/backing_file", "/dev/vda4\n");
    worker.write("sys/class/block/loop3/dev", "7:3\n");
    worker.write("dev/vda4", "");
    worker.write("proc/swaps", "Filename Type\n/dev/vda4 partition 1 0 -2\n");
    let survey = worker.survey(Some(&policy()), Detail::Full).unwrap();
    let disk = &survey.disks[0];
    assert_eq!(
        disk.uses,
        [Use::Holder {
            name: "md127".into()
        }]
    );
    let dead = disk.partition(PartNo(4)).unwrap();
    assert_eq!(
        dead.uses,
        [
            Use::Holder {
                name: "dm-0".into()
            },
            Use::Swap,
            Use::Loop {
                name: "loop3".into()
            },
        ]
    );
}

#[test]
fn a_btrfs_mount_is_found_by_its_source() {
    let worker = Worker::new();
    let line = "90 27 0:70 / /data rw - btrfs /dev/disk/by-label/data rw\n";
    let path = worker.dir.path().join("proc/1/mountinfo");
    let mounts = fs::read_to_string(&path).unwrap() + line;
    fs::write(&path, mounts).unwrap();
    worker.write("dev/vda4", "");
    fs::create_dir_all(worker.dir.path().join("dev/disk/by-label")).unwrap();
    let link = worker.dir.path().join("dev/disk/by-label/data");
    std::os::unix::fs::symlink("../../vda4", link).unwrap();
    let survey = worker.survey(Some(&policy()), Detail::Full).unwrap();
    let dead = survey.disks[0].partition(PartNo(4)).unwrap();
    assert_eq!(dead.uses, [Use::Mount { at: "/data".into() }]);
}

#[test]
fn an_image_is_surveyed_with_either_block_size() {
    let dir = tempfile::tempdir().unwrap();
    for block in [512, 4096] {
        let path = dir.path().join("image");
        write_disk(&path, u64::from(block));
        let survey = read_image_survey(&path, BlockSize(block), NOW).unwrap();
        assert_eq!(survey.unknown, Vec::<String>::new());
        let disk = &survey.disks[0];
        let pool = disk.partition(PartNo(3)).unwrap();
        assert_eq!(pool.extent.offset(disk.block), Bytes(41 * MIB));
        assert_eq!(pool.labels.len(), 1);
        assert_eq!(pool.labels[0].places, [0, 1, 2, 3]);
        assert!(pool.labels[0].checksum_ok);
        assert_eq!(pool.kernel, None);
        let array_end = 2 + 16384 / u64::from(block);
        assert_eq!(disk.zero_runs.len(), 1);
        assert_eq!(disk.zero_runs[0].first.0, array_end);
        assert_eq!(disk.zero_runs[0].last.0, MIB / u64::from(block) - 1);
        assert_eq!(disk.stale.len(), 1);
        assert_eq!(disk.stale[0].offset, Bytes(DISK - 512 * 1024));
        // With the other block size it is no GPT.
        let other = read_image_survey(&path, BlockSize(4096 + 512 - block), NOW).unwrap();
        assert_eq!(other.disks[0].table, TableFound::None);
    }
    assert!(read_image_survey(&dir.path().join("none"), BlockSize(512), NOW).is_err());
}

#[test]
fn a_broken_table_is_kept_and_shows_no_partitions() {
    let worker = Worker::new();
    let file = fs::OpenOptions::new()
        .write(true)
        .open(worker.dir.path().join("dev/vda"))
        .unwrap();
    file.write_all_at(&[0x00], 1024 + 40).unwrap();
    let survey = worker.survey(Some(&policy()), Detail::Full).unwrap();
    assert!(matches!(survey.disks[0].table, TableFound::Gpt { .. }));
    assert_eq!(survey.disks[0].partitions, []);
    assert!(
        survey.unknown[0].starts_with("the partition table of vda: "),
        "{:?}",
        survey.unknown
    );
    // The labels are still found, by the kernel's idea of the partitions.
    assert!(survey.disks[0].stale.len() > 4);
}
