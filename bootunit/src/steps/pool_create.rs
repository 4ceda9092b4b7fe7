//! Pool-create: the new pool and its skeleton, whatever a power cut left of them.
//!
//! The labels on the new partition say how far it came: none, labels of a pool that
//! was never written out (txg 0), or a pool. Only its own labels and what `zpool`
//! says of it are looked at; a pool of the same name elsewhere is never touched.

use std::collections::BTreeMap;

use repave_plan::recipe::{DatasetRecipe, Recipe};
use repave_plan::step::{Outcome, PoolCreate, Step, StepState};
use repave_plan::units::PoolGuid;
use repave_survey::labels::{LabelSet, Verdict, read_labels};

use crate::label_clear::{self, ClearRequest};
use crate::zfs::{ZfsError, device_of, is_mount};

use super::closed::closed_txg;
use super::dispatch::StepError;
use super::scene::Scene;

/// A pool found on the new partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewPool {
    /// Its guid.
    pub guid: PoolGuid,
    /// The newest transaction group that it closed: 0 when it was never written out.
    pub txg: u64,
}

/// The pool that this run made on the new partition, as its labels tell.
pub fn new_pool(scene: &mut Scene) -> Result<Option<NewPool>, StepError> {
    let Some((name, set)) = look(scene)? else {
        return Ok(None);
    };
    let old = scene.intent.plan.pool_guid;
    let closed = closed_txg(scene.disk()?, &set).map_err(label_clear::ClearError::Read)?;
    let mut found: Option<NewPool> = None;
    for label in set.labels() {
        let Some(guid) = label.pool_guid.filter(|guid| *guid != old) else {
            continue;
        };
        if label.pool_name.as_deref() != Some(name) {
            continue;
        }
        let txg = label.txg.min(closed).unwrap_or(0);
        found = match found {
            Some(pool) if pool.txg >= txg => Some(pool),
            _ => Some(NewPool { guid, txg }),
        };
    }
    Ok(found)
}

/// The guids that are the new pool's own once the table is committed: those of labels of
/// its name, and of labels that a cut of its create tore. Whatever else was there had
/// been cleared and proved gone.
pub(super) fn own_guids(scene: &mut Scene) -> Result<Vec<PoolGuid>, StepError> {
    let Some((name, set)) = look(scene)? else {
        return Ok(Vec::new());
    };
    let guids = set.places.iter().filter_map(|place| match &place.verdict {
        Verdict::Label(label) if label.pool_name.as_deref() == Some(name) => label.pool_guid,
        Verdict::Remnant(remnant) => remnant.pool_guid,
        Verdict::Label(_) | Verdict::Clear => None,
    });
    Ok(guids.collect())
}

/// The new pool's name and what stands at the new partition's label places; none when
/// the plan makes no pool.
fn look<'a>(scene: &mut Scene<'a>) -> Result<Option<(&'a str, LabelSet)>, StepError> {
    let intent = scene.intent;
    let Some(name) = intent.plan.steps.iter().find_map(|step| match step {
        Step::PoolCreate(create) => Some(create.recipe.pool.as_str()),
        _ => None,
    }) else {
        return Ok(None);
    };
    let range = scene.bytes(&intent.plan.new.extent);
    let set = read_labels(scene.disk()?, range).map_err(label_clear::ClearError::Read)?;
    Ok(Some((name, set)))
}

pub(super) fn state(scene: &mut Scene, create: &PoolCreate) -> Result<StepState, StepError> {
    let name = create.recipe.pool.as_str();
    let found = new_pool(scene)?;
    scene.release_disk();
    let imported = scene
        .zfs()
        .imported()?
        .into_iter()
        .find(|(pool, _)| pool == name);
    match (found, imported) {
        (None | Some(NewPool { txg: 0, .. }), None) => Ok(StepState::Before),
        (Some(_), None) => Ok(StepState::Before),
        (Some(pool), Some((_, guid))) if pool.guid == guid => {
            Ok(match missing(scene, &create.recipe)?.is_empty() {
                true => StepState::After,
                false => StepState::Before,
            })
        }
        (found, Some((_, guid))) => Ok(StepState::Neither {
            found: format!(
                "a pool {name} with guid {guid} is imported, the new partition carries {}",
                found.map_or_else(
                    || "no label".to_owned(),
                    |pool| format!("guid {}", pool.guid)
                )
            ),
        }),
    }
}

pub(super) fn apply(scene: &mut Scene, create: &PoolCreate) -> Result<Outcome, StepError> {
    let recipe = &create.recipe;
    let device = device_of(create.partuuid);
    let mut found = new_pool(scene)?;
    if let Some(NewPool { guid, txg: 0 }) = found {
        clear_unborn(scene, guid)?;
        found = None;
    }
    scene.release_disk();
    let zfs = scene.zfs();
    match found {
        None => zfs.create_pool(recipe, create.partuuid)?,
        Some(pool) => {
            if !zfs.imported()?.iter().any(|(_, guid)| *guid == pool.guid) {
                zfs.import(pool.guid, &device)?;
            }
        }
    }
    // Twice: mending a mount point gives `canmount` back to its default.
    for _ in 0..2 {
        for what in missing(scene, recipe)? {
            what.mend(scene)?;
        }
    }
    Ok(Outcome::Changed)
}

pub(super) fn prove(
    scene: &mut Scene,
    create: &PoolCreate,
) -> Result<BTreeMap<String, String>, StepError> {
    let recipe = &create.recipe;
    let not_proved = |found: String| StepError::NotProved {
        what: "the new pool",
        found,
    };
    let label = new_pool(scene)?;
    scene.release_disk();
    let zfs = scene.zfs();
    let name = recipe.pool.as_str();
    let guid = zfs
        .imported()?
        .into_iter()
        .find(|(pool, _)| pool == name)
        .map(|(_, guid)| guid);
    let Some(guid) = guid else {
        return Err(not_proved(format!("pool {name} is not imported")));
    };
    if label.map(|pool| pool.guid) != Some(guid) {
        return Err(not_proved(format!(
            "the new partition does not carry a label of guid {guid}"
        )));
    }
    if let Some(what) = missing(scene, recipe)?.first() {
        return Err(not_proved(what.describe()));
    }
    check_features(&zfs, recipe)?;
    Ok(BTreeMap::from([
        ("guid".to_owned(), guid.to_string()),
        ("size".to_owned(), zfs.pool_value(name, "size")?),
        (
            "datasets".to_owned(),
            (1 + recipe.datasets.len()).to_string(),
        ),
    ]))
}

/// Exactly the features of the recipe: one more, and the image before this one may
/// not be able to import the pool.
fn check_features(zfs: &crate::zfs::Zfs, recipe: &Recipe) -> Result<(), StepError> {
    let mut found: Vec<String> = zfs
        .pool_values(recipe.pool.as_str())?
        .into_iter()
        .filter(|(_, value)| matches!(value.as_str(), "enabled" | "active"))
        .filter_map(|(name, _)| name.strip_prefix("feature@").map(str::to_owned))
        .collect();
    found.sort();
    let mut wanted = recipe.features.clone();
    wanted.sort();
    match found == wanted {
        true => Ok(()),
        false => Err(StepError::NotProved {
            what: "the features of the new pool",
            found: format!("{} instead of {}", found.join(","), wanted.join(",")),
        }),
    }
}

/// Labels of a pool that was never written out keep `zpool create` from making it.
fn clear_unborn(scene: &mut Scene, guid: PoolGuid) -> Result<(), StepError> {
    let range = scene.bytes(&scene.intent.plan.new.extent);
    let request = ClearRequest {
        extents: vec![range],
        pools: vec![guid],
        vdevs: Vec::new(),
        kept: Vec::new(),
        forbidden: Vec::new(),
        signatures: Vec::new(),
    };
    label_clear::apply(scene.disk()?, &request)?;
    Ok(label_clear::prove(scene.disk()?, &request)?)
}

/// Something of the recipe that is not there yet.
enum Missing<'r> {
    Dataset(&'r DatasetRecipe),
    Property {
        dataset: &'r str,
        name: &'r str,
        value: &'r str,
        found: String,
    },
}

impl Missing<'_> {
    fn describe(&self) -> String {
        match self {
            Missing::Dataset(dataset) => format!("dataset {} is not there", dataset.name),
            Missing::Property {
                dataset,
                name,
                value,
                found,
            } => {
                format!("{name} of {dataset} is {found:?}, not {value:?}")
            }
        }
    }

    fn mend(&self, scene: &Scene) -> Result<(), ZfsError> {
        let zfs = scene.zfs();
        match self {
            Missing::Dataset(dataset) => zfs.create_dataset(dataset),
            // A mount point that is set on a dataset which may mount is mounted at once,
            // out of order; so it may not while the mount point is set.
            Missing::Property {
                dataset,
                name: "mountpoint",
                value,
                ..
            } => {
                zfs.set(dataset, "canmount", "noauto")?;
                zfs.set(dataset, "mountpoint", value)?;
                zfs.inherit(dataset, "canmount")
            }
            Missing::Property {
                dataset,
                name,
                value,
                ..
            } => zfs.set(dataset, name, value),
        }
    }
}

/// What the recipe wants and the imported pool lacks, parents first.
fn missing<'r>(scene: &Scene, recipe: &'r Recipe) -> Result<Vec<Missing<'r>>, StepError> {
    let zfs = scene.zfs();
    let there = zfs.datasets(recipe.pool.as_str())?;
    let mut all = Vec::new();
    for dataset in [&recipe.root].into_iter().chain(&recipe.datasets) {
        let name = dataset.name.as_str();
        if !there.iter().any(|d| d == name) {
            all.push(Missing::Dataset(dataset));
            continue;
        }
        if dataset.properties.is_empty() {
            continue;
        }
        let names: Vec<&str> = dataset.properties.keys().map(String::as_str).collect();
        let values = zfs.get(name, &names)?;
        let mut wanted: Vec<(&String, &String)> = dataset.properties.iter().collect();
        wanted.sort_by_key(|(name, _)| (is_mount(name), name.as_str() == "canmount"));
        for (property, value) in wanted {
            let found = values.get(property).cloned().unwrap_or_default();
            if &found != value {
                all.push(Missing::Property {
                    dataset: name,
                    name: property,
                    value,
                    found,
                });
            }
        }
    }
    Ok(all)
}
