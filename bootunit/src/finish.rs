//! The last step, after the import units and zfs-mount: prove that the node is whole,
//! make it stay so over the next boot, report, and open the gate.
//!
//! `changed` is removed last of all: whatever fails before that keeps k3s out, and a
//! cut anywhere in here is gone through again from its start.

use std::path::{Path, PathBuf};

use repave_plan::chain::chain;
use repave_plan::intent::Intent;
use repave_plan::journal::all_done_in;
use repave_plan::policy::Mode;
use repave_plan::recipe::DatasetRecipe;
use repave_plan::report::Cleared;
use repave_plan::step::Step;
use repave_plan::stop::Stop;
use repave_plan::units::{BootId, PoolGuid};

use crate::cache_file;
use crate::cleanup;
use crate::host::{Host, HostError};
use crate::recovery::{find_intent, take_notice_down};
use crate::report::{boot_id, done_report};
use crate::run::stopped;
use crate::state_dir::{Journal, StateDir, write_report};
use crate::steps::CLEARED;
use crate::zfs::{Zfs, device_of};

/// How the finish unit ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finished {
    /// Nothing was begun.
    NothingBegun,
    /// This boot's run did not do every step; the gate stays shut.
    NotYet,
    /// The run is closed and the gate is open.
    Done,
    /// The node is not whole.
    Stopped(Stop),
}

/// Closes the run.
pub fn finish(host: &dyn Host, state: &StateDir) -> Result<Finished, HostError> {
    let Some(changed) = host.read(&state.changed())? else {
        return Ok(Finished::NothingBegun);
    };
    let (intent, sealed) = match find_intent(host, state, &changed) {
        Ok(found) => found,
        Err(stop) => return Ok(Finished::Stopped(stop)),
    };
    let not_ready = |found: String| Stop::NotReady { found };
    let boot = boot_id(host)?;
    let journal = Journal::open(host, state, &intent.run_id).map_err(|e| not_ready(chain(&e)));
    let (Some(boot), Ok(journal)) = (boot, journal) else {
        return Ok(Finished::NotYet);
    };
    if !all_done_in(journal.records(), &intent.plan.step_names(), &boot) {
        host.say("finish: not every step was done in this boot; k3s stays out");
        return Ok(Finished::NotYet);
    }
    let closed = make_whole(host, &intent)
        .and_then(|pool| close(host, state, &intent, &sealed, &journal, pool, boot));
    match closed {
        Ok(()) => {
            host.say("finish: the node is whole, k3s may start");
            tracing::info!(run_id = %intent.run_id, "done");
            Ok(Finished::Done)
        }
        Err(found) => {
            let stop = not_ready(found);
            stopped(host, state, Some((&intent, &sealed)), stop.clone());
            Ok(Finished::Stopped(stop))
        }
    }
}

/// Everything that must be true before k3s starts, and stay true over the next boot.
fn make_whole(host: &dyn Host, intent: &Intent) -> Result<Option<PoolGuid>, String> {
    let zfs = Zfs::new(host, &intent.programs);
    let name = intent.plan.pool.as_str();
    let imported = zfs.imported().map_err(|e| chain(&e))?;
    let guid = imported
        .into_iter()
        .find(|(pool, _)| pool == name)
        .map(|(_, guid)| guid)
        .ok_or_else(|| format!("pool {name} is not imported"))?;
    if intent.plan.mode == Mode::Grow {
        expand(&zfs, intent, guid)?;
    } else if guid == intent.plan.pool_guid {
        return Err(format!(
            "pool {name} still has the guid of the old pool, {guid}"
        ));
    }
    check_mounts(&zfs, intent)?;
    keep_in_cache(host, &zfs, name)?;
    drop_vanished(host, &zfs, name)?;
    Ok(Some(guid))
}

fn expand(zfs: &Zfs, intent: &Intent, guid: PoolGuid) -> Result<(), String> {
    if guid != intent.plan.pool_guid {
        return Err(format!("pool guid {guid} is not the one that was to grow"));
    }
    let name = intent.plan.pool.as_str();
    zfs.expand(name, &device_of(intent.plan.new.guid))
        .map_err(|e| chain(&e))?;
    let size = zfs.pool_value(name, "size").map_err(|e| chain(&e))?;
    let old = intent
        .plan
        .touched
        .iter()
        .find(|t| t.guid == intent.plan.new.guid);
    let old = old.map_or(0, |t| t.extent.bytes(intent.plan.disk.block).0);
    match size.parse::<u64>() {
        Ok(bytes) if bytes > old => Ok(()),
        _ => Err(format!(
            "pool {name} has {size} bytes after it was expanded, {old} before"
        )),
    }
}

/// Datasets that mount themselves must be mounted: a snapshotter that finds its
/// directory empty would fill the root file system.
fn check_mounts(zfs: &Zfs, intent: &Intent) -> Result<(), String> {
    for step in &intent.plan.steps {
        let Step::PoolCreate(create) = step else {
            continue;
        };
        for dataset in [&create.recipe.root]
            .into_iter()
            .chain(&create.recipe.datasets)
        {
            check_mount(zfs, dataset)?;
        }
    }
    Ok(())
}

fn check_mount(zfs: &Zfs, dataset: &DatasetRecipe) -> Result<(), String> {
    let name = dataset.name.as_str();
    let values = zfs
        .get(name, &["mountpoint", "canmount", "mounted"])
        .map_err(|e| chain(&e))?;
    let value = |property: &str| values.get(property).map(String::as_str).unwrap_or_default();
    let wants = value("canmount") == "on" && value("mountpoint").starts_with('/');
    match wants && value("mounted") != "yes" {
        true => Err(format!(
            "dataset {name} is not mounted at {}",
            value("mountpoint")
        )),
        false => Ok(()),
    }
}

/// The pool goes into the cache file, and the file into every other deployment's /etc:
/// after a rollback the import unit must find the pool that is there now.
fn keep_in_cache(host: &dyn Host, zfs: &Zfs, pool: &str) -> Result<(), String> {
    zfs.set_pool(pool, "cachefile", cache_file::PATH)
        .map_err(|e| chain(&e))?;
    let path = Path::new(cache_file::PATH);
    let bytes = host.read(path).map_err(|e| chain(&e))?.unwrap_or_default();
    let holds = bytes
        .windows(pool.len())
        .any(|window| window == pool.as_bytes());
    if !holds {
        return Err(format!("{} does not hold pool {pool}", cache_file::PATH));
    }
    // The kernel writes the file in place; written again it is whole or the old one.
    host.write(path, &bytes).map_err(|e| chain(&e))?;
    for etc in other_etcs(host).map_err(|e| chain(&e))? {
        host.write(&etc.join("zfs/zpool.cache"), &bytes)
            .map_err(|e| chain(&e))?;
    }
    Ok(())
}

/// The /etc of every ostree deployment that knows ZFS and has this host's hostid.
fn other_etcs(host: &dyn Host) -> Result<Vec<PathBuf>, HostError> {
    let mut found = Vec::new();
    let stateroots = Path::new("/ostree/deploy");
    let hostid = host.read(Path::new("/etc/hostid"))?;
    for stateroot in host.list(stateroots)?.unwrap_or_default() {
        let deployments = stateroots.join(stateroot).join("deploy");
        for deployment in host.list(&deployments)?.unwrap_or_default() {
            let etc = deployments.join(deployment).join("etc");
            if host.list(&etc.join("zfs"))?.is_none() {
                continue;
            }
            if host.read(&etc.join("hostid"))? != hostid {
                host.say(&format!(
                    "{} has another hostid: its cache is left",
                    etc.display()
                ));
                continue;
            }
            found.push(etc);
        }
    }
    Ok(found)
}

/// zfs-mount-generator makes units of this file at the next boot; a line of a dataset
/// that is gone would be a failed mount, which local-fs.target may require.
fn drop_vanished(host: &dyn Host, zfs: &Zfs, pool: &str) -> Result<(), String> {
    let path = Path::new("/etc/zfs/zfs-list.cache").join(pool);
    let Some(bytes) = host.read(&path).map_err(|e| chain(&e))? else {
        return Ok(());
    };
    let there = zfs.datasets(pool).map_err(|e| chain(&e))?;
    let text = String::from_utf8_lossy(&bytes);
    let kept: String = text
        .split_inclusive('\n')
        .filter(|line| {
            let name = line.split('\t').next().unwrap_or_default().trim();
            there.iter().any(|d| d == name)
        })
        .collect();
    match kept == text {
        true => Ok(()),
        false => host.write(&path, kept.as_bytes()).map_err(|e| chain(&e)),
    }
}

fn close(
    host: &dyn Host,
    state: &StateDir,
    intent: &Intent,
    sealed: &[u8],
    journal: &Journal,
    pool: Option<PoolGuid>,
    boot: BootId,
) -> Result<(), String> {
    let cleared = host
        .read(&state.run_file(&intent.run_id, CLEARED))
        .map_err(|e| chain(&e))?
        .and_then(|bytes| serde_json::from_slice::<Cleared>(&bytes).ok());
    let report = done_report(host, intent, sealed, journal.records(), pool, cleared, boot);
    write_report(host, state, &intent.run_id, &report).map_err(|e| chain(&e))?;
    take_notice_down(host).map_err(|e| chain(&e))?;
    for step in &intent.plan.steps {
        if let Step::ContainerdClear(clear) = step {
            cleanup::ask_for(host, state, Path::new(&clear.root)).map_err(|e| chain(&e))?;
        }
    }
    // ORDER: the intent goes before `changed`. The other way round, a cut in between
    // would leave an intent without `changed`, and the next boot would begin the run
    // anew. Pinned by `the_intent_goes_before_changed`.
    host.remove(&state.intent()).map_err(|e| chain(&e))?;
    host.remove(&state.changed()).map_err(|e| chain(&e))?;
    Ok(())
}
