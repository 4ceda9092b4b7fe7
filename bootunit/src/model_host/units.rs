//! What the other units of a boot do: the import from the cache file, the mounts, and
//! the removal of an intent that did not run.
//!
//! None of it is an effect of the boot run: it is not counted and never cut.

use std::path::Path;

use repave_plan::units::Guid;

use super::{Part, World};
use crate::cache_file;
use crate::zfs::device_of;

impl World {
    /// `repave-late.service`: removes an intent while nothing was changed.
    pub fn late(&mut self, state: &Path) {
        if !self.files.contains_key(&state.join("changed")) {
            self.files.remove(&state.join("intent.json"));
        }
    }

    /// `zfs-import-cache.service`: every pool of the cache file that is there.
    pub fn import_cache(&mut self) {
        let bytes = self.files.get(Path::new(cache_file::PATH)).cloned();
        let text = String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned();
        if !text.is_empty() {
            self.load_module();
        }
        for line in text.lines() {
            let mut words = line.split('\t');
            let (Some(name), Some(guid)) = (words.next(), words.next()) else {
                continue;
            };
            if let Ok(guid) = guid.parse() {
                self.import_for_unit(name, guid);
            }
        }
    }

    /// The initrd imports the pool by its labels, as `zfs-import` units there do.
    pub fn import_for_unit(&mut self, name: &str, guid: u64) {
        self.load_module();
        let device = self
            .links
            .keys()
            .find(|device| self.labelled(device, guid))
            .cloned();
        let there = self.zfs.elsewhere.contains(&guid) || device.is_some();
        if there && !self.zfs.imported.contains_key(name) {
            self.zfs.adopt(name, guid, true);
        }
    }

    /// `zfs-mount.service`.
    pub fn mount_all(&mut self) {
        self.zfs.mount_all();
    }

    /// A pool that was made before, on the partition with this GUID.
    pub fn has_pool(&mut self, name: &str, guid: u64, part: Guid) {
        // The writes are of a time before the test: whole and durable.
        let device = device_of(part);
        self.zfs
            .known
            .entry(guid)
            .or_insert_with(|| super::PoolData::named(name));
        drop(self.write_labels(&device, guid, 1000, 0));
        drop(self.flush_disk("earlier"));
        self.calls.clear();
        self.effects = 0;
    }

    /// Labels of a create that was cut before its first transaction group.
    pub fn has_unborn_pool(&mut self, name: &str, guid: u64, device: &str) {
        self.zfs
            .known
            .entry(guid)
            .or_insert_with(|| super::PoolData::named(name));
        drop(self.write_configs(device, guid, 0, 0, &[0, 1, 2, 3]));
        drop(self.flush_disk("earlier"));
        self.calls.clear();
        self.effects = 0;
    }

    pub(super) fn load_module(&mut self) {
        let version = format!("{}\n", self.zfs.module).into_bytes();
        self.runtime.insert(super::MODULE.into(), version);
    }

    /// The kernel writes the cache file in place: cut in the middle, it is empty.
    pub(super) fn write_cache(&mut self) -> std::io::Result<()> {
        self.effect("kernel-cache", |world, part| {
            if world.cache_is_deaf {
                return;
            }
            let listed = match part {
                Part::Half => String::new(),
                Part::Whole => world.zfs.listed(),
            };
            world
                .files
                .insert(cache_file::PATH.into(), listed.into_bytes());
        })
    }
}
