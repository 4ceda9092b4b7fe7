//! Containerd-clear in its surroundings: the request, and what came of it, kept with
//! the run for the report.

use std::collections::BTreeMap;
use std::path::PathBuf;

use repave_containerd_clear::{ASIDE_PREFIX, ClearRequest};
use repave_plan::report::Cleared;
use repave_plan::step::{ContainerdClear, Outcome, StepState};

use crate::state_dir::RecordError;

use super::dispatch::StepError;
use super::scene::Scene;

/// The name of the run's file that holds what was cleared.
pub const CLEARED: &str = "containerd.json";

pub(super) fn state(scene: &mut Scene, clear: &ContainerdClear) -> Result<StepState, StepError> {
    Ok(scene.host.containerd_state(&request(scene, clear))?)
}

pub(super) fn apply(scene: &mut Scene, clear: &ContainerdClear) -> Result<Outcome, StepError> {
    let cleared = scene.host.containerd_clear(&request(scene, clear))?;
    let bytes = serde_json::to_vec(&cleared).map_err(|source| RecordError::Json {
        what: "what containerd forgot",
        source,
    })?;
    scene
        .host
        .write(&scene.state.run_file(scene.run_id(), CLEARED), &bytes)?;
    Ok(Outcome::Changed)
}

pub(super) fn prove(
    scene: &mut Scene,
    clear: &ContainerdClear,
) -> Result<BTreeMap<String, String>, StepError> {
    match scene.host.containerd_state(&request(scene, clear))? {
        StepState::After => {}
        StepState::Before => {
            let found = "its metadata still lists lost snapshots".to_owned();
            return Err(StepError::NotProved {
                what: "what containerd forgot",
                found,
            });
        }
        StepState::Neither { found } => {
            return Err(StepError::NotProved {
                what: "what containerd forgot",
                found,
            });
        }
    }
    let path = scene.state.run_file(scene.run_id(), CLEARED);
    let bytes = scene.host.read(&path)?.unwrap_or_default();
    let cleared: Cleared = serde_json::from_slice(&bytes).unwrap_or_default();
    Ok(BTreeMap::from([
        (
            "images-kept".to_owned(),
            cleared.images_kept.len().to_string(),
        ),
        (
            "images-dropped".to_owned(),
            cleared.images_dropped.len().to_string(),
        ),
    ]))
}

fn request(scene: &Scene, clear: &ContainerdClear) -> ClearRequest {
    ClearRequest {
        root: PathBuf::from(&clear.root),
        snapshotter: clear.snapshotter.clone(),
        mode: clear.mode,
        keep_dir: scene.state.run(scene.run_id()),
        aside_name: format!("{ASIDE_PREFIX}{}", scene.run_id()),
        pinned: Vec::new(),
        verify: false,
    }
}
