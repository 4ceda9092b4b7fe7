//! A worker in memory: the [`Host`] that the tests share.
//!
//! Files, a disk with a volatile cache, the kernel's partitions, ZFS and containerd, as
//! far as the boot run can tell them from real ones, and the list of all calls. Every
//! call is an effect with a number; the power can be cut at any of them, and
//! [`ModelHost::boot`] starts the machine again with what is durable. It never touches
//! the machine it runs on.

mod disk;
mod label;
mod units;
mod zfs;

use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use repave_containerd_clear::ClearRequest;
use repave_plan::report::Cleared;
use repave_plan::step::StepState;
use repave_plan::survey::{self, PathFacts, Survey, Use};
use repave_plan::units::{BadValue, BlockSize, Bytes, Digest, UnixTime};
use repave_survey::block::BlockDisk;
use repave_survey::block_io::BlockRead;
use repave_survey::disk::read_disk;
use repave_survey::host_tools::ToolOutput;

use crate::host::{Host, HostError, LockedDisk};
use crate::kernel_table::Held;
use crate::model_disk::ModelDisk;
pub use zfs::{Imported, PoolData, ZfsWorld};

/// The disk's node.
pub const NODE: &str = "/dev/vda";
/// Where the kernel tells the id of its boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Where a loaded zfs module tells its version.
const MODULE: &str = "/sys/module/zfs/version";
/// Where it lists the features that it knows.
const FEATURES: &str = "/sys/module/zfs/features.pool";

/// What a power cut leaves of the effect it hits and of writes that were not flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Nothing.
    Lost,
    /// All of it.
    Kept,
    /// Half of the effect; of the writes a choice of blocks that the number decides.
    Torn(u64),
}

/// How much of an effect takes place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    Half,
}

/// What containerd has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Containerd {
    /// Its database lists snapshots that are gone with the pool.
    pub lists_lost: bool,
    /// The lost snapshotter's tree is moved aside.
    pub moved: bool,
}

/// Everything of the machine.
#[derive(Debug, Clone)]
pub struct World {
    /// The disk as it reads now.
    pub disk: ModelDisk,
    durable: ModelDisk,
    pending: Vec<(u64, Vec<u8>)>,
    /// Files; each write of the boot run is durable when it returns.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
    /// Files of the kernel: gone at the next boot.
    pub runtime: BTreeMap<PathBuf, Vec<u8>>,
    /// The kernel's partitions.
    pub kernel: Vec<Held>,
    /// udev's links.
    pub links: BTreeMap<String, Held>,
    /// How often the kernel says that a partition is busy.
    pub busy: BTreeMap<u32, u32>,
    /// How often a busy partition is asked for again.
    pub patience: u32,
    /// What uses a partition (0: the disk).
    pub uses: BTreeMap<u32, Vec<Use>>,
    /// ZFS.
    pub zfs: ZfsWorld,
    /// containerd.
    pub containerd: Containerd,
    /// The clock.
    pub clock: u64,
    /// How often it was booted.
    pub boots: u64,
    /// The machine.
    pub machine_id: String,
    /// The booted image.
    pub image: Option<Digest>,
    /// File systems under paths; any other path lies on a plain one with room.
    pub places: BTreeMap<String, PathFacts>,
    /// Paths that do not exist.
    pub absent: BTreeSet<String>,
    /// Units that are enabled.
    pub enabled: BTreeSet<String>,
    /// Units that were started.
    pub started: Vec<String>,
    /// Calls that begin like this fail without any effect.
    pub fails: Vec<String>,
    /// Whether the kernel cannot write the cache file, about which it says nothing.
    pub cache_is_deaf: bool,
    /// Every call, in order.
    pub calls: Vec<String>,
    /// What is different at the next effect of this number.
    pub cut: Option<(usize, Cut)>,
    effects: usize,
    dead: bool,
    locked: bool,
    millis: u64,
}

impl World {
    /// A machine with this disk that has just been switched on for the first time.
    pub fn new(disk: ModelDisk) -> World {
        let mut world = World {
            durable: disk.clone(),
            disk,
            pending: Vec::new(),
            files: BTreeMap::new(),
            runtime: BTreeMap::new(),
            kernel: Vec::new(),
            links: BTreeMap::new(),
            busy: BTreeMap::new(),
            patience: 5,
            uses: BTreeMap::new(),
            zfs: ZfsWorld::default(),
            containerd: Containerd {
                lists_lost: true,
                moved: false,
            },
            clock: 1_790_000_000,
            boots: 0,
            machine_id: "0123456789abcdef0123456789abcdef".to_owned(),
            image: None,
            places: BTreeMap::new(),
            absent: BTreeSet::new(),
            enabled: BTreeSet::new(),
            started: Vec::new(),
            fails: Vec::new(),
            cache_is_deaf: false,
            calls: Vec::new(),
            cut: None,
            effects: 0,
            dead: false,
            locked: false,
            millis: 0,
        };
        world.start();
        world
    }

    /// The id of the running boot, as 32 digits.
    pub fn boot_id(&self) -> String {
        format!("{:032x}", 0xb007_0000u64 + self.boots)
    }

    /// How many effects there were since the last boot.
    pub fn effects(&self) -> usize {
        self.effects
    }

    /// Whether the power is off.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// The content that a power cut would leave when the cache is lost.
    pub fn durable(&self) -> &ModelDisk {
        &self.durable
    }

    fn start(&mut self) {
        self.boots += 1;
        self.effects = 0;
        self.dead = false;
        self.locked = false;
        self.cut = None;
        self.calls.clear();
        self.started.clear();
        self.zfs.forget_runtime();
        let (head, tail) = (self.boot_id(), "\n");
        let id = format!(
            "{}-{}-{}-{}-{}{tail}",
            &head[..8],
            &head[8..12],
            &head[12..16],
            &head[16..20],
            &head[20..]
        );
        self.runtime = BTreeMap::from([(PathBuf::from(BOOT_ID), id.into_bytes())]);
        self.read_partitions();
        self.udev();
    }

    /// One effect: counted, listed, and cut when it is its turn.
    fn effect<T>(
        &mut self,
        call: impl Into<String>,
        apply: impl FnOnce(&mut World, Part) -> T,
    ) -> io::Result<T> {
        let off = || io::Error::other("the power is off");
        if self.dead {
            return Err(off());
        }
        let call = call.into();
        let fails = self.fails.iter().any(|start| call.starts_with(start));
        self.calls.push(call);
        let number = self.effects;
        self.effects += 1;
        let cut = self.cut.filter(|(at, _)| *at == number).map(|(_, how)| how);
        self.dead = cut.is_some();
        match cut {
            Some(Cut::Lost) => Err(off()),
            _ if fails => Err(io::Error::other("made to fail")),
            None => Ok(apply(self, Part::Whole)),
            Some(Cut::Kept) => {
                apply(self, Part::Whole);
                Err(off())
            }
            Some(Cut::Torn(_)) => {
                apply(self, Part::Half);
                Err(off())
            }
        }
    }

    fn facts(&self, path: &str) -> PathFacts {
        let plain = PathFacts {
            path: path.to_owned(),
            exists: !self.absent.contains(path),
            mount_point: "/".to_owned(),
            fs_type: "ext4".to_owned(),
            source: "/dev/vda2".to_owned(),
            free: Bytes(1 << 30),
            read_only: false,
        };
        self.places.get(path).cloned().unwrap_or(plain)
    }

    /// What a survey of the bound facts sees.
    fn see(&self) -> Result<Survey, BadValue> {
        let uses = |number: u32| self.uses.get(&number).cloned().unwrap_or_default();
        let block = BlockSize(self.disk.block());
        let size = u64::from(block.0);
        let partitions = self.kernel.iter().map(|part| {
            let first = part.start.0 / size;
            repave_survey::block::BlockPartition {
                number: part.number,
                name: format!("vda{}", part.number.0),
                extent: repave_plan::units::Extent {
                    first: repave_plan::units::Lba(first),
                    last: repave_plan::units::Lba(first + part.len.0 / size - 1),
                },
                uses: uses(part.number.0),
            }
        });
        let seen = BlockDisk {
            name: "vda".to_owned(),
            node: NODE.to_owned(),
            serial: Some("repave-worker-1".to_owned()),
            wwn: None,
            size: Bytes(self.disk.len()),
            block,
            read_only: false,
            uses: uses(0),
            partitions: partitions.collect(),
        };
        let mut unknown = Vec::new();
        let disk = read_disk(&self.disk, seen, &mut unknown);
        Ok(Survey {
            version: survey::VERSION,
            taken: UnixTime(self.clock),
            host: Some(survey::Host {
                machine_id: self.machine_id.parse()?,
                boot_id: self.boot_id().parse()?,
                hostname: "worker-1".to_owned(),
                kernel: "6.12".to_owned(),
                state_dir: self.facts("/var/lib/repave"),
                image: self.image.map(|booted| survey::Image {
                    booted: Some(booted),
                    staged: None,
                }),
                zfs_tools: None,
                zfs_module: None,
                programs: BTreeMap::new(),
                starters: Vec::new(),
                selinux: false,
                required_pool_mounts: Vec::new(),
            }),
            disks: vec![disk],
            pools: Vec::new(),
            containerd: None,
            unknown,
        })
    }
}

/// The machine, shared between the test and the run.
#[derive(Debug, Clone)]
pub struct ModelHost(Rc<RefCell<World>>);

impl ModelHost {
    /// The machine of this world.
    pub fn new(world: World) -> ModelHost {
        ModelHost(Rc::new(RefCell::new(world)))
    }

    /// Its world.
    pub fn world(&self) -> RefMut<'_, World> {
        self.0.borrow_mut()
    }

    /// A copy that shares nothing.
    pub fn copy(&self) -> ModelHost {
        ModelHost::new(self.0.borrow().clone())
    }

    /// Switches it off, in this way, and on again.
    pub fn boot(&self, how: Cut) {
        let mut world = self.world();
        world.settle(how);
        world.start();
    }

    fn does<T>(
        &self,
        what: &'static str,
        path: &Path,
        apply: impl FnOnce(&mut World, Part) -> T,
    ) -> Result<T, HostError> {
        let call = format!("{what} {}", path.display());
        let path = path.display().to_string();
        self.world()
            .effect(call, apply)
            .map_err(|source| HostError::File { what, path, source })
    }
}

impl Host for ModelHost {
    fn now(&self) -> UnixTime {
        let mut world = self.world();
        drop(world.effect("now", |_, _| {}));
        UnixTime(world.clock)
    }

    fn millis(&self) -> u64 {
        let mut world = self.world();
        drop(world.effect("millis", |_, _| {}));
        world.millis += 1;
        world.millis
    }

    fn survey(&self) -> Result<Survey, HostError> {
        let seen = self.does("survey", Path::new(""), |world, _| world.see())?;
        seen.map_err(|error| HostError::File {
            what: "survey",
            path: String::new(),
            source: io::Error::other(error),
        })
    }

    fn path_facts(&self, path: &str) -> Result<PathFacts, HostError> {
        self.does("facts", Path::new(path), |world, _| world.facts(path))
    }

    fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, HostError> {
        self.does("read", path, |world, _| {
            world.runtime.get(path).or(world.files.get(path)).cloned()
        })
    }

    fn list(&self, path: &Path) -> Result<Option<Vec<String>>, HostError> {
        self.does("list", path, |world, _| {
            if path == Path::new(FEATURES) {
                let full = |name: &String| format!("org.openzfs:{name}");
                return Some(world.zfs.features.iter().map(full).collect());
            }
            let below = world.files.keys().filter_map(|file| {
                let first = file.strip_prefix(path).ok()?.components().next()?;
                Some(first.as_os_str().to_string_lossy().into_owned())
            });
            let names: BTreeSet<String> = below.collect();
            (!names.is_empty()).then(|| names.into_iter().collect())
        })
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), HostError> {
        // Written aside and renamed: half of it is nothing.
        self.does("write", path, |world, part| {
            if part == Part::Whole {
                world.files.insert(path.to_owned(), bytes.to_vec());
            }
        })
    }

    fn append(&self, path: &Path, keep: u64, bytes: &[u8]) -> Result<(), HostError> {
        self.does("append", path, |world, part| {
            let file = world.files.entry(path.to_owned()).or_default();
            file.resize(keep as usize, 0);
            file.extend_from_slice(match part {
                Part::Whole => bytes,
                Part::Half => &bytes[..bytes.len() / 2],
            });
        })
    }

    fn remove(&self, path: &Path) -> Result<bool, HostError> {
        self.does("remove", path, |world, part| match part {
            Part::Whole => world.files.remove(path).is_some(),
            Part::Half => false,
        })
    }

    fn open_disk(&self, node: &str) -> Result<Box<dyn LockedDisk>, HostError> {
        let path = Path::new(node);
        let taken = self.does("open", path, |world, _| {
            let taken = world.locked || node != NODE;
            world.locked = true;
            taken
        })?;
        match taken {
            false => Ok(Box::new(disk::Handle(self.0.clone()))),
            true => Err(HostError::Late {
                what: format!("the lock of {node}"),
                seconds: 60,
            }),
        }
    }

    fn run(&self, program: &str, args: &[&str], _: Duration) -> Result<ToolOutput, HostError> {
        let name = program.rsplit('/').next().unwrap_or_default();
        let line = [&[name], args].concat().join(" ");
        let mut world = self.world();
        let output = world
            .effect(format!("run {line}"), |world, part| match part {
                Part::Whole => world.command(name, args),
                Part::Half => Ok(zfs::failed("cut")),
            })
            .and_then(|output| output);
        output.map_err(|source| HostError::File {
            what: "run",
            path: line,
            source,
        })
    }

    fn wait_for(&self, path: &Path, limit: Duration) -> Result<(), HostError> {
        let name = path.display().to_string();
        let there = self.does("wait", path, |world, _| world.links.contains_key(&name))?;
        match there {
            true => Ok(()),
            false => Err(HostError::Late {
                what: name,
                seconds: limit.as_secs(),
            }),
        }
    }

    fn containerd_state(&self, _: &ClearRequest) -> Result<StepState, HostError> {
        self.does("containerd-state", Path::new(""), |world, _| {
            match world.containerd.lists_lost {
                true => StepState::Before,
                false => StepState::After,
            }
        })
    }

    fn containerd_clear(&self, request: &ClearRequest) -> Result<Cleared, HostError> {
        self.does("containerd-clear", &request.root, |world, part| {
            world.containerd.moved = true;
            world.containerd.lists_lost = part == Part::Half;
            let mut cleared = Cleared::default();
            cleared
                .images_kept
                .insert("k8s.io/pause".to_owned(), Bytes(7));
            cleared
        })
    }

    fn say(&self, line: &str) {
        drop(self.world().effect(format!("say {line}"), |_, _| {}));
    }
}
