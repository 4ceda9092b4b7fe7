//! `repave-boot cleanup`: removes, long after the boot, the trees that were moved aside.
//!
//! `cleanup.json` names containerd's root; it is written when a run is closed and
//! removed when nothing is left. The walker never crosses a mount or follows a link.

use std::path::{Path, PathBuf};

use repave_containerd_clear::{RemoveError, remove_aside};
use serde::{Deserialize, Serialize};

use crate::host::{Host, HostError};
use crate::state_dir::StateDir;

/// What is left to remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cleanup {
    /// containerd's root, beside which the trees lie.
    pub root: PathBuf,
}

/// Why a clean-up did not end.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// The list.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The list's content.
    #[error("read {path} as JSON")]
    List {
        /// The list.
        path: String,
        /// The parser's words.
        #[source]
        source: serde_json::Error,
    },
    /// A tree.
    #[error(transparent)]
    Remove(#[from] RemoveError),
}

/// Notes that there is something to remove.
pub fn ask_for(host: &dyn Host, state: &StateDir, root: &Path) -> Result<(), HostError> {
    let text = serde_json::json!({ "root": root });
    host.write(&state.cleanup(), text.to_string().as_bytes())
}

/// Removes what is left. What the walker must leave (a mount) stays, and is said.
pub fn cleanup(host: &dyn Host, state: &StateDir) -> Result<(), CleanupError> {
    let path = state.cleanup();
    let Some(bytes) = host.read(&path)? else {
        return Ok(());
    };
    let cleanup: Cleanup = serde_json::from_slice(&bytes).map_err(|source| CleanupError::List {
        path: path.display().to_string(),
        source,
    })?;
    let report = remove_aside(&cleanup.root)?;
    for left in &report.left {
        tracing::warn!(path = %left.path.display(), err = %left.why, "left as it is");
    }
    host.remove(&path)?;
    Ok(())
}
