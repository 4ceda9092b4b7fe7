//! Step 2 of a first run: everything that could fail later is tried before anything
//! is destroyed.
//!
//! Takes the verified intent and its disk; changes nothing on the disk. Its last act
//! is the only one with an effect: a pool that the initrd imported, with nothing
//! mounted, is exported, and the cache file's bytes are put back at once.

use repave_plan::bound::name_of;
use repave_plan::chain::chain;
use repave_plan::intent::Intent;
use repave_plan::plan::Plan;
use repave_plan::planner::describe_use;
use repave_plan::refusal::Refusal;
use repave_plan::step::Step;
use repave_plan::survey::{Disk, PLAIN_FILE_SYSTEMS, PathFacts};
use repave_plan::units::Extent;

use crate::cache_file;
use crate::host::Host;
use crate::rehearsal::rehearse;
use crate::state_dir::StateDir;
use crate::zfs::{Zfs, ZfsError};

/// Tries everything that could fail later.
pub fn preflight(
    host: &dyn Host,
    state: &StateDir,
    intent: &Intent,
    disk: &Disk,
) -> Result<(), Refusal> {
    check_programs(host, intent)?;
    check_places(host, state, intent)?;
    check_uses(&intent.plan, disk)?;
    check_labels(&intent.plan, disk)?;
    check_table(&intent.plan, disk)?;
    load_zfs(host, intent)?;
    cache_file::save(host, state, &intent.run_id).map_err(|e| {
        refuse(
            "the pools' cache file cannot be saved",
            chain(&e),
            "make room in the state directory",
        )
    })?;
    release_pool(host, state, intent)
}

fn refuse(
    what: impl Into<String>,
    found: impl Into<String>,
    way_out: impl Into<String>,
) -> Refusal {
    Refusal::Host {
        what: what.into(),
        found: found.into(),
        way_out: way_out.into(),
    }
}

fn check_programs(host: &dyn Host, intent: &Intent) -> Result<(), Refusal> {
    for name in ["modprobe", "zfs", "zpool"] {
        let path = intent.programs.get(name);
        let found = path.is_some_and(|p| host.path_facts(p).is_ok_and(|facts| facts.exists));
        if !found {
            return Err(refuse(
                format!("program {name}"),
                path.map_or("it was not found when the node was armed".to_owned(), |p| {
                    format!("{p} is not there")
                }),
                "boot an image that has the ZFS tools, then plan and arm again",
            ));
        }
    }
    Ok(())
}

/// The state directory must outlive the pool and the boot; containerd's root must not
/// be on the pool.
fn check_places(host: &dyn Host, state: &StateDir, intent: &Intent) -> Result<(), Refusal> {
    let facts = |path: &str| {
        host.path_facts(path).map_err(|e| {
            refuse(
                format!("{path} cannot be looked at"),
                chain(&e),
                "see the journal",
            )
        })
    };
    let place = facts(&state.path().to_string_lossy())?;
    check_place("the state directory", &place)?;
    if place.free < intent.min_state_free {
        return Err(refuse(
            format!("the file system under {} is too full", place.path),
            format!(
                "{} are free, {} are needed",
                place.free, intent.min_state_free
            ),
            "make room, then plan and arm again",
        ));
    }
    for step in &intent.plan.steps {
        if let Step::ContainerdClear(clear) = step {
            check_place("containerd's root", &facts(&clear.root)?)?;
        }
    }
    Ok(())
}

fn check_place(what: &str, place: &PathFacts) -> Result<(), Refusal> {
    let way_out = "put it on a plain local file system (ext4, xfs, btrfs)";
    if !PLAIN_FILE_SYSTEMS.contains(&place.fs_type.as_str()) {
        let found = format!("{} is on {} ({})", place.path, place.fs_type, place.source);
        return Err(refuse(
            format!("{what} is not on a plain file system"),
            found,
            way_out,
        ));
    }
    if place.read_only {
        let found = format!(
            "{} is mounted read-only at {}",
            place.source, place.mount_point
        );
        return Err(refuse(
            format!("{what} cannot be written"),
            found,
            "mount it read-write",
        ));
    }
    Ok(())
}

fn check_uses(plan: &Plan, disk: &Disk) -> Result<(), Refusal> {
    if let Some(by) = disk.uses.first() {
        return Err(Refusal::InUse {
            what: name_of(disk),
            by: describe_use(by),
        });
    }
    for touched in &plan.touched {
        let part = disk.partition(touched.number);
        if let Some(by) = part.and_then(|p| p.uses.first()) {
            return Err(Refusal::InUse {
                what: format!(
                    "partition {} {:?} of {}",
                    touched.number, touched.name, disk.name
                ),
                by: describe_use(by),
            });
        }
    }
    Ok(())
}

/// Every label in what will be overwritten must be one that the plan names.
fn check_labels(plan: &Plan, disk: &Disk) -> Result<(), Refusal> {
    let Some(clear) = plan.steps.iter().find_map(|step| match step {
        Step::LabelClear(clear) => Some(clear),
        _ => None,
    }) else {
        return Ok(());
    };
    let foreign = |place: String, pool: Option<&String>, guid: Option<u64>| Refusal::ForeignLabel {
        place,
        pool: pool.cloned().unwrap_or_else(|| "-".to_owned()),
        guid: guid.map_or_else(|| "none".to_owned(), |g| g.to_string()),
    };
    for touched in &plan.touched {
        for label in disk
            .partition(touched.number)
            .iter()
            .flat_map(|p| &p.labels)
        {
            let named = match label.pool_guid {
                Some(guid) => {
                    clear.pool_guids.contains(&guid) || clear.kept_pool_guids.contains(&guid)
                }
                None => clear.vdev_guids.contains(&label.vdev_guid),
            };
            if !named {
                let place = format!("{} {:?}", touched.number, touched.name);
                return Err(foreign(
                    place,
                    label.pool.as_ref(),
                    label.pool_guid.map(|g| g.0),
                ));
            }
        }
    }
    for stale in &disk.stale {
        let inside = clear.extents.iter().any(|e| {
            let start = e.offset(disk.block).0;
            (start..start + e.bytes(disk.block).0).contains(&stale.offset.0)
        });
        let named = match stale.pool_guid {
            Some(guid) => clear.pool_guids.contains(&guid) || clear.kept_pool_guids.contains(&guid),
            None => stale
                .vdev_guid
                .is_none_or(|guid| clear.vdev_guids.contains(&guid)),
        };
        if inside && !named {
            let place = format!("byte {} of {}", stale.offset.0, disk.name);
            return Err(foreign(
                place,
                stale.pool.as_ref(),
                stale.pool_guid.map(|g| g.0),
            ));
        }
    }
    Ok(())
}

/// The new table is built in memory and read back by a second parser; the place of
/// the shadow array is still free.
fn check_table(plan: &Plan, disk: &Disk) -> Result<(), Refusal> {
    let refuse = |why: String| Refusal::Table {
        disk: name_of(disk),
        why,
    };
    for step in &plan.steps {
        let Step::TableWrite(write) = step else {
            continue;
        };
        rehearse(&write.change).map_err(|e| refuse(chain(&e)))?;
        let shadow = write.change.shadow();
        let in_gap = write
            .change
            .shadow_in_gap()
            .map_err(|e| refuse(chain(&e)))?;
        if in_gap
            && !disk
                .zero_runs
                .iter()
                .any(|run: &Extent| run.contains(&shadow))
        {
            return Err(refuse(format!(
                "the place of the shadow array, {} to {}, is not zeroed any more",
                shadow.first, shadow.last
            )));
        }
    }
    Ok(())
}

fn load_zfs(host: &dyn Host, intent: &Intent) -> Result<(), Refusal> {
    let zfs = Zfs::new(host, &intent.programs);
    let way_out = "boot an image whose ZFS tools and module belong together, then arm again";
    zfs.load()
        .map_err(|e| refuse("the zfs module cannot be loaded", chain(&e), way_out))?;
    let (tools, module) = zfs
        .versions()
        .map_err(|e| refuse("the ZFS versions cannot be read", chain(&e), way_out))?;
    let release = |version: &str| version.split('-').next().unwrap_or_default().to_owned();
    if release(&tools) != release(&module) {
        return Err(refuse(
            "the ZFS tools and module differ",
            format!("the tools are {tools}, the module is {module}"),
            way_out,
        ));
    }
    let known = zfs
        .known_features()
        .map_err(|e| refuse("the module's features cannot be read", chain(&e), way_out))?;
    for step in &intent.plan.steps {
        let Step::PoolCreate(create) = step else {
            continue;
        };
        let unknown: Vec<&str> = create
            .recipe
            .features
            .iter()
            .map(String::as_str)
            .filter(|name| !known.iter().any(|k| k == name))
            .collect();
        if !unknown.is_empty() {
            return Err(refuse(
                format!(
                    "this module does not know all features of pool {}",
                    create.recipe.pool
                ),
                unknown.join(", "),
                way_out,
            ));
        }
    }
    Ok(())
}

/// A pool that the initrd imported is exported when nothing of it is mounted.
fn release_pool(host: &dyn Host, state: &StateDir, intent: &Intent) -> Result<(), Refusal> {
    let pool = &intent.bound.pool;
    let zfs = Zfs::new(host, &intent.programs);
    let failed = |e: ZfsError| {
        refuse(
            format!("pool {pool} cannot be released"),
            chain(&e),
            "see the journal of this boot",
        )
    };
    let imported = zfs.imported().map_err(failed)?;
    let Some((_, guid)) = imported.iter().find(|(name, _)| name == pool.as_str()) else {
        return Ok(());
    };
    if *guid != intent.bound.pool_guid {
        return Err(Refusal::FactChanged {
            fact: format!("the guid of the imported pool {pool}"),
            expected: intent.bound.pool_guid.to_string(),
            found: guid.to_string(),
        });
    }
    if let Some(at) = zfs.mounted_below(pool.as_str()).map_err(failed)?.first() {
        return Err(Refusal::InUse {
            what: format!("pool {pool}, imported before this unit,"),
            by: format!("mounted at {at}"),
        });
    }
    let exported = zfs.export(pool.as_str()).map_err(failed);
    // ORDER: an export rewrites the cache file without any pool that is not imported
    // yet; until its bytes are back, every other pool would stay away at the next
    // boot. Pinned by `exporting_a_pool_puts_the_cache_file_back`.
    let restored = cache_file::restore(host, state, &intent.run_id).map_err(|e| {
        refuse(
            "the pools' cache file cannot be put back",
            chain(&e),
            "see the journal",
        )
    });
    exported.and(restored)
}
