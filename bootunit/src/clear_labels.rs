//! `repave-boot clear-labels`: a dead pool's labels, cleared by hand.
//!
//! The rules of the boot run: only the named pool's labels, nothing where none is, never
//! a byte of a partition table, read back. A pool that is imported here is refused.

use std::path::Path;

use repave_plan::step::Outcome;
use repave_plan::units::PoolGuid;
use repave_survey::block_io::BlockRead;
use repave_survey::device::OpenError;
use repave_survey::host::read_programs;
use repave_survey::root::Root;

use crate::device::DiskDev;
use crate::host::{Host, HostError};
use crate::label_clear::hand::{HandClear, HandError, clear_by_hand};
use crate::label_clear::verdict::{Force, InCore};
use crate::zfs::{MODULE_VERSION, Zfs, ZfsError};

/// Why nothing was cleared.
#[derive(Debug, thiserror::Error)]
pub enum ClearLabelsError {
    /// The device or image.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The labels, or what is in the way of clearing them.
    #[error(transparent)]
    Hand(#[from] HandError),
    /// The imported pools could not be asked for.
    #[error("ask which pools are imported")]
    Zfs(#[from] ZfsError),
    /// The host.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// Clears the labels of one pool on a device or image.
pub fn clear_labels(
    host: &dyn Host,
    path: &Path,
    pool: PoolGuid,
    force: Force,
) -> Result<Outcome, ClearLabelsError> {
    let in_core = match imported(host)?.contains(&pool) {
        true => InCore::InUse,
        false => InCore::NotImported,
    };
    let mut dev = DiskDev::open(path, None)?;
    let asked = HandClear {
        extent: 0..dev.len(),
        pools: vec![pool],
        vdevs: Vec::new(),
        in_core,
        force,
    };
    Ok(clear_by_hand(&mut dev, &asked)?)
}

/// Without the module no pool is imported, and asking would load it.
fn imported(host: &dyn Host) -> Result<Vec<PoolGuid>, ClearLabelsError> {
    if host.read(Path::new(MODULE_VERSION))?.is_none() {
        return Ok(Vec::new());
    }
    let unreadable = |source: std::io::Error| HostError::File {
        what: "find the programs below",
        path: "/".to_owned(),
        source,
    };
    let root = Root::at(Path::new("/")).map_err(unreadable)?;
    let programs = read_programs(&root).map_err(|e| unreadable(std::io::Error::other(e)))?;
    let pools = Zfs::new(host, &programs).imported()?;
    Ok(pools.into_iter().map(|(_, guid)| guid).collect())
}
