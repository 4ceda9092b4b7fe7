//! The pools' cache file, `/etc/zfs/zpool.cache`: saved before the run, put back
//! whenever a command may have written it without the pools that are not imported yet.
//!
//! OpenZFS rewrites it in place with only the pools that are imported at that moment
//! (`module/zfs/spa_config.c`, `spa_write_cachefile`), and at early boot none is. A
//! power cut during that write leaves an empty file.

use std::path::Path;

use repave_plan::units::RunId;

use crate::host::{Host, HostError};
use crate::state_dir::{CACHE_COPY, StateDir};

/// Where the import units look.
pub const PATH: &str = "/etc/zfs/zpool.cache";

/// Saves the file's bytes with the run. A host without one gets an empty copy, which
/// says the same to `restore`.
pub fn save(host: &dyn Host, state: &StateDir, run: &RunId) -> Result<(), HostError> {
    let bytes = host.read(Path::new(PATH))?.unwrap_or_default();
    host.write(&state.run_file(run, CACHE_COPY), &bytes)
}

/// Puts the saved bytes back when the file differs from them.
pub fn restore(host: &dyn Host, state: &StateDir, run: &RunId) -> Result<(), HostError> {
    let Some(saved) = host.read(&state.run_file(run, CACHE_COPY))? else {
        return Ok(());
    };
    if host.read(Path::new(PATH))?.unwrap_or_default() == saved {
        return Ok(());
    }
    host.write(Path::new(PATH), &saved)
}
