//! Puts the plan together: the order of the steps is decided here and nowhere else.

use crate::bound::{Bound, bound_of, name_of};
use crate::chain::chain;
use crate::plan::{Loss, Plan, PlanDisk, Touched, VERSION};
use crate::policy::{Mode, Policy, policy_digest};
use crate::refusal::Refusal;
use crate::step::{
    KernelPart, KernelTable, LabelClear, PoolCreate, SignatureWipe, Step, TableWrite,
};
use crate::survey::{Host, Partition, Pool, StaleLabel, Survey};
use crate::table::{
    EntrySpec, MergeMode, TableChange, TableEdit, edit, merged_spec, parse_table, shadow_place,
};
use crate::units::{Bytes, Extent, PartNo, PoolGuid, VdevGuid};

use super::choose::{Chosen, choose, contents, part_name};
use super::containerd::{Clear, clear};
use super::losses::losses;
use super::recipe::{recipe, skeleton};

/// Makes the plan for one node, or says why there is none.
pub fn plan(policy: &Policy, survey: &Survey) -> Result<Plan, Refusal> {
    let chosen = choose(policy, survey)?;
    let host = live_host(survey)?;
    let pool = live_pool(policy, survey, &chosen)?;
    let Draft { new, mut steps } = draft(policy, &chosen)?;
    let clear = match policy.mode {
        Mode::Recreate => clear(policy, survey, pool)?,
        Mode::Grow => Clear::default(),
    };
    // ORDER: labels are cleared while the table still says where the old vdevs end;
    // after the table they surface in the new partition. containerd comes last,
    // because it forgets what only the destroyed pool held. Pinned by the property
    // `steps_stand_in_order`.
    if policy.mode == Mode::Recreate {
        steps.push(Step::PoolCreate(PoolCreate {
            recipe: recipe(
                policy,
                pool,
                chosen.label.ashift,
                new.extent.bytes(chosen.disk.block),
            )?,
            partuuid: new.guid,
        }));
        steps.extend(clear.step.clone().map(Step::ContainerdClear));
    }
    Ok(Plan {
        version: VERSION,
        policy: policy_digest(policy).map_err(|e| incomplete(&e.to_string()))?,
        mode: policy.mode,
        machine_id: host.machine_id.clone(),
        disk: plan_disk(&chosen),
        pool: pool.name.clone(),
        pool_guid: chosen.pool_guid,
        vdev_guid: chosen.label.vdev_guid,
        touched: touched(&chosen),
        new: new_part(policy, &new),
        untouched: untouched(&chosen),
        steps,
        image: policy.image.as_ref().map(|i| i.digest),
        snapshots_on: clear.dataset,
        lost: lost(policy, &chosen, pool),
        warnings: [
            clear.warning.into_iter().collect(),
            disk_warnings(policy, &chosen),
            host_warnings(policy, survey),
        ]
        .concat(),
    })
}

/// The facts a plan stands on: what must hold again at boot.
pub fn bind(policy: &Policy, survey: &Survey) -> Result<Bound, Refusal> {
    let chosen = choose(policy, survey)?;
    bound_of(
        &live_host(survey)?.machine_id,
        chosen.disk,
        &chosen.table,
        chosen.image,
        chosen.label,
        &policy.disk.pool,
    )
}

fn live_host(survey: &Survey) -> Result<&Host, Refusal> {
    let host = survey
        .host
        .as_ref()
        .ok_or_else(|| incomplete("an image file has no host"))?;
    match host.required_pool_mounts.first() {
        None => Ok(host),
        Some(mount) => Err(Refusal::Host {
            what: format!("mount {mount} lies on a pool"),
            found: "local-fs.target requires it, and would fail while the pool is away".to_owned(),
            way_out: format!("add `nofail` to {mount} in /etc/fstab"),
        }),
    }
}

/// The pool as it is imported, which must be the one the labels speak of.
fn live_pool<'a>(
    policy: &Policy,
    survey: &'a Survey,
    chosen: &Chosen,
) -> Result<&'a Pool, Refusal> {
    let pool = survey.pool(&policy.disk.pool).ok_or_else(|| {
        incomplete(&format!(
            "pool {} is not imported, so its properties and datasets cannot be read",
            policy.disk.pool
        ))
    })?;
    let refuse = |why: String| Refusal::Pool {
        pool: pool.name.to_string(),
        why,
    };
    if pool.guid != chosen.pool_guid {
        return Err(refuse(format!(
            "the labels on {} are of guid {}, the imported pool has {}",
            name_of(chosen.disk),
            chosen.pool_guid,
            pool.guid
        )));
    }
    match pool.leaves.as_slice() {
        [leaf] if *leaf == chosen.label.vdev_guid => Ok(pool),
        [leaf] => Err(refuse(format!(
            "the labels on {} are of vdev {}, the imported pool's is {leaf}",
            name_of(chosen.disk),
            chosen.label.vdev_guid
        ))),
        leaves => Err(refuse(format!(
            "it has {} leaf vdevs; only a pool of one partition is repaved",
            leaves.len()
        ))),
    }
}

/// What the disk alone decides: the new partition and the steps that make it.
pub(super) struct Draft {
    pub new: EntrySpec,
    pub steps: Vec<Step>,
}

pub(super) fn draft(policy: &Policy, chosen: &Chosen) -> Result<Draft, Refusal> {
    let Change { change, new } = table_change(policy, chosen)?;
    let steps = vec![
        Step::LabelClear(label_clear(policy, chosen, &new)?),
        Step::TableWrite(TableWrite { change }),
        Step::KernelTable(kernel_table(policy, chosen, &new)),
    ];
    Ok(Draft { new, steps })
}

pub(super) fn plan_disk(chosen: &Chosen) -> PlanDisk {
    PlanDisk {
        name: chosen.disk.name.clone(),
        serial: chosen.disk.serial.clone(),
        wwn: chosen.disk.wwn.clone(),
        size: chosen.disk.size,
        block: chosen.disk.block,
        guid: chosen.table.disk_guid,
    }
}

pub(super) fn new_part(policy: &Policy, new: &EntrySpec) -> Touched {
    Touched {
        number: new.number,
        name: new.name_raw.to_string(),
        type_guid: new.type_guid,
        guid: new.guid,
        extent: new.extent,
        holds: format!("pool {}", policy.disk.pool),
    }
}

pub(super) fn incomplete(what: &str) -> Refusal {
    Refusal::Incomplete {
        what: what.to_owned(),
    }
}

struct Change {
    change: TableChange,
    new: EntrySpec,
}

fn table_change(policy: &Policy, chosen: &Chosen) -> Result<Change, Refusal> {
    let disk = name_of(chosen.disk);
    let refuse = |why: String| Refusal::Table {
        disk: disk.clone(),
        why,
    };
    let mode = match policy.mode {
        Mode::Recreate => MergeMode::Recreate,
        Mode::Grow => MergeMode::Grow,
    };
    let removed: Vec<PartNo> = chosen.removed.iter().map(|p| p.number).collect();
    let new = merged_spec(&chosen.table, chosen.member.number, &removed, mode)
        .map_err(|e| refuse(chain(&e)))?;
    let mut remove = removed;
    if mode == MergeMode::Recreate {
        remove.push(chosen.member.number);
    }
    let asked = TableEdit {
        remove,
        put: new.clone(),
        relocate_backup: policy.disk.relocate_backup,
    };
    let after = edit(chosen.image, &asked).map_err(|e| refuse(chain(&e)))?;
    let dead: Vec<Extent> = chosen.removed.iter().map(|p| p.extent).collect();
    let Some(shadow) = shadow_place(chosen.image, &after, &chosen.disk.zero_runs, &dead) else {
        let array = parse_table(&after).map(|t| t.primary_array.bytes(t.block));
        return Err(Refusal::NoShadow {
            disk,
            need: array.unwrap_or(Bytes(0)),
        });
    };
    let change =
        TableChange::new(chosen.image.clone(), after, shadow).map_err(|e| refuse(chain(&e)))?;
    Ok(Change { change, new })
}

fn label_clear(policy: &Policy, chosen: &Chosen, new: &EntrySpec) -> Result<LabelClear, Refusal> {
    let mut pool_guids: Vec<PoolGuid> = Vec::new();
    let mut vdev_guids: Vec<VdevGuid> = Vec::new();
    for part in &chosen.removed {
        for label in &part.labels {
            match label.pool_guid {
                Some(guid) => pool_guids.push(guid),
                None => vdev_guids.push(label.vdev_guid),
            }
        }
    }
    let (mut extents, kept) = match policy.mode {
        Mode::Recreate => {
            pool_guids.push(chosen.pool_guid);
            (vec![chosen.member.extent], Vec::new())
        }
        Mode::Grow => (Vec::new(), vec![chosen.pool_guid]),
    };
    extents.extend(chosen.removed.iter().map(|p| p.extent));
    extents.push(new.extent);
    for stale in stale_inside(chosen, &extents) {
        check_stale(policy, stale, &pool_guids)?;
    }
    pool_guids.sort();
    pool_guids.dedup();
    vdev_guids.sort();
    vdev_guids.dedup();
    let signatures = chosen
        .removed
        .iter()
        .flat_map(|p| &p.signatures)
        .map(|s| SignatureWipe {
            kind: s.kind.clone(),
            offset: s.offset.0,
            magic: s.magic.clone(),
        })
        .collect();
    Ok(LabelClear {
        extents,
        pool_guids,
        vdev_guids,
        kept_pool_guids: kept,
        signatures,
    })
}

/// Stale labels that would lie in the new partition.
fn stale_inside<'a>(chosen: &Chosen<'a>, extents: &[Extent]) -> Vec<&'a StaleLabel> {
    let block = chosen.disk.block;
    let inside = |stale: &&StaleLabel| {
        extents.iter().any(|e| {
            let start = e.offset(block).0;
            (start..start + e.bytes(block).0).contains(&stale.offset.0)
        })
    };
    chosen.disk.stale.iter().filter(inside).collect()
}

fn check_stale(policy: &Policy, stale: &StaleLabel, named: &[PoolGuid]) -> Result<(), Refusal> {
    let known = match stale.pool_guid {
        Some(guid) => named.contains(&guid),
        // A remnant without a label belongs to nobody; it is cleared with the rest.
        None => stale.vdev_guid.is_none(),
    };
    if known
        || policy.mode == Mode::Grow && stale.pool.as_deref() == Some(policy.disk.pool.as_str())
    {
        return Ok(());
    }
    Err(Refusal::ForeignLabel {
        place: format!("byte {} of the disk", stale.offset.0),
        pool: stale.pool.clone().unwrap_or_else(|| "-".to_owned()),
        guid: stale
            .pool_guid
            .map_or_else(|| "none".to_owned(), |g| g.to_string()),
    })
}

fn kernel_table(policy: &Policy, chosen: &Chosen, new: &EntrySpec) -> KernelTable {
    let old = |p: &Partition| KernelPart {
        number: p.number,
        extent: p.extent,
    };
    let mut delete: Vec<KernelPart> = chosen.removed.iter().map(|p| old(p)).collect();
    let wanted = KernelPart {
        number: new.number,
        extent: new.extent,
    };
    let (add, resize) = match policy.mode {
        Mode::Recreate => {
            delete.push(old(chosen.member));
            (Some(wanted), None)
        }
        Mode::Grow => (None, Some(wanted)),
    };
    delete.sort_by_key(|p| p.number);
    KernelTable {
        delete,
        add,
        resize,
        partuuid: new.guid,
    }
}

pub(super) fn touched(chosen: &Chosen) -> Vec<Touched> {
    let mut parts: Vec<&Partition> = chosen
        .removed
        .iter()
        .copied()
        .chain([chosen.member])
        .collect();
    parts.sort_by_key(|p| p.extent.first);
    parts.into_iter().map(describe).collect()
}

pub(super) fn untouched(chosen: &Chosen) -> Vec<Touched> {
    let mut parts: Vec<&Partition> = chosen
        .disk
        .partitions
        .iter()
        .filter(|p| p.number != chosen.member.number)
        .filter(|p| chosen.removed.iter().all(|r| r.number != p.number))
        .collect();
    parts.sort_by_key(|p| p.extent.first);
    parts.into_iter().map(describe).collect()
}

fn describe(part: &Partition) -> Touched {
    Touched {
        number: part.number,
        name: part.name.clone(),
        type_guid: part.type_guid,
        guid: part.guid,
        extent: part.extent,
        holds: contents(part),
    }
}

/// The partitions that are given up.
pub(super) fn lost_partitions(chosen: &Chosen) -> Vec<Loss> {
    let block = chosen.disk.block;
    let removed = chosen.removed.iter();
    removed
        .map(|p| Loss {
            what: format!("partition {}: {}", part_name(p), contents(p)),
            count: 1,
            bytes: p.extent.bytes(block),
            datasets: Vec::new(),
        })
        .collect()
}

fn lost(policy: &Policy, chosen: &Chosen, pool: &Pool) -> Vec<Loss> {
    let mut all = lost_partitions(chosen);
    if policy.mode == Mode::Recreate {
        all.push(Loss {
            what: format!("pool {} (guid {}), all of its data", pool.name, pool.guid),
            count: 1,
            bytes: pool.allocated,
            datasets: Vec::new(),
        });
        all.extend(losses(pool, &skeleton(policy)));
    }
    all
}

pub(super) fn disk_warnings(policy: &Policy, chosen: &Chosen) -> Vec<String> {
    let mut warnings = Vec::new();
    let behind = chosen
        .removed
        .iter()
        .all(|p| p.extent.first > chosen.member.extent.last);
    if policy.mode == Mode::Recreate && behind {
        warnings.push(
            "the freed space directly follows the pool: `mode = \"grow\"` would keep its data"
                .to_owned(),
        );
    }
    let end = chosen.image.last_lba();
    if chosen.table.backup_lba != end {
        warnings.push(format!(
            "the backup table is moved from {} to the end of the disk, {end}",
            chosen.table.backup_lba
        ));
    }
    warnings
}

fn host_warnings(policy: &Policy, survey: &Survey) -> Vec<String> {
    let any_image =
        policy.image.is_none() && survey.host.as_ref().is_some_and(|h| h.image.is_some());
    any_image
        .then(|| "the policy names no image: the run is done on whichever boots".to_owned())
        .into_iter()
        .chain(
            survey
                .unknown
                .iter()
                .map(|what| format!("not seen: {what}")),
        )
        .collect()
}
