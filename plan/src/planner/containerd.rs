//! Decides what containerd must forget.
//!
//! The pool may carry the snapshotter's directory, containerd's whole root, or
//! neither; only in the first case there is something to clear, in the second the
//! metadata dies with the pool but its mount could not be ordered against the run.

use crate::policy::{ClearMode, Policy};
use crate::refusal::Refusal;
use crate::step::ContainerdClear;
use crate::survey::{Containerd, PathFacts, Pool, Survey};
use crate::units::DatasetName;

/// The step, and the dataset that carries the snapshotter.
#[derive(Debug, Default)]
pub(super) struct Clear {
    pub step: Option<ContainerdClear>,
    pub dataset: Option<DatasetName>,
    pub warning: Option<String>,
}

pub(super) fn clear(policy: &Policy, survey: &Survey, pool: &Pool) -> Result<Clear, Refusal> {
    let mode = policy.containerd.clear;
    let Some(containerd) = &survey.containerd else {
        return match mode {
            ClearMode::None => Ok(Clear::default()),
            ClearMode::Snapshots | ClearMode::All => Err(Refusal::Containerd {
                why: "it was not found on this node".to_owned(),
                way_out: "name its root in [containerd], or set clear = \"none\"".to_owned(),
            }),
        };
    };
    if on_pool(&containerd.root, pool) {
        return Err(Refusal::Containerd {
            why: format!(
                "its root {} lies on pool {}: the boot run cannot wait for a mount it removes",
                containerd.root.path, pool.name
            ),
            way_out: "keep containerd's root on the root file system and only the \
                      snapshotter's directory on the pool"
                .to_owned(),
        });
    }
    let Some(dataset) = snapshotter_dataset(containerd, pool) else {
        return Ok(Clear {
            warning: Some(format!(
                "pool {} does not carry {}: containerd's metadata is left as it is",
                pool.name, containerd.snapshotter_dir.path
            )),
            ..Clear::default()
        });
    };
    let policy_has = policy.datasets.iter().any(|d| {
        d.name.as_str() == dataset.as_str() || d.name.as_str().starts_with(&format!("{dataset}/"))
    });
    if !policy_has {
        return Err(Refusal::Dataset {
            dataset: dataset.to_string(),
            why: "it carries containerd's snapshots and the policy does not recreate it".to_owned(),
        });
    }
    if mode == ClearMode::None {
        return Ok(Clear {
            step: None,
            dataset: Some(dataset),
            warning: Some(
                "clear = \"none\": containerd will list snapshots that are gone, and no \
                 container will start until its metadata is cleared by hand"
                    .to_owned(),
            ),
        });
    }
    Ok(Clear {
        step: Some(ContainerdClear {
            root: containerd.root.path.clone(),
            snapshotter: containerd.snapshotter.clone(),
            mode,
            pool: pool.name.clone(),
        }),
        dataset: Some(dataset),
        warning: None,
    })
}

fn on_pool(path: &PathFacts, pool: &Pool) -> bool {
    path.fs_type == "zfs" && path.source.split('/').next() == Some(pool.name.as_str())
}

/// The dataset under the snapshotter's directory: the one mounted there, or, on a node
/// whose pool is imported and not mounted, the one whose mountpoint it is.
fn snapshotter_dataset(containerd: &Containerd, pool: &Pool) -> Option<DatasetName> {
    let dir = &containerd.snapshotter_dir;
    if on_pool(dir, pool) {
        return dir.source.parse().ok();
    }
    let mounts_here = |value: &str| {
        dir.path == value
            || dir
                .path
                .strip_prefix(value)
                .is_some_and(|rest| rest.starts_with('/') && value != "/")
    };
    pool.datasets
        .iter()
        .find(|d| {
            d.properties
                .get("mountpoint")
                .is_some_and(|p| mounts_here(&p.value))
        })
        .map(|d| d.name.clone())
}
