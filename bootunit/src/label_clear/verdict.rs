//! What `zpool labelclear` would say of a device.
//!
//! Pure. The rules of OpenZFS `cmd/zpool/zpool_main.c` (`zpool_do_labelclear`) and
//! `lib/libzfs/libzfs_import.c` (`zpool_in_use`), for clearing by hand: a boot run
//! goes by the plan's list of pools, which is stricter. One row differs on purpose:
//! where the tool fails because nothing is left, nothing is left to do.

use repave_survey::labels::LabelState;

/// What this kernel has imported of the label's pool and device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InCore {
    /// No imported pool has that guid; for a spare or cache device, none uses it.
    NotImported,
    /// The pool is imported and the device is in its configuration and open.
    InUse,
    /// The pool is imported and has the device offline.
    Offline,
    /// The pool is imported and no longer has the device.
    Removed,
}

/// Whether to go on where the tool asks for `-f`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Force {
    /// As without `-f`.
    No,
    /// As with `-f`.
    Yes,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelclearVerdict {
    /// Go on.
    Clear,
    /// Nothing is left to clear: done, where the tool says it failed.
    NothingLeft,
    /// Not without `-f`.
    NeedsForce,
    /// Not at all: it is in use.
    InUse,
}

/// The verdict for a device whose first label has this state (`None`: no label).
pub fn labelclear_verdict(
    state: Option<LabelState>,
    in_core: InCore,
    force: Force,
) -> LabelclearVerdict {
    use LabelclearVerdict::{Clear, InUse, NeedsForce, NothingLeft};
    let forced = match force {
        Force::Yes => Clear,
        Force::No => NeedsForce,
    };
    match (state, in_core) {
        (None, _) => NothingLeft,
        (Some(LabelState::Destroyed), _) => Clear,
        (Some(LabelState::Spare | LabelState::L2cache), InCore::InUse | InCore::Offline) => InUse,
        (Some(LabelState::Spare | LabelState::L2cache), _) => Clear,
        // An exported pool that is imported read-only counts as active.
        (Some(LabelState::Active | LabelState::Exported), InCore::InUse) => InUse,
        (Some(LabelState::Active | LabelState::Exported), InCore::Offline) => forced,
        (Some(LabelState::Active), InCore::Removed) => Clear,
        (Some(LabelState::Exported), InCore::Removed) => forced,
        (Some(LabelState::Active | LabelState::Exported), InCore::NotImported) => forced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_the_tools() {
        use InCore::{InUse as Used, NotImported, Offline, Removed};
        use LabelState::{Active, Destroyed, Exported, L2cache, Spare};
        use LabelclearVerdict::{Clear, InUse, NeedsForce, NothingLeft};
        for (state, in_core, plain, forced) in [
            (Some(Active), Used, InUse, InUse),
            (Some(Active), Offline, NeedsForce, Clear),
            (Some(Active), NotImported, NeedsForce, Clear),
            (Some(Active), Removed, Clear, Clear),
            (Some(Exported), NotImported, NeedsForce, Clear),
            (Some(Exported), Removed, NeedsForce, Clear),
            (Some(Exported), Used, InUse, InUse),
            (Some(Exported), Offline, NeedsForce, Clear),
            (Some(Destroyed), NotImported, Clear, Clear),
            (Some(Destroyed), Used, Clear, Clear),
            (Some(Spare), Used, InUse, InUse),
            (Some(Spare), Offline, InUse, InUse),
            (Some(Spare), NotImported, Clear, Clear),
            (Some(Spare), Removed, Clear, Clear),
            (Some(L2cache), Used, InUse, InUse),
            (Some(L2cache), NotImported, Clear, Clear),
            (Some(L2cache), Removed, Clear, Clear),
            (None, NotImported, NothingLeft, NothingLeft),
            (None, Used, NothingLeft, NothingLeft),
        ] {
            let row = format!("{state:?} {in_core:?}");
            assert_eq!(
                labelclear_verdict(state, in_core, Force::No),
                plain,
                "{row}"
            );
            assert_eq!(
                labelclear_verdict(state, in_core, Force::Yes),
                forced,
                "{row} -f"
            );
        }
    }
}
