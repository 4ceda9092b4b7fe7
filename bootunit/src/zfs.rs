//! The `zpool` and `zfs` programs: every call the boot run makes of them.
//!
//! Absolute paths, bounded time, `-Hp` output parsed line by line: a line that does not
//! parse fails the call. Nothing here decides; it asks and it tells.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use repave_plan::recipe::{DatasetRecipe, Recipe};
use repave_plan::units::{Guid, PoolGuid};

use crate::host::{Host, HostError};

/// How long loading the zfs module may take: 12 s were measured under emulation.
const LOAD_LIMIT: Duration = Duration::from_secs(120);
/// How long a question to the kernel may take.
const ASK_LIMIT: Duration = Duration::from_secs(60);
/// How long a create, import or export may take.
const ACT_LIMIT: Duration = Duration::from_secs(300);

/// The longest that all calls of one run take together, for the unit's timeout: a
/// load, an export, a create or import, and a create and a check for each dataset.
pub fn time_budget(datasets: usize) -> Duration {
    LOAD_LIMIT + ACT_LIMIT * (2 + datasets as u32) + ASK_LIMIT * (8 + datasets as u32)
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ZfsError {
    /// The call itself.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The program ended with an error.
    #[error("{command} ended with {status}: {complaint}")]
    Failed {
        /// The command line.
        command: String,
        /// The exit code, or `signal`.
        status: String,
        /// What it said on stderr.
        complaint: String,
    },
    /// The program's output is not what it should be.
    #[error("{command} printed {line:?}, {expected} was expected")]
    Output {
        /// The command line.
        command: String,
        /// The line.
        line: String,
        /// What was expected.
        expected: &'static str,
    },
    /// The program is not known.
    #[error("the path of program {name} is not known")]
    NoProgram {
        /// Its name.
        name: &'static str,
    },
    /// The module is not loaded.
    #[error("{path} is not there after loading the zfs module")]
    NoModule {
        /// What should be there.
        path: &'static str,
    },
}

/// The file that tells the loaded module's version.
pub const MODULE_VERSION: &str = "/sys/module/zfs/version";
const FEATURES: &str = "/sys/module/zfs/features.pool";

/// The ZFS programs of this host.
pub struct Zfs<'a> {
    host: &'a dyn Host,
    programs: &'a BTreeMap<String, String>,
}

impl<'a> Zfs<'a> {
    /// The programs at these paths.
    pub fn new(host: &'a dyn Host, programs: &'a BTreeMap<String, String>) -> Self {
        Self { host, programs }
    }

    fn call(&self, name: &'static str, args: &[&str], limit: Duration) -> Result<String, ZfsError> {
        let program = self
            .programs
            .get(name)
            .ok_or(ZfsError::NoProgram { name })?;
        let output = self.host.run(program, args, limit)?;
        if output.code == Some(0) {
            return Ok(output.stdout);
        }
        Err(ZfsError::Failed {
            command: command_line(name, args),
            status: output
                .code
                .map_or_else(|| "signal".to_owned(), |code| format!("code {code}")),
            complaint: output
                .stderr
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" "),
        })
    }

    /// Loads the module. Nothing else would, once no label is left for udev to see.
    pub fn load(&self) -> Result<(), ZfsError> {
        if self.host.read(Path::new(MODULE_VERSION))?.is_none() {
            self.call("modprobe", &["zfs"], LOAD_LIMIT)?;
        }
        match self.host.read(Path::new(MODULE_VERSION))? {
            Some(_) => Ok(()),
            None => Err(ZfsError::NoModule {
                path: MODULE_VERSION,
            }),
        }
    }

    /// The versions of the tools and of the loaded module.
    pub fn versions(&self) -> Result<(String, String), ZfsError> {
        let args = ["version"];
        let output = self.call("zpool", &args, ASK_LIMIT)?;
        let first = output.lines().next().unwrap_or_default();
        let tools = first.strip_prefix("zfs-").ok_or_else(|| ZfsError::Output {
            command: command_line("zpool", &args),
            line: first.to_owned(),
            expected: "zfs-VERSION",
        })?;
        let module = self
            .host
            .read(Path::new(MODULE_VERSION))?
            .unwrap_or_default();
        Ok((
            tools.to_owned(),
            String::from_utf8_lossy(&module).trim().to_owned(),
        ))
    }

    /// The short names of the features that the loaded module knows. sysfs lists them by
    /// their full name, `com.delphix:async_destroy` (OpenZFS `module/zfs/zfs_sysfs.c`,
    /// `zfs_kobj_add_features`).
    pub fn known_features(&self) -> Result<Vec<String>, ZfsError> {
        let full = self.host.list(Path::new(FEATURES))?;
        let full = full.ok_or(ZfsError::NoModule { path: FEATURES })?;
        let short = |name: &String| name.rsplit(':').next().map(str::to_owned);
        Ok(full.iter().filter_map(short).collect())
    }

    /// Names and guids of the imported pools.
    pub fn imported(&self) -> Result<Vec<(String, PoolGuid)>, ZfsError> {
        let args = ["list", "-Hp", "-o", "name,guid"];
        let output = self.call("zpool", &args, ASK_LIMIT)?;
        let parse = |line: &str| {
            let (name, guid) = line.split_once('\t')?;
            Some((name.to_owned(), guid.trim().parse().ok()?))
        };
        output
            .lines()
            .map(|line| parse(line).ok_or_else(|| odd("zpool", &args, line)))
            .collect()
    }

    /// Where datasets of the pool are mounted now.
    pub fn mounted_below(&self, pool: &str) -> Result<Vec<String>, ZfsError> {
        let args = [
            "list",
            "-Hp",
            "-r",
            "-t",
            "filesystem",
            "-o",
            "mounted,mountpoint,name",
            pool,
        ];
        let output = self.call("zfs", &args, ASK_LIMIT)?;
        let mut found = Vec::new();
        for line in output.lines() {
            match line.split('\t').collect::<Vec<_>>().as_slice() {
                ["yes", at, _] => found.push((*at).to_owned()),
                ["no", _, _] => {}
                _ => return Err(odd("zfs", &args, line)),
            }
        }
        Ok(found)
    }

    /// Exports a pool.
    pub fn export(&self, pool: &str) -> Result<(), ZfsError> {
        self.call("zpool", &["export", pool], ACT_LIMIT).map(drop)
    }

    /// Imports the pool of this guid without mounting anything.
    pub fn import(&self, guid: PoolGuid, device: &str) -> Result<(), ZfsError> {
        // ORDER: `-R /` keeps the new pool out of the cache file. The default would
        // rewrite it with the pools imported now, and at this moment of boot that is
        // none but this one. Pinned by `the_cache_file_is_not_touched`.
        let guid = guid.to_string();
        self.call(
            "zpool",
            &["import", "-N", "-R", "/", "-d", device, &guid],
            ACT_LIMIT,
        )
        .map(drop)
    }

    /// Creates the pool of a recipe on a partition; its own dataset is not mounted.
    pub fn create_pool(&self, recipe: &Recipe, partuuid: Guid) -> Result<(), ZfsError> {
        self.call("zpool", &as_str(&create_args(recipe, partuuid)), ACT_LIMIT)
            .map(drop)
    }

    /// Creates one dataset of the skeleton, not mounted.
    pub fn create_dataset(&self, dataset: &DatasetRecipe) -> Result<(), ZfsError> {
        let mut args = vec!["create".to_owned(), "-u".to_owned()];
        for (name, value) in dataset.creation.iter().chain(&dataset.properties) {
            args.extend(["-o".to_owned(), format!("{name}={value}")]);
        }
        args.push(dataset.name.to_string());
        self.call("zfs", &as_str(&args), ACT_LIMIT).map(drop)
    }

    /// The names of the datasets in a pool.
    pub fn datasets(&self, pool: &str) -> Result<Vec<String>, ZfsError> {
        let args = [
            "list",
            "-Hp",
            "-r",
            "-t",
            "filesystem,volume",
            "-o",
            "name",
            pool,
        ];
        let output = self.call("zfs", &args, ASK_LIMIT)?;
        Ok(output.lines().map(str::to_owned).collect())
    }

    /// The values of these properties of one dataset.
    pub fn get(
        &self,
        dataset: &str,
        properties: &[&str],
    ) -> Result<BTreeMap<String, String>, ZfsError> {
        let names = properties.join(",");
        let args = ["get", "-Hp", "-o", "property,value", &names, dataset];
        let output = self.call("zfs", &args, ASK_LIMIT)?;
        let parse = |line: &str| {
            let (name, value) = line.split_once('\t')?;
            Some((name.to_owned(), value.to_owned()))
        };
        output
            .lines()
            .map(|line| parse(line).ok_or_else(|| odd("zfs", &args, line)))
            .collect()
    }

    /// The value of one pool property.
    pub fn pool_value(&self, pool: &str, property: &str) -> Result<String, ZfsError> {
        let args = ["get", "-Hp", "-o", "value", property, pool];
        Ok(self
            .call("zpool", &args, ASK_LIMIT)?
            .trim_end_matches('\n')
            .to_owned())
    }

    /// Every property of a pool and its value.
    pub fn pool_values(&self, pool: &str) -> Result<Vec<(String, String)>, ZfsError> {
        let args = ["get", "-Hp", "-o", "property,value", "all", pool];
        let output = self.call("zpool", &args, ASK_LIMIT)?;
        let parse = |line: &str| {
            let (name, value) = line.split_once('\t')?;
            Some((name.to_owned(), value.to_owned()))
        };
        output
            .lines()
            .map(|line| parse(line).ok_or_else(|| odd("zpool", &args, line)))
            .collect()
    }

    /// Sets a property of a dataset.
    pub fn set(&self, dataset: &str, property: &str, value: &str) -> Result<(), ZfsError> {
        self.call(
            "zfs",
            &["set", &format!("{property}={value}"), dataset],
            ACT_LIMIT,
        )
        .map(drop)
    }

    /// Gives a property of a dataset back to its parent.
    pub fn inherit(&self, dataset: &str, property: &str) -> Result<(), ZfsError> {
        self.call("zfs", &["inherit", property, dataset], ACT_LIMIT)
            .map(drop)
    }

    /// Sets a property of a pool.
    pub fn set_pool(&self, pool: &str, property: &str, value: &str) -> Result<(), ZfsError> {
        self.call(
            "zpool",
            &["set", &format!("{property}={value}"), pool],
            ACT_LIMIT,
        )
        .map(drop)
    }

    /// Expands the pool's leaf onto its grown partition.
    pub fn expand(&self, pool: &str, device: &str) -> Result<(), ZfsError> {
        self.call("zpool", &["online", "-e", pool, device], ACT_LIMIT)
            .map(drop)
    }

    /// Mounts everything that wants to be mounted.
    pub fn mount_all(&self) -> Result<(), ZfsError> {
        self.call("zfs", &["mount", "-a"], ACT_LIMIT).map(drop)
    }
}

fn create_args(recipe: &Recipe, partuuid: Guid) -> Vec<String> {
    // ORDER: `-R /` for the same reason as in `import`. `-d` with every feature by name:
    // what was disabled stays disabled, and a newer module adds none. Never `-f`: what
    // it would override is a doubt, and doubts stop the run.
    let mut args: Vec<String> = ["create", "-R", "/", "-m", "none", "-d"]
        .iter()
        .map(|s| (*s).to_owned())
        .collect();
    let mut option = |flag: &str, name: &str, value: &str| {
        args.extend([flag.to_owned(), format!("{name}={value}")]);
    };
    option("-o", "ashift", &recipe.ashift.to_string());
    if let Some(compatibility) = &recipe.compatibility {
        option("-o", "compatibility", compatibility);
    }
    for feature in &recipe.features {
        option("-o", &format!("feature@{feature}"), "enabled");
    }
    for (name, value) in &recipe.properties {
        option("-o", name, value);
    }
    let root = recipe.root.creation.iter().chain(&recipe.root.properties);
    for (name, value) in root.filter(|(name, _)| !is_mount(name)) {
        option("-O", name, value);
    }
    args.extend([recipe.pool.to_string(), device_of(partuuid)]);
    args
}

/// The properties of the pool's own dataset that would mount it: given afterwards.
pub fn is_mount(property: &str) -> bool {
    matches!(property, "mountpoint" | "canmount")
}

/// The device of a partition, by the one name that is unique and stays.
pub fn device_of(partuuid: Guid) -> String {
    format!("/dev/disk/by-partuuid/{partuuid}")
}

fn as_str(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

fn odd(name: &str, args: &[&str], line: &str) -> ZfsError {
    ZfsError::Output {
        command: command_line(name, args),
        line: line.chars().take(200).collect(),
        expected: "the columns that were asked for",
    }
}

/// A command line for a message: a create names dozens of features, of which a person at
/// a console wants none.
fn command_line(name: &str, args: &[&str]) -> String {
    match args {
        [verb, middle @ .., last] if middle.len() > 6 => format!("{name} {verb} … {last}"),
        _ => [&[name], args].concat().join(" "),
    }
}
