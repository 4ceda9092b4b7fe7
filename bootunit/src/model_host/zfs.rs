//! The `zpool` and `zfs` of the model.
//!
//! What is on the media is keyed by the pool's guid and comes to sight only through
//! labels on the model disk; what is imported is gone at the next boot. A create writes
//! labels of transaction group 0 first and is on the media only with an uberblock of a
//! later one (OpenZFS `module/zfs/vdev_label.c`, `vdev_label_init`, `vdev_config_sync`).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

use repave_survey::host_tools::ToolOutput;
use repave_survey::labels::{label_places, read_labels};

use super::World;
use super::label::{self, Label};
use crate::steps::closed_txg;

/// A pool as it is on the media.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolData {
    /// Its name.
    pub name: String,
    /// Its properties.
    pub properties: BTreeMap<String, String>,
    /// Its enabled features.
    pub features: BTreeSet<String>,
    /// Its datasets and their local properties.
    pub datasets: BTreeMap<String, BTreeMap<String, String>>,
}

impl PoolData {
    /// A pool of this name with its own dataset only.
    pub fn named(name: &str) -> PoolData {
        PoolData {
            name: name.to_owned(),
            datasets: BTreeMap::from([(name.to_owned(), BTreeMap::new())]),
            ..PoolData::default()
        }
    }
}

/// An imported pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// Its guid.
    pub guid: u64,
    /// Whether the kernel lists it in the cache file.
    pub in_cache: bool,
}

/// All of ZFS.
#[derive(Debug, Clone, Default)]
pub struct ZfsWorld {
    /// What is on the media, by guid.
    pub known: BTreeMap<u64, PoolData>,
    /// Pools on other disks.
    pub elsewhere: BTreeSet<u64>,
    /// What is imported, by name.
    pub imported: BTreeMap<String, Imported>,
    /// Datasets that are mounted.
    pub mounted: BTreeSet<String>,
    /// The version of the tools.
    pub tools: String,
    /// The version of the module.
    pub module: String,
    /// The features that the module knows.
    pub features: BTreeSet<String>,
    /// How many creates were begun.
    pub creates: u64,
}

impl ZfsWorld {
    pub(super) fn forget_runtime(&mut self) {
        self.imported.clear();
        self.mounted.clear();
    }

    pub(super) fn listed(&self) -> String {
        let listed = self.imported.iter().filter(|(_, pool)| pool.in_cache);
        listed
            .map(|(name, pool)| format!("{name}\t{}\n", pool.guid))
            .collect()
    }

    pub(super) fn adopt(&mut self, name: &str, guid: u64, in_cache: bool) {
        self.known
            .entry(guid)
            .or_insert_with(|| PoolData::named(name));
        self.imported
            .insert(name.to_owned(), Imported { guid, in_cache });
    }

    pub(super) fn mount_all(&mut self) {
        let names: Vec<String> = self.datasets().map(|(name, _)| name.clone()).collect();
        for name in names {
            let mountpoint = self.value(&name, "mountpoint");
            if self.value(&name, "canmount") == "on" && mountpoint.starts_with('/') {
                self.mounted.insert(name);
            }
        }
    }

    fn datasets(&self) -> impl Iterator<Item = (&String, &BTreeMap<String, String>)> {
        self.imported
            .values()
            .filter_map(|pool| self.known.get(&pool.guid))
            .flat_map(|pool| &pool.datasets)
    }

    fn local(&mut self, dataset: &str) -> Option<&mut BTreeMap<String, String>> {
        let pool = dataset.split('/').next()?;
        let guid = self.imported.get(pool)?.guid;
        self.known.get_mut(&guid)?.datasets.get_mut(dataset)
    }

    /// A property's value: local, or the parent's, or the default.
    pub fn value(&self, dataset: &str, property: &str) -> String {
        let own = self
            .datasets()
            .find(|(name, _)| *name == dataset)
            .and_then(|(_, values)| values.get(property));
        let inherited = property != "canmount";
        match (own, dataset.rsplit_once('/')) {
            (Some(value), _) => value.clone(),
            (None, Some((parent, last))) if inherited => {
                match (property, self.value(parent, property)) {
                    ("mountpoint", at) if at.starts_with('/') => format!("{at}/{last}"),
                    (_, value) => value,
                }
            }
            (None, _) => match property {
                "canmount" => "on".to_owned(),
                "mountpoint" => format!("/{dataset}"),
                _ => "-".to_owned(),
            },
        }
    }
}

pub(super) fn failed(why: &str) -> ToolOutput {
    ToolOutput {
        code: Some(1),
        stdout: String::new(),
        stderr: why.to_owned(),
    }
}

fn said(stdout: String) -> ToolOutput {
    ToolOutput {
        code: Some(0),
        stdout,
        stderr: String::new(),
    }
}

impl World {
    /// Runs a program of the model.
    pub(super) fn command(&mut self, name: &str, args: &[&str]) -> io::Result<ToolOutput> {
        match (name, args) {
            ("modprobe", ["zfs"]) => {
                if !self.zfs.module.is_empty() {
                    self.load_module();
                }
                Ok(said(String::new()))
            }
            ("systemctl", ["is-enabled", "--quiet", unit]) => {
                Ok(match self.enabled.contains(*unit) {
                    true => said(String::new()),
                    false => failed("disabled"),
                })
            }
            ("systemctl", ["start", unit]) => {
                self.started.push((*unit).to_owned());
                Ok(said(String::new()))
            }
            ("zpool", args) => self.zpool(args),
            ("zfs", args) => Ok(self.zfs_command(args)),
            _ => Ok(failed("no such program in the model")),
        }
    }

    fn zpool(&mut self, args: &[&str]) -> io::Result<ToolOutput> {
        match args {
            ["version"] => Ok(said(format!(
                "zfs-{}\nzfs-kmod-{}\n",
                self.zfs.tools, self.zfs.module
            ))),
            ["list", "-Hp", "-o", "name,guid"] => {
                let pools = self.zfs.imported.iter();
                Ok(said(
                    pools
                        .map(|(name, pool)| format!("{name}\t{}\n", pool.guid))
                        .collect(),
                ))
            }
            ["create", options @ .., pool, device] => self.create(options, pool, device),
            ["import", options @ .., guid] => self.import(options, guid),
            ["export", pool] => self.export(pool),
            ["get", "-Hp", "-o", "value", "size", _] => Ok(said("41943040\n".to_owned())),
            ["get", "-Hp", "-o", "property,value", "all", pool] => Ok(self.pool_values(pool)),
            ["set", "cachefile=/etc/zfs/zpool.cache", pool] => {
                match self.zfs.imported.get_mut(*pool) {
                    Some(found) => found.in_cache = true,
                    None => return Ok(failed("no such pool")),
                }
                self.write_cache()?;
                Ok(said(String::new()))
            }
            _ => Ok(failed("no such command in the model")),
        }
    }

    fn pool_values(&self, pool: &str) -> ToolOutput {
        let imported = self.zfs.imported.get(pool);
        let Some(data) = imported.and_then(|found| self.zfs.known.get(&found.guid)) else {
            return failed("no such pool");
        };
        let mut text = "size\t41943040\n".to_owned();
        for (name, value) in &data.properties {
            text.push_str(&format!("{name}\t{value}\n"));
        }
        for feature in &self.zfs.features {
            let state = match data.features.contains(feature) {
                true => "enabled",
                false => "disabled",
            };
            text.push_str(&format!("feature@{feature}\t{state}\n"));
        }
        said(text)
    }

    fn create(&mut self, options: &[&str], pool: &str, device: &str) -> io::Result<ToolOutput> {
        let Some(held) = self.links.get(device).copied() else {
            return Ok(failed("no such device"));
        };
        let extent = held.start.0..held.start.0 + held.len.0;
        let labels = read_labels(&self.disk, extent)?;
        if labels.labels().next().is_some() && !options.contains(&"-f") {
            return Ok(failed("is part of a potentially active pool"));
        }
        if self.zfs.imported.contains_key(pool) {
            return Ok(failed("pool already exists"));
        }
        let mut data = PoolData::named(pool);
        let mut late = BTreeMap::new();
        let mut altroot = false;
        for pair in options.windows(2) {
            match pair {
                ["-R", _] => altroot = true,
                ["-m", at] => {
                    late.insert("mountpoint".to_owned(), (*at).to_owned());
                }
                ["-o", option] => {
                    let (name, value) = option.split_once('=').unwrap_or((option, ""));
                    match name.strip_prefix("feature@") {
                        Some(feature) => drop(data.features.insert(feature.to_owned())),
                        None => drop(data.properties.insert(name.to_owned(), value.to_owned())),
                    }
                }
                ["-O", option] => {
                    let (name, value) = option.split_once('=').unwrap_or((option, ""));
                    late.insert(name.to_owned(), value.to_owned());
                }
                _ => {}
            }
        }
        self.zfs.creates += 1;
        let guid = 9000 + self.zfs.creates;
        self.zfs.known.insert(guid, data);
        self.write_configs(device, guid, 0, 0, &[0, 1, 2, 3])?;
        self.flush_disk("zpool")?;
        self.write_labels(device, guid, 4, 0)?;
        self.zfs.adopt(pool, guid, !altroot);
        // A transaction group of its own: the pool is there before its root's properties.
        self.effect("zpool root properties", |world, part| {
            if let (super::Part::Whole, Some(values)) = (part, world.zfs.local(pool)) {
                *values = late;
            }
        })?;
        if !altroot {
            self.write_cache()?;
        }
        Ok(said(String::new()))
    }

    fn import(&mut self, options: &[&str], guid: &str) -> io::Result<ToolOutput> {
        let device = options.windows(2).find(|pair| pair[0] == "-d");
        let (Some([_, device]), Ok(guid)) = (device, guid.parse()) else {
            return Ok(failed("usage"));
        };
        if !self.labelled(device, guid) {
            return Ok(failed("no such pool available"));
        }
        let Some(data) = self.zfs.known.get(&guid) else {
            return Ok(failed("no such pool on the media"));
        };
        let name = data.name.clone();
        if self.zfs.imported.contains_key(&name) {
            return Ok(failed("a pool with that name already exists"));
        }
        self.write_labels(device, guid, 2000, 0)?;
        let in_cache = !options.contains(&"-R");
        self.zfs.adopt(&name, guid, in_cache);
        if in_cache {
            self.write_cache()?;
        }
        if !options.contains(&"-N") {
            self.zfs.mount_all();
        }
        Ok(said(String::new()))
    }

    fn export(&mut self, pool: &str) -> io::Result<ToolOutput> {
        let Some(found) = self.zfs.imported.remove(pool) else {
            return Ok(failed("no such pool"));
        };
        let device = self
            .links
            .keys()
            .find(|device| self.labelled(device, found.guid))
            .cloned();
        if let Some(device) = device {
            self.write_labels(&device, found.guid, 3000, 1)?;
        }
        if found.in_cache {
            self.write_cache()?;
        }
        Ok(said(String::new()))
    }

    /// Whether the device carries the pool and an uberblock that can be opened.
    pub(super) fn labelled(&self, device: &str, guid: u64) -> bool {
        let Some(extent) = self.extent(device) else {
            return false;
        };
        let Ok(set) = read_labels(&self.disk, extent) else {
            return false;
        };
        let named = set
            .labels()
            .any(|l| l.pool_guid.is_some_and(|g| g.0 == guid) && l.txg.is_some_and(|txg| txg > 0));
        let open = closed_txg(&self.disk, &set).is_ok_and(|txg| txg > Some(0));
        named && open
    }

    fn extent(&self, device: &str) -> Option<Range<u64>> {
        let held = self.links.get(device)?;
        Some(held.start.0..held.start.0 + held.len.0)
    }

    /// One transaction group: the even labels, the uberblocks, the odd labels.
    pub(super) fn write_labels(
        &mut self,
        device: &str,
        guid: u64,
        txg: u64,
        state: u64,
    ) -> io::Result<()> {
        self.write_configs(device, guid, txg, state, &[0, 2])?;
        self.flush_disk("zpool")?;
        let Some(extent) = self.extent(device) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        for (_, offset) in label_places(&extent) {
            let (at, slot) = label::uberblock(txg, offset - extent.start);
            self.write_disk("zpool", offset + at, &slot)?;
        }
        self.flush_disk("zpool")?;
        self.write_configs(device, guid, txg, state, &[1, 3])?;
        self.flush_disk("zpool")
    }

    pub(super) fn write_configs(
        &mut self,
        device: &str,
        guid: u64,
        txg: u64,
        state: u64,
        which: &[u8],
    ) -> io::Result<()> {
        let Some(extent) = self.extent(device) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let pool = self.zfs.known.get(&guid).map(|data| data.name.clone());
        let pool = pool.unwrap_or_default();
        let says = Label {
            pool: &pool,
            pool_guid: guid,
            vdev_guid: guid + 1_000_000,
            txg,
            state,
        };
        for (index, offset) in label_places(&extent) {
            if which.contains(&index) {
                let block = label::config(&says, offset - extent.start);
                self.write_disk("zpool", offset + label::CONFIG_AT, &block)?;
            }
        }
        Ok(())
    }

    fn zfs_command(&mut self, args: &[&str]) -> ToolOutput {
        match args {
            [
                "list",
                "-Hp",
                "-r",
                "-t",
                "filesystem",
                "-o",
                "mounted,mountpoint,name",
                pool,
            ] => {
                let lines = self.below(pool).into_iter().map(|name| {
                    let mounted = match self.zfs.mounted.contains(&name) {
                        true => "yes",
                        false => "no",
                    };
                    format!(
                        "{mounted}\t{}\t{name}\n",
                        self.zfs.value(&name, "mountpoint")
                    )
                });
                said(lines.collect())
            }
            [
                "list",
                "-Hp",
                "-r",
                "-t",
                "filesystem,volume",
                "-o",
                "name",
                pool,
            ] => said(self.below(pool).join("\n") + "\n"),
            ["create", "-u", options @ .., name] => self.create_dataset(options, name),
            ["get", "-Hp", "-o", "property,value", properties, dataset] => {
                if !self.below(dataset).iter().any(|name| name == dataset) {
                    return failed("dataset does not exist");
                }
                let lines = properties.split(',').map(|property| {
                    let value = match property {
                        "mounted" if self.zfs.mounted.contains(*dataset) => "yes".to_owned(),
                        "mounted" => "no".to_owned(),
                        _ => self.zfs.value(dataset, property),
                    };
                    format!("{property}\t{value}\n")
                });
                said(lines.collect())
            }
            ["set", pair, dataset] => {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                match self.zfs.local(dataset) {
                    Some(values) => drop(values.insert(name.to_owned(), value.to_owned())),
                    None => return failed("dataset does not exist"),
                }
                // A mount point that is set on a dataset which may mount mounts it.
                if name == "mountpoint"
                    && value.starts_with('/')
                    && self.zfs.value(dataset, "canmount") == "on"
                {
                    self.zfs.mounted.insert((*dataset).to_owned());
                }
                said(String::new())
            }
            ["inherit", property, dataset] => match self.zfs.local(dataset) {
                Some(values) => {
                    values.remove(*property);
                    said(String::new())
                }
                None => failed("dataset does not exist"),
            },
            ["mount", "-a"] => {
                self.zfs.mount_all();
                said(String::new())
            }
            _ => failed("no such command in the model"),
        }
    }

    fn create_dataset(&mut self, options: &[&str], name: &str) -> ToolOutput {
        let parent = name.rsplit_once('/').map(|(parent, _)| parent);
        let pool = name.split('/').next().unwrap_or_default();
        let guid = self.zfs.imported.get(pool).map(|found| found.guid);
        let data = guid.and_then(|guid| self.zfs.known.get_mut(&guid));
        let Some(data) = data else {
            return failed("no such pool");
        };
        if data.datasets.contains_key(name) {
            return failed("dataset already exists");
        }
        if !parent.is_some_and(|parent| data.datasets.contains_key(parent)) {
            return failed("parent does not exist");
        }
        let pairs = options.iter().filter_map(|option| option.split_once('='));
        let values = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        data.datasets.insert(name.to_owned(), values.collect());
        said(String::new())
    }

    fn below(&self, top: &str) -> Vec<String> {
        let inside = |name: &&String| {
            name.as_str() == top
                || name
                    .strip_prefix(top)
                    .is_some_and(|rest| rest.starts_with('/'))
        };
        let names = self.zfs.datasets().map(|(name, _)| name);
        names.filter(inside).cloned().collect()
    }
}
