//! Label-clear in its surroundings: which ranges are forbidden, and which labels are
//! the new pool's own once the table is committed.

use std::collections::BTreeMap;
use std::ops::Range;

use repave_plan::step::{LabelClear, Outcome, StepState};
use repave_plan::table::TableImage;
use repave_plan::units::PoolGuid;

use crate::label_clear::{self, ClearRequest};
use crate::table_write::{PrimaryIs, classify};

use super::dispatch::StepError;
use super::pool_create::own_guids;
use super::scene::Scene;

pub(super) fn state(scene: &mut Scene, clear: &LabelClear) -> Result<StepState, StepError> {
    let request = request(scene, clear)?;
    Ok(label_clear::state(scene.disk()?, &request)?)
}

pub(super) fn apply(scene: &mut Scene, clear: &LabelClear) -> Result<Outcome, StepError> {
    let request = request(scene, clear)?;
    Ok(label_clear::apply(scene.disk()?, &request)?)
}

pub(super) fn prove(
    scene: &mut Scene,
    clear: &LabelClear,
) -> Result<BTreeMap<String, String>, StepError> {
    let request = request(scene, clear)?;
    label_clear::prove(scene.disk()?, &request)?;
    let guids: Vec<String> = request.pools.iter().map(ToString::to_string).collect();
    Ok(BTreeMap::from([
        ("extents".to_owned(), request.extents.len().to_string()),
        ("no-label-of".to_owned(), guids.join(" ")),
    ]))
}

fn request(scene: &mut Scene, clear: &LabelClear) -> Result<ClearRequest, StepError> {
    let plan = &scene.intent.plan;
    let block = plan.disk.block;
    let mut forbidden: Vec<Range<u64>> = Vec::new();
    let mut committed = false;
    if let Some(change) = scene.table_change() {
        for image in [change.old(), change.new_image()] {
            forbidden.extend(table_ranges(image));
        }
        let primary = classify(change, scene.disk()?)?.primary;
        committed = matches!(primary, PrimaryIs::New | PrimaryIs::NewShadow);
    }
    if !clear.kept_pool_guids.is_empty() {
        let kept = plan.touched.iter().filter(|t| t.guid == plan.new.guid);
        forbidden.extend(kept.map(|t| scene.bytes(&t.extent)));
    }
    let mut request = ClearRequest::of(clear, block, forbidden)?;
    // Once the table is committed, a label of the recipe's name with a guid that the
    // plan does not list is the new pool's own: a resume must not trip over it.
    if committed {
        let listed = |guid: &PoolGuid| request.pools.contains(guid);
        let own = own_guids(scene)?.into_iter().filter(|guid| !listed(guid));
        let own: Vec<PoolGuid> = own.collect();
        request.kept.extend(own);
    }
    Ok(request)
}

/// Both copies of a table, as byte ranges of the disk.
fn table_ranges(image: &TableImage) -> [Range<u64>; 2] {
    let block = u64::from(image.block.0);
    let tail = image.tail_first.0 * block;
    [
        0..image.head.len() as u64,
        tail..tail + image.tail.len() as u64,
    ]
}
