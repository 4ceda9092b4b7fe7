//! Stage *survey*: the machine as it is, as one value.
//!
//! Takes a [`SurveyRequest`], gives a [`Survey`]. Everything is read-only. What a plan
//! cannot do without is an error that names the thing and the way out; what is wrong
//! with a single disk or another pool stands in `unknown` and is printed with the plan.

use std::collections::BTreeSet;
use std::path::Path;

use repave_plan::chain::chain;
use repave_plan::policy::{ContainerdPolicy, Policy};
use repave_plan::survey::{Containerd, Disk, Host, Pool, Survey, VERSION};
use repave_plan::units::{BlockSize, Bytes, DatasetName, PoolName, UnixTime};

use crate::block::{BlockDisk, BlockError, DeviceUses, read_disks};
use crate::block_io::BlockRead;
use crate::containerd_config::{ContainerdError, read_containerd};
use crate::device::{FileDev, OpenError};
use crate::disk::{read_disk, unreadable_disk};
use crate::host::{HostError, read_host};
use crate::host_tools::Tools;
use crate::mounts::{Mount, MountError, read_mounts, read_swaps};
use crate::root::Root;
use crate::zpool::{PoolError, PoolReader, module_is_loaded, with_parents};

/// How much is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// All that a plan needs.
    Full,
    /// What an intent is bound to: disks with their labels, the host's ids and image,
    /// names and guids of imported pools. No dataset, no containerd, no version of ZFS.
    Bound,
}

/// What is to be surveyed.
pub struct SurveyRequest<'a> {
    /// The host's file system.
    pub root: &'a Root,
    /// The host's programs.
    pub tools: &'a dyn Tools,
    /// The clock.
    pub now: UnixTime,
    /// The state directory (`/var/lib/repave`).
    pub state_dir: &'a str,
    /// Says which pool and which datasets are the matter, and where containerd is meant
    /// to be. Without one every pool's datasets are listed and none is wanted.
    pub policy: Option<&'a Policy>,
    /// How much.
    pub detail: Detail,
}

/// Why there is no survey.
#[derive(Debug, thiserror::Error)]
pub enum SurveyError {
    /// The host.
    #[error("survey the host")]
    Host(#[from] HostError),
    /// Mounts and swap.
    #[error("survey the mounts")]
    Mounts(#[from] MountError),
    /// Disks.
    #[error("survey the disks")]
    Disks(#[from] BlockError),
    /// Pools.
    #[error("survey the pools")]
    Pools(#[from] PoolError),
    /// containerd.
    #[error("survey containerd")]
    Containerd(#[from] ContainerdError),
    /// An image file.
    #[error("survey the image")]
    Image(#[from] OpenError),
}

/// Surveys a machine.
pub fn read_survey(request: &SurveyRequest<'_>) -> Result<Survey, SurveyError> {
    let root = request.root;
    let mut unknown = Vec::new();
    let mounts = read_mounts(root)?;
    let host = read_host(request, &mounts, &mut unknown)?;
    let containerd = match request.detail {
        Detail::Full => {
            let policy: Option<&ContainerdPolicy> = request.policy.map(|policy| &policy.containerd);
            read_containerd(root, &mounts, policy)?
        }
        Detail::Bound => None,
    };
    let pools = read_pools(request, &host, &mounts, containerd.as_ref(), &mut unknown)?;
    let disks = read_all_disks(root, &mounts, &mut unknown)?;
    Ok(Survey {
        version: VERSION,
        taken: request.now,
        host: Some(host),
        disks,
        pools,
        containerd,
        unknown,
    })
}

/// Surveys an image file as if it were the only disk.
pub fn read_image_survey(
    path: &Path,
    block: BlockSize,
    now: UnixTime,
) -> Result<Survey, SurveyError> {
    let dev = FileDev::open(path, Some(block.0))?;
    let seen = BlockDisk {
        name: path.display().to_string(),
        node: path.display().to_string(),
        serial: None,
        wwn: None,
        size: Bytes(dev.len()),
        block,
        read_only: false,
        uses: Vec::new(),
        partitions: Vec::new(),
    };
    let mut unknown = Vec::new();
    let disk = read_disk(&dev, seen, &mut unknown);
    Ok(Survey {
        version: VERSION,
        taken: now,
        host: None,
        disks: vec![disk],
        pools: Vec::new(),
        containerd: None,
        unknown,
    })
}

fn read_all_disks(
    root: &Root,
    mounts: &[Mount],
    unknown: &mut Vec<String>,
) -> Result<Vec<Disk>, SurveyError> {
    let uses = DeviceUses::read(root, mounts, &read_swaps(root)?)?;
    let mut disks = Vec::new();
    for seen in read_disks(root, &uses, unknown)? {
        let opened = match root.reachable(&seen.node) {
            Ok(path) => FileDev::open(&path, Some(seen.block.0)).map_err(|error| chain(&error)),
            Err(error) => Err(format!("find {}: {error}", seen.node)),
        };
        disks.push(match opened {
            Ok(dev) => read_disk(&dev, seen, unknown),
            Err(why) => {
                unknown.push(format!("disk {}: {why}", seen.name));
                unreadable_disk(seen, why)
            }
        });
    }
    Ok(disks)
}

fn read_pools(
    request: &SurveyRequest<'_>,
    host: &Host,
    mounts: &[Mount],
    containerd: Option<&Containerd>,
    unknown: &mut Vec<String>,
) -> Result<Vec<Pool>, SurveyError> {
    if !module_is_loaded(request.root)? {
        return Ok(Vec::new());
    }
    let reader = PoolReader::new(request.tools, &host.programs, mounts)?;
    let mut pools = reader.read_names()?;
    if request.detail == Detail::Bound {
        return Ok(pools);
    }
    let wanted = wanted_datasets(request.policy, containerd);
    for pool in &mut pools {
        let essential = is_essential(&pool.name, request.policy, containerd);
        let seen = reader.read_pool(pool).and_then(|()| match essential {
            Essential::No => Ok(()),
            _ => reader
                .read_datasets(&pool.name, &wanted)
                .map(|found| pool.datasets = found),
        });
        match (seen, essential) {
            (Ok(()), _) => {}
            (Err(error), Essential::Yes) => return Err(error.into()),
            // Another pool that does not answer is no reason to leave this one alone.
            (Err(error), _) => unknown.push(format!("pool {}: {}", pool.name, chain(&error))),
        }
    }
    Ok(pools)
}

/// Whether a pool's datasets are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Essential {
    /// The policy or containerd is about it.
    Yes,
    /// Nobody said what the survey is about.
    Unsaid,
    /// The policy is about another one.
    No,
}

fn is_essential(
    pool: &PoolName,
    policy: Option<&Policy>,
    containerd: Option<&Containerd>,
) -> Essential {
    let below_containerd = containerd.and_then(snapshotter_dataset);
    if below_containerd.is_some_and(|dataset| dataset.pool() == pool.as_str()) {
        return Essential::Yes;
    }
    match policy {
        None => Essential::Unsaid,
        Some(policy) if policy.disk.pool == *pool => Essential::Yes,
        Some(_) => Essential::No,
    }
}

/// The datasets whose properties are read: those of the policy, the one below the
/// snapshotter's directory, and all their parents.
fn wanted_datasets(
    policy: Option<&Policy>,
    containerd: Option<&Containerd>,
) -> BTreeSet<DatasetName> {
    let mut names: Vec<DatasetName> = containerd
        .and_then(snapshotter_dataset)
        .into_iter()
        .collect();
    if let Some(policy) = policy {
        names.extend(policy.disk.pool.as_str().parse::<DatasetName>());
        names.extend(policy.datasets.iter().map(|dataset| dataset.name.clone()));
    }
    with_parents(names.iter())
}

fn snapshotter_dataset(containerd: &Containerd) -> Option<DatasetName> {
    let place = &containerd.snapshotter_dir;
    (place.fs_type == "zfs")
        .then(|| place.source.parse().ok())
        .flatten()
}
