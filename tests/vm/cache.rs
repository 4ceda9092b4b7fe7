//! Where the bed is kept: outside the clone, so that a fresh clone does not pay twice.
//!
//! Everything is made under a name ending in `.part` and renamed when whole; a
//! lock file keeps two builders apart.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};

/// The cache folder, `${XDG_CACHE_HOME:-~/.cache}/repave`.
pub fn folder() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
        Some(base) => PathBuf::from(base),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    let folder = base.join("repave");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder)
}

/// Holds the cache against other builders until dropped.
pub fn lock() -> Result<Flock<File>> {
    let path = folder()?.join("lock");
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => return Ok(lock),
        Err((file, _)) => file,
    };
    eprintln!("another process is building the bed: waiting for it");
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, errno)| errno)
        .with_context(|| format!("lock {}", path.display()))
}

/// The first 12 hex digits of the SHA-256 over `parts`, each ended by a zero byte.
pub fn key<S: AsRef<[u8]>>(parts: impl IntoIterator<Item = S>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_ref());
        hash.update([0]);
    }
    hash.finalize()
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The name under which `path` is being made. What an interrupted build left
/// there is removed.
pub fn part(path: &Path) -> Result<PathBuf> {
    let mut name = path.to_owned().into_os_string();
    name.push(".part");
    let part = PathBuf::from(name);
    remove(&part)?;
    if let Some(parent) = part.parent() {
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    }
    Ok(part)
}

/// Renames the finished `part` to `path`.
pub fn publish(part: &Path, path: &Path) -> Result<()> {
    fs::rename(part, path).with_context(|| format!("publish {}", path.display()))
}

/// Removes a file or a whole tree of the cache.
pub fn remove(path: &Path) -> Result<()> {
    super::command::Run::new("rm")
        .args(["-rf", "--one-file-system", "--"])
        .arg(path)
        .run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_tells_where_one_part_ends() {
        assert_eq!(key(["a", "b"]).len(), 12);
        assert_ne!(key(["a", "b"]), key(["ab", ""]));
        assert_ne!(key(["a", "b"]), key(["b", "a"]));
    }
}
