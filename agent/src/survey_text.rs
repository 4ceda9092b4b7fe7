//! A survey for a person: disks with their partitions, pools, containerd, and what could
//! not be seen.

use repave_plan::picture::plain;
use repave_plan::planner::describe_use;
use repave_plan::survey::{Disk, Partition, Pool, Survey, TableFound};

/// The text, one thing a line.
pub fn survey_text(survey: &Survey) -> String {
    let mut lines = Vec::new();
    if let Some(host) = &survey.host {
        lines.push(format!(
            "host       {} ({}), kernel {}",
            host.hostname, host.machine_id, host.kernel
        ));
        let zfs = |version: &Option<String>| version.clone().unwrap_or_else(|| "none".to_owned());
        lines.push(format!(
            "zfs        tools {}, module {}",
            zfs(&host.zfs_tools),
            zfs(&host.zfs_module)
        ));
        let state = &host.state_dir;
        lines.push(format!(
            "state      {} on {} ({}), {} free",
            state.path, state.mount_point, state.fs_type, state.free
        ));
        if let Some(image) = &host.image {
            let digest = |d: &Option<_>| match d {
                Some(digest) => format!("{digest}"),
                None => "none".to_owned(),
            };
            lines.push(format!("image      booted {}", digest(&image.booted)));
            lines.push(format!("           staged {}", digest(&image.staged)));
        }
        let starters = match host.starters.is_empty() {
            true => "none".to_owned(),
            false => host.starters.join(", "),
        };
        lines.push(format!("starters   {starters}"));
    }
    survey
        .disks
        .iter()
        .for_each(|disk| add_disk(&mut lines, disk));
    survey
        .pools
        .iter()
        .for_each(|pool| add_pool(&mut lines, pool));
    if let Some(containerd) = &survey.containerd {
        let dir = &containerd.snapshotter_dir;
        lines.push(format!("containerd {}", containerd.root.path));
        lines.push(format!(
            "           snapshotter {} in {} ({} {})",
            containerd.snapshotter, dir.path, dir.fs_type, dir.source
        ));
    }
    for what in &survey.unknown {
        lines.push(format!("unknown    {what}"));
    }
    lines.iter().map(|line| plain(line) + "\n").collect()
}

fn add_disk(lines: &mut Vec<String>, disk: &Disk) {
    let table = match &disk.table {
        TableFound::Gpt { .. } => "GPT".to_owned(),
        TableFound::None => "no GPT".to_owned(),
        TableFound::Unreadable { why } => why.clone(),
    };
    lines.push(format!(
        "disk       {}, serial {}, {} in blocks of {} bytes, {table}",
        disk.name,
        disk.serial.as_deref().unwrap_or("unknown"),
        disk.size,
        disk.block.0,
    ));
    for part in &disk.partitions {
        lines.push(format!(
            "           {:4} {:16} {:>10}  {}",
            part.number.to_string(),
            part.name,
            part.extent.bytes(disk.block).to_string(),
            holds(part)
        ));
    }
    for stale in &disk.stale {
        lines.push(format!(
            "           a label of pool {} (guid {}) at byte {}, of an earlier layout",
            stale.pool.as_deref().unwrap_or("-"),
            stale
                .pool_guid
                .map_or_else(|| "none".to_owned(), |g| g.to_string()),
            stale.offset.0
        ));
    }
    for by in &disk.uses {
        lines.push(format!("           in use: {}", describe_use(by)));
    }
}

fn holds(part: &Partition) -> String {
    let labels = part.labels.iter().map(|label| {
        let pool = label.pool.as_deref().unwrap_or("none");
        let guid = label
            .pool_guid
            .map_or_else(|| "none".to_owned(), |g| g.to_string());
        format!("label of pool {pool} (guid {guid})")
    });
    let signatures = part.signatures.iter().map(|s| s.kind.clone());
    let uses = part.uses.iter().map(describe_use);
    let all: Vec<String> = labels.chain(signatures).chain(uses).collect();
    match all.is_empty() {
        true => "no signature".to_owned(),
        false => all.join(", "),
    }
}

fn add_pool(lines: &mut Vec<String>, pool: &Pool) {
    lines.push(format!(
        "pool       {} (guid {}), {}, {}, {} allocated, {} leaf vdevs, {} datasets",
        pool.name,
        pool.guid,
        pool.health,
        pool.size,
        pool.allocated,
        pool.leaves.len(),
        pool.datasets.len()
    ));
}
