//! Where things are on the host.
//!
//! Stage: none; these are names. All are absolute paths as the host sees them; a
//! [`crate::HostFiles`] puts its root in front. State is on `/var`, which every
//! ostree deployment shares; units are in `/etc`, which every deployment has its own of.

use repave_plan::units::{Digest, RunId};

/// The state directory.
pub const STATE: &str = "/var/lib/repave";
/// The sealed intent: armed. It lives for one boot.
pub const INTENT: &str = "/var/lib/repave/intent.json";
/// The point of no return; only this keeps containers out.
pub const CHANGED: &str = "/var/lib/repave/changed";
/// Held while something arms or disarms.
pub const LOCK: &str = "/var/lib/repave/lock";
/// One folder a run, kept.
pub const RUNS: &str = "/var/lib/repave/runs";
/// One folder a boot binary, named by its digest.
pub const BIN: &str = "/var/lib/repave/bin";
/// The trees that `repave-cleanup.service` still has to remove.
pub const CLEANUP: &str = "/var/lib/repave/cleanup.json";
/// The boot binary of an image that ships one.
pub const BAKED_BINARY: &str = "/usr/libexec/repave/repave-boot";
/// Where units and drop-ins are written.
pub const UNITS: &str = "/etc/systemd/system";
/// Marks of this boot.
pub const RUNTIME: &str = "/run/repave";
/// The mark that this boot armed, so that it is not the boot that runs.
pub const ARMED_MARK: &str = "/run/repave/armed";

/// The folder of a run.
pub fn run_dir(run: &RunId) -> String {
    format!("{RUNS}/{run}")
}

/// The folder of a boot binary.
pub fn binary_dir(digest: &Digest) -> String {
    let text = digest.to_string();
    format!("{BIN}/{}", text.strip_prefix("sha256:").unwrap_or(&text))
}

/// The folder a path is in.
pub(crate) fn parent(path: &str) -> &str {
    match path.rfind('/') {
        None | Some(0) => "/",
        Some(at) => &path[..at],
    }
}
