//! The types of stage *survey*: everything that was seen, as facts.
//!
//! The `survey` crate fills them in, in the agent and again at boot; the planner and
//! the boot program read them. Mounts, holders and imports are *states*: they are
//! seen here and judged when they matter. Names of devices are noted for people and
//! never used to find a device again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::table::TableImage;
use crate::units::{
    BlockSize, BootId, Bytes, DatasetGuid, DatasetName, Digest, Extent, Guid, MachineId, PartNo,
    PoolGuid, PoolName, UnixTime, VdevGuid,
};

/// The version of the survey format that this program writes and reads.
pub const VERSION: u32 = 1;

/// Everything that was seen of one machine (or of one image file).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Survey {
    /// The format's version: 1.
    pub version: u32,
    /// When it was made.
    pub taken: UnixTime,
    /// The machine; absent when an image file was surveyed.
    pub host: Option<Host>,
    /// Every disk that could be read.
    pub disks: Vec<Disk>,
    /// Every imported pool.
    pub pools: Vec<Pool>,
    /// containerd's place, when one was found.
    pub containerd: Option<Containerd>,
    /// What could not be seen, each with its reason: printed with every plan.
    pub unknown: Vec<String>,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// `/etc/machine-id`.
    pub machine_id: MachineId,
    /// The id of the running boot.
    pub boot_id: BootId,
    /// The host's name, for people.
    pub hostname: String,
    /// The kernel's release, for people.
    pub kernel: String,
    /// The file system under the state directory.
    pub state_dir: PathFacts,
    /// The booted and staged image, on a bootc host.
    pub image: Option<Image>,
    /// Version of the `zpool` program, when it could be asked.
    pub zfs_tools: Option<String>,
    /// Version of the loaded zfs module, when it is loaded.
    pub zfs_module: Option<String>,
    /// Absolute paths of the programs that the boot run starts.
    pub programs: BTreeMap<String, String>,
    /// Units found on this host that start containers.
    pub starters: Vec<String>,
    /// Whether SELinux is enabled.
    pub selinux: bool,
    /// Mount points below which a pool is mounted and that local-fs.target requires.
    pub required_pool_mounts: Vec<String>,
}

/// A path and the file system it lies on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathFacts {
    /// The path as it was asked for.
    pub path: String,
    /// Whether the path itself exists.
    pub exists: bool,
    /// The mount it lies on.
    pub mount_point: String,
    /// The file system's type.
    pub fs_type: String,
    /// The device or dataset that is mounted there.
    pub source: String,
    /// Bytes an ordinary write may still use.
    pub free: Bytes,
    /// Whether the mount is read-only.
    pub read_only: bool,
}

/// File systems that are there again after a reboot and need neither pool nor network:
/// the only ones that may carry the state directory.
pub const PLAIN_FILE_SYSTEMS: [&str; 6] = ["btrfs", "ext2", "ext3", "ext4", "f2fs", "xfs"];

/// What `bootc status` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// The digest of the booted image.
    pub booted: Option<Digest>,
    /// The digest of the staged image.
    pub staged: Option<Digest>,
}

/// A disk and all that is on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// The kernel's name for it now (`nvme0n1`) or the image's path. For people.
    pub name: String,
    /// The node to open it by now. Never stored beyond this boot.
    pub node: String,
    /// Serial number, as sysfs or udev gives it.
    pub serial: Option<String>,
    /// World wide name.
    pub wwn: Option<String>,
    /// Size in bytes.
    pub size: Bytes,
    /// Logical block size.
    pub block: BlockSize,
    /// Whether the kernel refuses writes to it.
    pub read_only: bool,
    /// Its partition table.
    pub table: TableFound,
    /// Runs of zeroed blocks in front of the first partition, behind the entry array.
    pub zero_runs: Vec<Extent>,
    /// Its partitions, by number.
    pub partitions: Vec<Partition>,
    /// Labels and remnants of vdevs that do not match any partition as it is now.
    pub stale: Vec<StaleLabel>,
    /// What uses the disk as a whole (dm, md, multipath, a mount without a table).
    pub uses: Vec<Use>,
}

/// What was found where a partition table should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum TableFound {
    /// Bytes that begin like a GPT; the planner parses them strictly.
    Gpt {
        /// Both copies as they stand on the disk.
        image: TableImage,
    },
    /// No GPT.
    None,
    /// It could not be read.
    Unreadable {
        /// Why, with the errno's name.
        why: String,
    },
}

/// A partition, as table, content and kernel show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partition {
    /// Its number.
    pub number: PartNo,
    /// Its place.
    pub extent: Extent,
    /// Its type.
    pub type_guid: Guid,
    /// Its own GUID (PARTUUID).
    pub guid: Guid,
    /// Its name; bytes that are not UTF-16 are replaced, for people.
    pub name: String,
    /// ZFS labels found in its four places.
    pub labels: Vec<LabelFact>,
    /// Label places that hold uberblocks and no label.
    pub remnants: Vec<u8>,
    /// Other signatures found in it.
    pub signatures: Vec<SignatureFact>,
    /// The kernel's idea of its place; absent when the kernel does not know it.
    pub kernel: Option<Extent>,
    /// What uses it now.
    pub uses: Vec<Use>,
}

/// A vdev's labels, as far as they agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelFact {
    /// The label places (0 to 3) that hold it.
    pub places: Vec<u8>,
    /// The pool's name; spare and cache labels have none.
    pub pool: Option<String>,
    /// The pool's guid; spare and cache labels have none.
    pub pool_guid: Option<PoolGuid>,
    /// The guid of this vdev.
    pub vdev_guid: VdevGuid,
    /// 0 active, 1 exported, 2 destroyed, 3 spare, 4 cache (OpenZFS
    /// `include/sys/fs/zfs.h`, `pool_state_t`).
    pub state: u64,
    /// The newest transaction group among the places; 0 while the pool is being made.
    pub txg: u64,
    /// log2 of the sector size, when the label says it.
    pub ashift: Option<u64>,
    /// Leaf vdevs of the top-level vdev this label belongs to.
    pub leaves: u32,
    /// Top-level vdevs of the pool.
    pub top_level: u64,
    /// Whether every place's checksum is right.
    pub checksum_ok: bool,
}

/// A label of an earlier geometry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StaleLabel {
    /// Offset of the label from the start of the disk, in bytes.
    pub offset: Bytes,
    /// The pool it names.
    pub pool: Option<String>,
    /// The pool's guid.
    pub pool_guid: Option<PoolGuid>,
    /// The vdev's guid; absent for a remnant.
    pub vdev_guid: Option<VdevGuid>,
}

/// A signature of a file system, volume manager or the like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignatureFact {
    /// As blkid names it (`ext4`, `crypto_LUKS`, `LVM2_member`).
    pub kind: String,
    /// Offset of its magic from the start of the disk, in bytes.
    pub offset: Bytes,
    /// The magic bytes, in hexadecimal.
    pub magic: String,
}

/// Something that uses a disk or a partition now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "use", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Use {
    /// It is mounted.
    Mount {
        /// Where.
        at: String,
    },
    /// It is a swap area.
    Swap,
    /// A device stands on it (dm, md, multipath, bcache).
    Holder {
        /// The holder's kernel name.
        name: String,
    },
    /// A loop device is backed by it.
    Loop {
        /// The loop device.
        name: String,
    },
}

/// An imported pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Its name.
    pub name: PoolName,
    /// Its guid.
    pub guid: PoolGuid,
    /// `ONLINE` or what else `zpool` says. For people.
    pub health: String,
    /// Its size, for people.
    pub size: Bytes,
    /// Bytes allocated, for people.
    pub allocated: Bytes,
    /// Its leaf vdevs' guids, in the order of `zpool`.
    pub leaves: Vec<VdevGuid>,
    /// Pool properties, every source.
    pub properties: BTreeMap<String, Property>,
    /// Its datasets, parents first.
    pub datasets: Vec<Dataset>,
}

/// A property and where its value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Property {
    /// The exact value (`-p`).
    pub value: String,
    /// `local`, `default`, `received`, `-`, or `inherited from …`.
    pub source: String,
}

/// A file system or volume of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dataset {
    /// Its full name.
    pub name: DatasetName,
    /// Its guid.
    pub guid: DatasetGuid,
    /// `filesystem` or `volume`.
    pub kind: DatasetKind,
    /// Bytes it and its children use, for people.
    pub used: Bytes,
    /// Local, received and creation-only properties. Empty for a dataset that no
    /// policy wants to keep: reading thousands of them would only cost time.
    pub properties: BTreeMap<String, Property>,
    /// Where it is mounted now.
    pub mounted_at: Option<String>,
    /// What a recipe cannot carry over: `encryption`, `delegation`, `user-quota`.
    pub unsupported: Vec<String>,
}

/// What a dataset is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DatasetKind {
    /// A file system.
    Filesystem,
    /// A volume (zvol).
    Volume,
}

/// Where containerd keeps its things.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Containerd {
    /// The configuration file that says so, or how else it was found.
    pub found_by: String,
    /// Its root directory and the file system under it.
    pub root: PathFacts,
    /// The snapshotter that is configured for CRI.
    pub snapshotter: String,
    /// The snapshotter's own directory and the file system under it.
    pub snapshotter_dir: PathFacts,
    /// Whether the metadata database is there.
    pub database: bool,
}

impl Survey {
    /// The imported pool of this name.
    pub fn pool(&self, name: &PoolName) -> Option<&Pool> {
        self.pools.iter().find(|pool| &pool.name == name)
    }
}

impl Disk {
    /// The partition of this number.
    pub fn partition(&self, number: PartNo) -> Option<&Partition> {
        self.partitions.iter().find(|part| part.number == number)
    }
}
