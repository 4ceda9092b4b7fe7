//! The armed worker that every test begins with, and one boot of it.
//!
//! Its plan is made by the planner from the model's own survey, so that what the boot
//! run gets is what an agent would have sealed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use repave_boot::Attempts;
use repave_boot::cache_file;
use repave_boot::finish::{Finished, finish};
use repave_boot::host::Host;
use repave_boot::model_disk::gpt::GptLayout;
use repave_boot::model_host::{Cut, ModelHost, PoolData, World};
use repave_boot::run::{Ended, run};
use repave_boot::state_dir::{JOURNAL, REPORT, StateDir};
use repave_plan::intent::{Intent, VERSION, seal};
use repave_plan::journal::{Record, parse_journal};
use repave_plan::planner::{bind, plan};
use repave_plan::policy::{
    ContainerdPolicy, Contents, DatasetPolicy, DiskPolicy, Limits, Mode, Policy, PoolPolicy,
    RemovePolicy,
};
use repave_plan::report::{Report, Verdict};
use repave_plan::survey::{Containerd, Dataset, DatasetKind, PathFacts, Pool, Property, Survey};
use repave_plan::units::{Bytes, DatasetGuid, Digest, Guid, PoolGuid, UnixTime, VdevGuid};
use repave_survey::labels::read_labels;

/// The guid of the pool that is given up.
pub const TANK: u64 = 4242;
/// The guid of a pool on another disk, which nobody may lose.
pub const STORE: u64 = 7777;
/// The run.
pub const RUN: &str = "20260101t000000-a";
/// The cache file as the system keeps it.
pub const CACHE: &str = "store\t7777\ntank\t4242\n";
/// The starters that are held back, of which the second is not enabled.
pub const STARTERS: [&str; 2] = ["k3s-agent.service", "docker.service"];

pub struct Worker {
    pub host: ModelHost,
    pub state: StateDir,
    pub intent: Intent,
}

/// A worker that was armed and booted again.
pub fn armed(block: u32) -> Worker {
    armed_with(block, |_| {})
}

/// The same, with another intent.
pub fn armed_with(block: u32, change: impl FnOnce(&mut Intent)) -> Worker {
    let mut layout = GptLayout::worker(block);
    // The gap in front of the first partition is read in every survey: a short one will do.
    layout.parts[0].first = (256 << 10) / u64::from(block);
    let mut world = World::new(layout.build());
    world.zfs.tools = "2.3.9-1".to_owned();
    world.zfs.module = "2.3.9-1".to_owned();
    world.zfs.features = ["async_destroy", "lz4_compress", "zstd_compress"]
        .map(str::to_owned)
        .into();
    world.has_pool("tank", TANK, old_part());
    world.zfs.elsewhere.insert(STORE);
    world.zfs.known.insert(STORE, PoolData::named("store"));
    world.enabled.insert(STARTERS[0].to_owned());
    let host = ModelHost::new(world);
    let state = StateDir::at("/var/lib/repave");
    let mut intent = intent(&host);
    change(&mut intent);
    let worker = Worker {
        host,
        state,
        intent,
    };
    worker.put(cache_file::PATH, CACHE.as_bytes());
    worker.put_intent(&seal(&worker.intent).unwrap());
    worker.host.boot(Cut::Kept);
    worker.host.world().clock += 60;
    worker
}

/// The PARTUUID of the old pool's partition.
pub fn old_part() -> Guid {
    Guid([0x14; 16])
}

fn intent(host: &ModelHost) -> Intent {
    let survey = live_survey(host);
    let policy = policy();
    let plan = plan(&policy, &survey).unwrap();
    let known = survey.host.as_ref().unwrap();
    Intent {
        version: VERSION,
        run_id: RUN.parse().unwrap(),
        approval: Digest::of(b"approved"),
        bound: bind(&policy, &survey).unwrap(),
        plan,
        armed_boot: known.boot_id.clone(),
        armed_at: survey.taken,
        not_after: UnixTime(survey.taken.0 + 3600),
        attempts: 5,
        min_state_free: Bytes(64 << 20),
        programs: known.programs.clone(),
        volumes: Vec::new(),
        starters: STARTERS.map(str::to_owned).into(),
    }
}

fn live_survey(host: &ModelHost) -> Survey {
    let mut survey = host.survey().unwrap();
    let machine = survey.host.as_mut().unwrap();
    machine.programs = ["modprobe", "zfs", "zpool", "udevadm", "systemctl"]
        .map(|name| (name.to_owned(), format!("/usr/sbin/{name}")))
        .into();
    survey.pools = vec![pool()];
    let facts = |path: &str, fs_type: &str, source: &str| PathFacts {
        path: path.to_owned(),
        exists: true,
        mount_point: "/".to_owned(),
        fs_type: fs_type.to_owned(),
        source: source.to_owned(),
        free: Bytes(1 << 30),
        read_only: false,
    };
    survey.containerd = Some(Containerd {
        found_by: "test".to_owned(),
        root: facts("/var/lib/containerd", "ext4", "/dev/vda2"),
        snapshotter: "zfs".to_owned(),
        snapshotter_dir: facts("/var/lib/containerd/snap", "zfs", "tank/containerd"),
        database: true,
    });
    survey
}

fn values(pairs: &[(&str, &str, &str)]) -> BTreeMap<String, Property> {
    pairs
        .iter()
        .map(|(name, value, source)| {
            let property = Property {
                value: (*value).to_owned(),
                source: (*source).to_owned(),
            };
            ((*name).to_owned(), property)
        })
        .collect()
}

fn pool() -> Pool {
    let dataset = |name: &str, guid: u64, own: &[(&str, &str, &str)]| {
        let mut properties = values(&[
            ("casesensitivity", "sensitive", "-"),
            ("normalization", "none", "-"),
            ("utf8only", "off", "-"),
        ]);
        properties.extend(values(own));
        Dataset {
            name: name.parse().unwrap(),
            guid: DatasetGuid(guid),
            kind: DatasetKind::Filesystem,
            used: Bytes(1 << 20),
            properties,
            mounted_at: None,
            unsupported: Vec::new(),
        }
    };
    Pool {
        name: "tank".parse().unwrap(),
        guid: PoolGuid(TANK),
        health: "ONLINE".to_owned(),
        size: Bytes(20 << 20),
        allocated: Bytes(1 << 20),
        leaves: vec![VdevGuid(TANK + 1_000_000)],
        properties: values(&[
            ("ashift", "12", "local"),
            ("autotrim", "on", "local"),
            ("feature@async_destroy", "enabled", "local"),
            ("feature@lz4_compress", "active", "local"),
            ("feature@zstd_compress", "disabled", "local"),
        ]),
        datasets: vec![
            dataset("tank", 1, &[("compression", "lz4", "local")]),
            dataset(
                "tank/containerd",
                2,
                &[("mountpoint", "/var/lib/containerd/snap", "local")],
            ),
            dataset("tank/volumes", 3, &[("canmount", "noauto", "local")]),
        ],
    }
}

fn policy() -> Policy {
    let dataset = |name: &str| DatasetPolicy {
        name: name.parse().unwrap(),
        set: BTreeMap::new(),
    };
    Policy {
        version: 1,
        mode: Mode::Recreate,
        disk: DiskPolicy {
            pool: "tank".parse().unwrap(),
            serial: None,
            wwn: None,
            disk_guid: None,
            relocate_backup: false,
        },
        pool: PoolPolicy {
            partition_label: None,
            partition_type: None,
        },
        remove: vec![RemovePolicy {
            label: "dead".to_owned(),
            type_guid: None,
            contains: Contents::NoFilesystem,
            of_pool: None,
        }],
        datasets: vec![dataset("tank/containerd"), dataset("tank/volumes")],
        containerd: ContainerdPolicy::default(),
        image: None,
        limits: Limits::default(),
    }
}

impl Worker {
    /// A copy that shares nothing with this one.
    pub fn copy(&self) -> Worker {
        Worker {
            host: self.host.copy(),
            state: self.state.clone(),
            intent: self.intent.clone(),
        }
    }

    pub fn put(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        let path = path.as_ref().to_owned();
        self.host.world().files.insert(path, bytes.to_vec());
    }

    /// Puts these bytes where an agent arms and where the run keeps its copy.
    pub fn put_intent(&self, sealed: &[u8]) {
        self.put(self.state.intent(), sealed);
        self.put(self.run_file("intent.json"), sealed);
    }

    pub fn file(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        self.host.world().files.get(path.as_ref()).cloned()
    }

    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.file(path).is_some()
    }

    pub fn run_file(&self, name: &str) -> PathBuf {
        self.state.run_file(&self.intent.run_id, name)
    }

    pub fn run(&self) -> Ended {
        run(&self.host, &self.state, Attempts::Limited).unwrap()
    }

    /// Everything between the boot run and the starters.
    pub fn other_units(&self) {
        let mut world = self.host.world();
        world.import_cache();
        world.mount_all();
        world.late(self.state.path());
    }

    /// One whole boot: as far as the power lasts.
    pub fn boot_through(&self) -> (Option<Ended>, Option<Finished>) {
        let armed = self.has(self.state.intent()) || self.has(self.state.changed());
        let ended = match armed {
            true => run(&self.host, &self.state, Attempts::Limited).ok(),
            false => None,
        };
        if self.host.world().is_dead() {
            return (None, None);
        }
        self.other_units();
        let finished = match self.has(self.state.changed()) {
            true => finish(&self.host, &self.state).ok(),
            false => None,
        };
        match self.host.world().is_dead() {
            true => (None, None),
            false => (ended, finished),
        }
    }

    pub fn calls(&self) -> Vec<String> {
        self.host.world().calls.clone()
    }

    /// Where the first call that begins like this is.
    pub fn call(&self, start: &str) -> usize {
        let calls = self.calls();
        calls
            .iter()
            .position(|call| call.starts_with(start))
            .unwrap_or_else(|| panic!("no call {start:?} in {calls:#?}"))
    }

    pub fn report(&self) -> Report {
        serde_json::from_slice(&self.file(self.run_file(REPORT)).unwrap()).unwrap()
    }

    pub fn verdict(&self) -> Verdict {
        self.report().outcome
    }

    pub fn records(&self) -> Vec<Record> {
        let bytes = self.file(self.run_file(JOURNAL)).unwrap_or_default();
        parse_journal(&bytes).unwrap().0
    }

    /// The guids of the pools whose labels are in the new partition.
    pub fn pools_on_disk(&self) -> Vec<u64> {
        let plan = &self.intent.plan;
        let start = plan.new.extent.offset(plan.disk.block).0;
        let end = start + plan.new.extent.bytes(plan.disk.block).0;
        let world = self.host.world();
        let set = read_labels(&world.disk, start..end).unwrap();
        set.pool_guids().iter().map(|guid| guid.0).collect()
    }

    /// The bytes of both copies of the table, to compare.
    pub fn table(&self) -> repave_plan::table::TableImage {
        repave_boot::table_write::read_table_image(&self.host.world().disk).unwrap()
    }

    /// Whether the intent names this run and `changed` is there.
    pub fn is_changed(&self) -> bool {
        self.has(self.state.changed())
    }

    /// A worker whose run was cut right after `changed`.
    pub fn begun(self) -> Worker {
        let dry = self.copy();
        assert_eq!(dry.run(), Ended::StepsDone);
        let at = dry.call("write /var/lib/repave/changed");
        self.host.world().cut = Some((at, Cut::Kept));
        drop(self.run());
        assert!(self.is_changed());
        self.reboot();
        self
    }

    /// A power cut that loses what was not flushed.
    pub fn reboot(&self) {
        self.host.boot(Cut::Lost);
    }
}
