//! Surveys of made-up workers: a partition table that is real to the last byte, and
//! around it what a survey would have seen. Sizes are those of the reference worker:
//! 457.8 GiB, of it 143 GiB of pool and 288.8 GiB of dead partition.

use std::collections::BTreeMap;

use repave_plan::survey::{
    Containerd, Dataset, DatasetKind, Disk, Host, LabelFact, Partition, PathFacts, Pool, Property,
    SignatureFact, Survey, TableFound,
};
use repave_plan::table::{TableImage, crc32};
use repave_plan::units::{
    BlockSize, Bytes, DatasetGuid, Extent, Guid, Lba, MIB, PartNo, PoolGuid, UnixTime, VdevGuid,
};

pub const DISK_SIZE: u64 = 491_555_815_424;
pub const POOL_GUID: PoolGuid = PoolGuid(11_111_111_111_111_111_111);
pub const VDEV_GUID: VdevGuid = VdevGuid(2_222_222_222_222_222_222);
pub const EFI: &str = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b";
pub const LINUX: &str = "0fc63daf-8483-4772-8e79-3d69d8477de4";
pub const ZFS: &str = "6a898cc3-1dd2-11b2-99a6-080020736631";
pub const SNAPSHOTTER_DIR: &str =
    "/var/lib/rancher/k3s/agent/containerd/io.containerd.snapshotter.v1.zfs";

/// The policy of the reference cluster.
pub const POLICY: &str = r#"version = 1
mode = "recreate"

[disk]
pool = "tank"

[pool]
partition_label = "tank"

[[remove]]
label = "mayastor"
type = "0fc63daf-8483-4772-8e79-3d69d8477de4"
contains = "no-filesystem"

[[datasets]]
name = "tank/containerd"

[[datasets]]
name = "tank/localpv"
set = { compression = "zstd" }
"#;

/// A partition to build: number, name, type, first MiB and first MiB behind it; no
/// end means the last usable block.
#[derive(Debug, Clone)]
pub struct Part {
    pub number: u32,
    pub name: &'static str,
    pub kind: &'static str,
    pub mib: u64,
    pub end: Option<u64>,
}

pub fn part(number: u32, name: &'static str, kind: &'static str, mib: u64, end: u64) -> Part {
    Part {
        number,
        name,
        kind,
        mib,
        end: Some(end),
    }
}

fn tail(number: u32, name: &'static str, kind: &'static str, mib: u64) -> Part {
    Part {
        end: None,
        ..part(number, name, kind, mib, 0)
    }
}

/// The pool, and behind it the dead partition.
pub fn tank_first() -> Vec<Part> {
    vec![
        part(1, "EFI", EFI, 1, 513),
        part(2, "boot", LINUX, 513, 1537),
        part(3, "root", LINUX, 1537, 26_625),
        part(4, "tank", ZFS, 26_625, 173_057),
        tail(5, "mayastor", LINUX, 173_057),
    ]
}

/// The dead partition, and behind it the pool.
pub fn dead_first() -> Vec<Part> {
    vec![
        part(1, "EFI", EFI, 1, 513),
        part(2, "boot", LINUX, 513, 1537),
        part(3, "root", LINUX, 1537, 26_625),
        part(4, "mayastor", LINUX, 26_625, 322_356),
        tail(5, "tank", ZFS, 322_356),
    ]
}

/// Builds the disk, and the survey of a worker with it.
pub struct Worker {
    pub block: u32,
    pub size: u64,
    /// The size the table was made for; smaller where the disk has grown.
    pub made_for: u64,
    pub parts: Vec<Part>,
    pub disk_guid: Guid,
}

impl Worker {
    pub fn new(block: u32, parts: Vec<Part>) -> Worker {
        Worker {
            disk_guid: guid("d15c0000-0000-4000-8000-000000000001"),
            block,
            size: DISK_SIZE,
            made_for: DISK_SIZE,
            parts,
        }
    }

    fn array_blocks(&self) -> u64 {
        128 * 128 / u64::from(self.block)
    }

    fn extent(&self, part: &Part) -> Extent {
        let per_mib = MIB / u64::from(self.block);
        let last_usable = self.made_for / u64::from(self.block) - 2 - self.array_blocks();
        Extent {
            first: Lba(part.mib * per_mib),
            last: Lba(part.end.map_or(last_usable, |end| end * per_mib - 1)),
        }
    }

    pub fn image(&self) -> TableImage {
        let block = self.block as usize;
        let array_blocks = self.array_blocks() as usize;
        let last = self.made_for / u64::from(self.block) - 1;
        let mut array = vec![0u8; 128 * 128];
        for part in &self.parts {
            let extent = self.extent(part);
            let slot = &mut array[(part.number as usize - 1) * 128..][..128];
            slot[0..16].copy_from_slice(&guid(part.kind).0);
            slot[16..32].copy_from_slice(&part_guid(part.number).0);
            slot[32..40].copy_from_slice(&extent.first.0.to_le_bytes());
            slot[40..48].copy_from_slice(&extent.last.0.to_le_bytes());
            for (at, unit) in part.name.encode_utf16().enumerate() {
                slot[56 + at * 2..58 + at * 2].copy_from_slice(&unit.to_le_bytes());
            }
        }
        let header = |own: u64, other: u64, array_lba: u64| {
            let mut h = vec![0u8; block];
            h[0..8].copy_from_slice(b"EFI PART");
            h[8..12].copy_from_slice(&0x0001_0000u32.to_le_bytes());
            h[12..16].copy_from_slice(&92u32.to_le_bytes());
            h[24..32].copy_from_slice(&own.to_le_bytes());
            h[32..40].copy_from_slice(&other.to_le_bytes());
            h[40..48].copy_from_slice(&(2 + array_blocks as u64).to_le_bytes());
            h[48..56].copy_from_slice(&(last - array_blocks as u64 - 1).to_le_bytes());
            h[56..72].copy_from_slice(&self.disk_guid.0);
            h[72..80].copy_from_slice(&array_lba.to_le_bytes());
            h[80..84].copy_from_slice(&128u32.to_le_bytes());
            h[84..88].copy_from_slice(&128u32.to_le_bytes());
            h[88..92].copy_from_slice(&crc32(&array).to_le_bytes());
            let crc = crc32(&h[..92]);
            h[16..20].copy_from_slice(&crc.to_le_bytes());
            h
        };
        let mut mbr = vec![0u8; block];
        mbr[446 + 4] = 0xee;
        mbr[446 + 8..446 + 12].copy_from_slice(&1u32.to_le_bytes());
        mbr[446 + 12..446 + 16].copy_from_slice(&u32::try_from(last).unwrap().to_le_bytes());
        mbr[510..512].copy_from_slice(&[0x55, 0xaa]);
        let backup_array = last - array_blocks as u64;
        TableImage {
            block: BlockSize(self.block),
            disk_blocks: self.size / u64::from(self.block),
            head: [mbr, header(1, last, 2), array.clone()].concat(),
            tail_first: Lba(backup_array),
            tail: [array.clone(), header(last, 1, backup_array)].concat(),
        }
    }

    pub fn disk(&self) -> Disk {
        let partitions = self.parts.iter().map(|part| {
            let extent = self.extent(part);
            let signature = match part.name {
                "EFI" => signature("vfat", extent, self.block, 0x36, "4641543136202020"),
                "boot" | "root" => signature("ext4", extent, self.block, 0x438, "53ef"),
                _ => Vec::new(),
            };
            Partition {
                number: PartNo(part.number),
                extent,
                type_guid: guid(part.kind),
                guid: part_guid(part.number),
                name: part.name.to_owned(),
                labels: match part.name {
                    "tank" => vec![label("tank", POOL_GUID, VDEV_GUID)],
                    _ => Vec::new(),
                },
                remnants: Vec::new(),
                signatures: signature,
                kernel: Some(extent),
                uses: Vec::new(),
            }
        });
        Disk {
            name: "nvme0n1".to_owned(),
            node: "/dev/nvme0n1".to_owned(),
            serial: Some("S5H9NS0N900001".to_owned()),
            wwn: Some("eui.0025385900000001".to_owned()),
            size: Bytes(self.size),
            block: BlockSize(self.block),
            read_only: false,
            table: TableFound::Gpt {
                image: self.image(),
            },
            zero_runs: vec![Extent {
                first: Lba(2 + self.array_blocks()),
                last: Lba(MIB / u64::from(self.block) - 1),
            }],
            partitions: partitions.collect(),
            stale: Vec::new(),
            uses: Vec::new(),
        }
    }

    pub fn survey(&self) -> Survey {
        Survey {
            version: 1,
            taken: UnixTime(1_796_000_000),
            host: Some(host()),
            disks: vec![self.disk()],
            pools: vec![pool()],
            containerd: Some(containerd()),
            unknown: Vec::new(),
        }
    }
}

/// The reference worker.
pub fn worker() -> Survey {
    Worker::new(512, tank_first()).survey()
}

pub fn guid(text: &str) -> Guid {
    text.parse().unwrap()
}

pub fn part_guid(number: u32) -> Guid {
    guid(&format!(
        "9a47{number:04}-0000-4000-8000-00000000000{}",
        number % 10
    ))
}

pub fn label(pool: &str, pool_guid: PoolGuid, vdev_guid: VdevGuid) -> LabelFact {
    LabelFact {
        places: vec![0, 1, 2, 3],
        pool: Some(pool.to_owned()),
        pool_guid: Some(pool_guid),
        vdev_guid,
        state: 0,
        txg: 4242,
        ashift: Some(12),
        leaves: 1,
        top_level: 1,
        checksum_ok: true,
    }
}

fn signature(kind: &str, part: Extent, block: u32, at: u64, magic: &str) -> Vec<SignatureFact> {
    vec![SignatureFact {
        kind: kind.to_owned(),
        offset: Bytes(part.offset(BlockSize(block)).0 + at),
        magic: magic.to_owned(),
    }]
}

pub fn host() -> Host {
    Host {
        machine_id: "0123456789abcdef0123456789abcdef".parse().unwrap(),
        boot_id: "b0071d00000000000000000000000001".parse().unwrap(),
        hostname: "worker-1".to_owned(),
        kernel: "6.12.0".to_owned(),
        state_dir: path("/var/lib/repave", "/", "ext4", "/dev/nvme0n1p3"),
        image: None,
        zfs_tools: Some("2.3.2".to_owned()),
        zfs_module: Some("2.3.2".to_owned()),
        programs: [
            ("modprobe", "/usr/sbin"),
            ("zfs", "/usr/sbin"),
            ("zpool", "/usr/sbin"),
        ]
        .map(|(name, dir)| (name.to_owned(), format!("{dir}/{name}")))
        .into(),
        starters: vec!["k3s-agent.service".to_owned()],
        selinux: false,
        required_pool_mounts: Vec::new(),
    }
}

pub fn path(path: &str, mount_point: &str, fs_type: &str, source: &str) -> PathFacts {
    PathFacts {
        path: path.to_owned(),
        exists: true,
        mount_point: mount_point.to_owned(),
        fs_type: fs_type.to_owned(),
        source: source.to_owned(),
        free: Bytes(8 << 30),
        read_only: false,
    }
}

pub fn containerd() -> Containerd {
    Containerd {
        found_by: "/var/lib/rancher/k3s/agent/etc/containerd/config.toml".to_owned(),
        root: path(
            "/var/lib/rancher/k3s/agent/containerd",
            "/",
            "ext4",
            "/dev/nvme0n1p3",
        ),
        snapshotter: "zfs".to_owned(),
        snapshotter_dir: path(SNAPSHOTTER_DIR, SNAPSHOTTER_DIR, "zfs", "tank/containerd"),
        database: true,
    }
}

pub fn property(value: &str, source: &str) -> Property {
    Property {
        value: value.to_owned(),
        source: source.to_owned(),
    }
}

pub fn pool() -> Pool {
    let mut properties: BTreeMap<String, Property> = BTreeMap::new();
    for (name, value, source) in [
        ("ashift", "12", "local"),
        ("autoexpand", "off", "default"),
        ("autotrim", "on", "local"),
        ("cachefile", "-", "default"),
        ("compatibility", "off", "default"),
        ("failmode", "wait", "default"),
        ("feature@async_destroy", "enabled", "local"),
        ("feature@block_cloning", "disabled", "local"),
        ("feature@lz4_compress", "active", "local"),
        ("feature@zstd_compress", "active", "local"),
        ("size", "152471339008", "-"),
    ] {
        properties.insert(name.to_owned(), property(value, source));
    }
    let skeleton = |name: &str, guid: u64, local: &[(&str, &str)]| {
        let created = [
            ("casesensitivity", "sensitive"),
            ("normalization", "none"),
            ("utf8only", "off"),
        ];
        let created = created.map(|(n, v)| (n.to_owned(), property(v, "-")));
        let local = local
            .iter()
            .map(|(n, v)| ((*n).to_owned(), property(v, "local")));
        Dataset {
            properties: created.into_iter().chain(local).collect(),
            ..dataset(name, guid, DatasetKind::Filesystem, 0)
        }
    };
    let volume = |name: &str, guid| dataset(name, guid, DatasetKind::Volume, 12);
    let layer = |name: &str, guid| dataset(name, guid, DatasetKind::Filesystem, 2);
    Pool {
        name: "tank".parse().unwrap(),
        guid: POOL_GUID,
        health: "ONLINE".to_owned(),
        size: Bytes(152_471_339_008),
        allocated: Bytes(52 << 30),
        leaves: vec![VDEV_GUID],
        properties,
        datasets: vec![
            skeleton("tank", 1, &[("compression", "lz4"), ("mountpoint", "none")]),
            skeleton(
                "tank/containerd",
                2,
                &[("atime", "off"), ("mountpoint", SNAPSHOTTER_DIR)],
            ),
            layer("tank/containerd/1", 21),
            layer("tank/containerd/2", 22),
            layer("tank/containerd/3", 23),
            skeleton(
                "tank/localpv",
                3,
                &[("com.example:owner", "storage"), ("compression", "lz4")],
            ),
            volume("tank/localpv/pvc-0a", 31),
            volume("tank/localpv/pvc-0b", 32),
        ],
    }
}

fn dataset(name: &str, guid: u64, kind: DatasetKind, gib: u64) -> Dataset {
    Dataset {
        name: name.parse().unwrap(),
        guid: DatasetGuid(guid),
        kind,
        used: Bytes(gib << 30),
        properties: BTreeMap::new(),
        mounted_at: None,
        unsupported: Vec::new(),
    }
}

/// The dataset of this name in the survey's only pool.
pub fn dataset_mut<'a>(survey: &'a mut Survey, name: &str) -> &'a mut Dataset {
    let mut all = survey.pools[0].datasets.iter_mut();
    all.find(|d| d.name.as_str() == name).unwrap()
}

/// The partition of this name on the survey's first disk.
pub fn part_mut<'a>(survey: &'a mut Survey, name: &str) -> &'a mut Partition {
    let mut all = survey.disks[0].partitions.iter_mut();
    all.find(|p| p.name == name).unwrap()
}

/// The survey as JSON, changed, and read again: proof that what a row of a table
/// changes is a field that is stored.
pub fn edited(survey: &Survey, pointer: &str, value: serde_json::Value) -> Survey {
    let mut json = serde_json::to_value(survey).unwrap();
    let place = json.pointer_mut(pointer);
    let Some(place) = place else {
        panic!("{pointer} is no place in a survey")
    };
    assert_ne!(*place, value, "{pointer} has that value already");
    *place = value;
    serde_json::from_value(json).unwrap()
}
