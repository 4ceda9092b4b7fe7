//! Disarming, and what a failed arm leaves to undo: the intent first.
//!
//! Stage: none; the way back from arm. It takes a host in any state short of changed
//! and gives one where nothing of this run will start. Without the intent the units do
//! nothing, so a kill at any later moment is harmless. Doing it again is always right.

use crate::files::{FileError, HostFiles, temporary};
use crate::host_systemd::{CallError, Systemd};
use crate::paths::{BIN, CHANGED, CLEANUP, INTENT, LOCK, STATE, UNITS, parent};
use crate::units::{ALL, CLEANUP_UNIT, GATE_NAME, RUN_DROP_IN, STARTERS, Unit};

/// What disarming found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disarmed {
    /// Whether an intent was there.
    pub was_armed: bool,
    /// The files and links that were removed, in order.
    pub removed: Vec<String>,
}

/// Why a host is not disarmed.
#[derive(Debug, thiserror::Error)]
pub enum DisarmError {
    /// A destructive write happened: there is no way back, only on.
    #[error(
        "{CHANGED} exists: the disk was changed and disarming would start containers on it; \
         use repave-boot resume"
    )]
    Changed,
    /// Somebody arms or disarms right now.
    #[error("{LOCK} is held: another arm, disarm or run is at work")]
    Busy,
    /// A file effect failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A call to systemd failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Takes back what [`crate::arm()`] did, intent first; run folders and binaries stay.
pub fn disarm(files: &dyn HostFiles, systemd: &dyn Systemd) -> Result<Disarmed, DisarmError> {
    let _lock = match files.exists(STATE)? {
        true => Some(files.try_lock(LOCK)?.ok_or(DisarmError::Busy)?),
        false => None,
    };
    if files.exists(CHANGED)? {
        return Err(DisarmError::Changed);
    }
    take_back(files, systemd)
}

/// Disarms and removes every boot binary; the run folders stay, they are evidence and
/// the list of spent run ids.
pub fn uninstall(files: &dyn HostFiles, systemd: &dyn Systemd) -> Result<Disarmed, DisarmError> {
    let mut disarmed = disarm(files, systemd)?;
    for digest in files.list(BIN)? {
        let dir = format!("{BIN}/{digest}");
        for name in files.list(&dir)? {
            let path = format!("{dir}/{name}");
            files.remove(&path)?;
            disarmed.removed.push(path);
        }
        files.remove_empty_dir(&dir)?;
    }
    files.remove_empty_dir(BIN)?;
    Ok(disarmed)
}

/// The effects of disarming, for whoever holds the lock.
pub(crate) fn take_back(
    files: &dyn HostFiles,
    systemd: &dyn Systemd,
) -> Result<Disarmed, DisarmError> {
    let was_armed = files.exists(INTENT)?;
    let mut removed = Vec::new();
    // ORDER: the intent first. Units without an intent do nothing; an intent without
    // its gate would run on a node whose containers are not held back
    // (tests/bus.rs, every_kill_leaves_armed_or_not_armed).
    remove_whole(files, INTENT, &mut removed)?;
    if files.exists(STATE)? {
        files.sync_dir(STATE)?;
    }
    // Trees that still have to be removed need their unit on the next boot too.
    let keep_cleanup = files.exists(CLEANUP)?;
    let goes = |unit: &&Unit| !(keep_cleanup && unit.name == CLEANUP_UNIT);
    let mut installed = Vec::new();
    for unit in ALL.iter().filter(goes) {
        if files.exists(&unit.path())? {
            installed.push(unit.name);
        }
    }
    // A systemd that does not answer must not keep the gate and the links in place: they
    // are removed below all the same, and its error is given at the end.
    let asked = match installed.is_empty() {
        true => Ok(()),
        false => systemd.disable(&installed),
    };
    for unit in ALL.iter().filter(goes) {
        // A link whose unit is gone is not systemd's to find; a baked unit keeps its own.
        let link = unit.link();
        if files.read_link(&link)?.is_some_and(|t| is_ours(&t, unit)) {
            remove(files, &link, &mut removed)?;
        }
        remove_whole(files, &unit.path(), &mut removed)?;
    }
    remove_whole(files, RUN_DROP_IN, &mut removed)?;
    files.remove_empty_dir(parent(RUN_DROP_IN))?;
    // Every gate, not only those of today's starters: an earlier arm may have found others.
    for name in files.list(UNITS)? {
        if name.ends_with(".service.d") {
            let dir = format!("{UNITS}/{name}");
            let before = removed.len();
            remove_whole(files, &format!("{dir}/{GATE_NAME}"), &mut removed)?;
            // A folder whose gate a killed arm had not written yet is ours only if empty.
            if removed.len() > before || STARTERS.iter().any(|s| name == format!("{s}.d")) {
                files.remove_empty_dir(&dir)?;
            }
        }
    }
    if files.exists(UNITS)? {
        files.sync_dir(UNITS)?;
    }
    asked?;
    if !removed.is_empty() || !installed.is_empty() {
        systemd.reload()?;
    }
    Ok(Disarmed { was_armed, removed })
}

/// Whether a link enables the unit that arming wrote (absolute, or relative as newer
/// versions of systemd write it).
pub(crate) fn is_ours(target: &str, unit: &Unit) -> bool {
    target == unit.path() || target == format!("../{}", unit.name)
}

/// A file and what a killed [`crate::files::put`] may have left of it.
fn remove_whole(
    files: &dyn HostFiles,
    path: &str,
    removed: &mut Vec<String>,
) -> Result<(), FileError> {
    remove(files, path, removed)?;
    remove(files, &temporary(path), removed)
}

fn remove(files: &dyn HostFiles, path: &str, removed: &mut Vec<String>) -> Result<(), FileError> {
    if files.exists(path)? {
        files.remove(path)?;
        removed.push(path.to_owned());
    }
    Ok(())
}
