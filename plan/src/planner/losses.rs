//! What is lost with the pool: for the person who approves, and for the reclaim.
//!
//! Datasets that are not in the skeleton are grouped by their parent, with their
//! number and size, so that a thousand snapshots of a snapshotter are one line.

use std::collections::{BTreeMap, BTreeSet};

use crate::intent::Volume;
use crate::plan::{Loss, Plan};
use crate::survey::Pool;
use crate::units::{Bytes, DatasetName};

/// The datasets that will not be made again, grouped by their nearest skeleton parent.
pub(super) fn losses(pool: &Pool, skeleton: &BTreeSet<String>) -> Vec<Loss> {
    let mut groups: BTreeMap<&str, Loss> = BTreeMap::new();
    for dataset in &pool.datasets {
        let name = dataset.name.as_str();
        if skeleton.contains(name) {
            continue;
        }
        let parent = kept_parent(name, skeleton);
        let loss = groups.entry(parent).or_insert_with(|| Loss {
            what: format!("datasets below {parent}"),
            count: 0,
            bytes: Bytes(0),
            datasets: Vec::new(),
        });
        loss.count += 1;
        // `used` counts the children too: only the topmost lost datasets are summed.
        if name
            .rsplit_once('/')
            .is_none_or(|(above, _)| above == parent)
        {
            loss.bytes.0 = loss.bytes.0.saturating_add(dataset.used.0);
        }
        loss.datasets.push(dataset.name.clone());
    }
    groups.into_values().collect()
}

/// The volumes a driver made, as they are in the pool now: everything that is lost and
/// is not a snapshotter's.
pub fn volumes(plan: &Plan, pool: &Pool) -> Vec<Volume> {
    let snapshotter = plan.snapshots_on.as_ref();
    let lost: BTreeSet<&str> = plan
        .lost
        .iter()
        .flat_map(|l| &l.datasets)
        .map(DatasetName::as_str)
        .collect();
    let below = |name: &str| {
        snapshotter.is_some_and(|s| {
            name.strip_prefix(s.as_str())
                .is_some_and(|rest| rest.starts_with('/'))
        })
    };
    pool.datasets
        .iter()
        .filter(|d| lost.contains(d.name.as_str()) && !below(d.name.as_str()))
        .map(|d| Volume {
            name: d.name.clone(),
            guid: d.guid,
            used: d.used,
        })
        .collect()
}

fn kept_parent<'a>(name: &'a str, skeleton: &BTreeSet<String>) -> &'a str {
    let mut parent = name;
    while let Some((above, _)) = parent.rsplit_once('/') {
        if skeleton.contains(above) {
            return above;
        }
        parent = above;
    }
    parent
}
