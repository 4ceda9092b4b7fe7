//! The pools' cache file, `/etc/zfs/zpool.cache`: saved before the run, put back
//! whenever a command may have written it without the pools that are not imported yet.
//!
//! OpenZFS rewrites it in place with only the pools that are imported at that moment
//! (`module/zfs/spa_config.c`, `spa_write_cachefile`), and at early boot none is. A
//! power cut during that write leaves an empty file.

use std::path::Path;

use repave_plan::units::{PoolGuid, RunId};
use repave_survey::labels::nvlist::parse_packed;

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

/// Takes the destroyed pool out of the file, every other byte as it was: the import unit
/// would fail over it at the end of this boot. A file that cannot be read that way is
/// left as it is; the unit's complaint is then all that comes of it.
pub fn forget(host: &dyn Host, pool: &str, guid: PoolGuid) -> Result<(), HostError> {
    let bytes = host.read(Path::new(PATH))?.unwrap_or_default();
    match without(&bytes, pool, guid) {
        Some(rest) => host.write(Path::new(PATH), &rest),
        None => Ok(()),
    }
}

/// The packed list without one pool; nothing when it does not hold that pool. A list
/// of no pool becomes an empty file, which the import unit's condition knows.
fn without(bytes: &[u8], pool: &str, guid: PoolGuid) -> Option<Vec<u8>> {
    let unpacked = parse_packed(bytes).ok().filter(|u| u.damage.is_none())?;
    if unpacked.list.list(pool)?.u64("pool_guid") != Some(guid.0) {
        return None;
    }
    let index = unpacked.list.names().position(|name| name == pool)?;
    if unpacked.list.names().count() == 1 {
        return Some(Vec::new());
    }
    // Header, version and flags; then pairs that each begin with their own encoded size
    // (OpenZFS `module/nvpair/nvpair.c`, `nvs_xdr_nvpair`).
    let mut at = 12;
    for _ in 0..index {
        at += encoded_size(bytes, at)?;
    }
    let end = at + encoded_size(bytes, at)?;
    Some([bytes.get(..at)?, bytes.get(end..)?].concat())
}

fn encoded_size(bytes: &[u8], at: usize) -> Option<usize> {
    let raw: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(raw))
        .ok()
        .filter(|size| *size > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packed list of pools, as `spa_write_cachefile` packs it.
    fn packed(pools: &[(&str, u64)]) -> Vec<u8> {
        let mut out = vec![1, 1, 0, 0];
        out.extend([0u8; 8]);
        for (name, guid) in pools {
            let mut inner = [0u8; 8].to_vec();
            inner.extend(pair("pool_guid", 8, &guid.to_be_bytes()));
            inner.extend([0u8; 8]);
            out.extend(pair(name, 19, &inner));
        }
        out.extend([0u8; 8]);
        out
    }

    fn pair(name: &str, code: u32, value: &[u8]) -> Vec<u8> {
        let mut body = (name.len() as u32).to_be_bytes().to_vec();
        body.extend(name.as_bytes());
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend(code.to_be_bytes());
        body.extend(1u32.to_be_bytes());
        body.extend(value);
        let size = (body.len() + 8) as u32;
        [
            size.to_be_bytes().to_vec(),
            size.to_be_bytes().to_vec(),
            body,
        ]
        .concat()
    }

    #[test]
    fn only_the_destroyed_pool_is_forgotten() {
        let all = packed(&[("other", 7), ("tank", 9), ("zoo", 8)]);
        let rest = without(&all, "tank", PoolGuid(9)).unwrap();
        assert_eq!(rest, packed(&[("other", 7), ("zoo", 8)]));
        assert_eq!(without(&rest, "tank", PoolGuid(9)), None);
        assert_eq!(
            without(&packed(&[("tank", 9)]), "tank", PoolGuid(9)),
            Some(Vec::new())
        );
    }

    #[test]
    fn another_pool_of_the_name_and_a_damaged_file_are_left() {
        let all = packed(&[("other", 7), ("tank", 10)]);
        assert_eq!(without(&all, "tank", PoolGuid(9)), None);
        for cut in 0..all.len() {
            assert_eq!(
                without(&all[..cut], "tank", PoolGuid(10)),
                None,
                "cut at {cut}"
            );
        }
        assert_eq!(without(b"", "tank", PoolGuid(9)), None);
    }
}
