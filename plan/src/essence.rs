//! The essence of a plan and its digest: what an approval is about.
//!
//! Pure. What is in here decides what is destroyed and what stands afterwards. What
//! moves while a pool is live (used bytes, transaction groups, children, counts,
//! mounts, times, names for people) stays outside, so that a digest that was read
//! ten minutes ago is still the plan's.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::plan::{Plan, Touched};
use crate::policy::Mode;
use crate::recipe::{DatasetRecipe, Recipe, is_essential};
use crate::step::{ContainerdClear, KernelTable, LabelClear, Step};
use crate::table::TableImage;
use crate::units::{Bytes, Digest, Extent, Guid, PoolGuid, VdevGuid};

/// The version of the essence: another one is another digest.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Essence<'a> {
    version: u32,
    mode: Mode,
    machine_id: &'a str,
    serial: &'a Option<String>,
    wwn: &'a Option<String>,
    size: Bytes,
    block: u32,
    disk_guid: Guid,
    pool: &'a str,
    pool_guid: PoolGuid,
    vdev_guid: VdevGuid,
    touched: Vec<EssentialPart<'a>>,
    image: Option<Digest>,
    steps: Vec<EssentialStep<'a>>,
}

#[derive(Serialize)]
struct EssentialPart<'a> {
    number: u32,
    name: &'a str,
    type_guid: Guid,
    guid: Guid,
    extent: Extent,
}

#[derive(Serialize)]
enum EssentialStep<'a> {
    LabelClear {
        pool_guids: &'a [PoolGuid],
        vdev_guids: &'a [VdevGuid],
        kept: &'a [PoolGuid],
        extents: &'a [Extent],
    },
    TableWrite {
        before: [Digest; 2],
        after: &'a TableImage,
    },
    KernelTable(&'a KernelTable),
    PoolCreate {
        partuuid: Guid,
        ashift: u8,
        compatibility: &'a Option<String>,
        features: &'a [String],
        properties: BTreeMap<&'a str, &'a str>,
        datasets: Vec<EssentialDataset<'a>>,
    },
    ContainerdClear(&'a ContainerdClear),
}

#[derive(Serialize)]
struct EssentialDataset<'a> {
    name: &'a str,
    creation: &'a BTreeMap<String, String>,
    properties: BTreeMap<&'a str, &'a str>,
}

/// The digest that a person approves.
pub fn approval_digest(plan: &Plan) -> Result<Digest, serde_json::Error> {
    let essence = Essence {
        version: VERSION,
        mode: plan.mode,
        machine_id: plan.machine_id.as_str(),
        serial: &plan.disk.serial,
        wwn: &plan.disk.wwn,
        size: plan.disk.size,
        block: plan.disk.block.0,
        disk_guid: plan.disk.guid,
        pool: plan.pool.as_str(),
        pool_guid: plan.pool_guid,
        vdev_guid: plan.vdev_guid,
        touched: plan.touched.iter().map(essential_part).collect(),
        image: plan.image,
        steps: plan.steps.iter().map(essential_step).collect(),
    };
    Ok(Digest::of(&serde_json::to_vec(&essence)?))
}

fn essential_part(part: &Touched) -> EssentialPart<'_> {
    EssentialPart {
        number: part.number.0,
        name: &part.name,
        type_guid: part.type_guid,
        guid: part.guid,
        extent: part.extent,
    }
}

fn essential_step(step: &Step) -> EssentialStep<'_> {
    match step {
        Step::LabelClear(LabelClear {
            extents,
            pool_guids,
            vdev_guids,
            kept_pool_guids,
            signatures: _,
        }) => EssentialStep::LabelClear {
            pool_guids,
            vdev_guids,
            kept: kept_pool_guids,
            extents,
        },
        Step::TableWrite(write) => {
            let old = write.change.old();
            EssentialStep::TableWrite {
                before: [old.primary_digest(), old.backup_digest()],
                after: write.change.new_image(),
            }
        }
        Step::KernelTable(kernel) => EssentialStep::KernelTable(kernel),
        Step::PoolCreate(create) => {
            let Recipe {
                pool: _,
                ashift,
                compatibility,
                features,
                properties,
                root,
                datasets,
            } = &create.recipe;
            EssentialStep::PoolCreate {
                partuuid: create.partuuid,
                ashift: *ashift,
                compatibility,
                features,
                properties: essential(properties),
                datasets: [root]
                    .into_iter()
                    .chain(datasets)
                    .map(essential_dataset)
                    .collect(),
            }
        }
        Step::ContainerdClear(clear) => EssentialStep::ContainerdClear(clear),
    }
}

fn essential_dataset(dataset: &DatasetRecipe) -> EssentialDataset<'_> {
    EssentialDataset {
        name: dataset.name.as_str(),
        creation: &dataset.creation,
        properties: essential(&dataset.properties),
    }
}

fn essential(properties: &BTreeMap<String, String>) -> BTreeMap<&str, &str> {
    properties
        .iter()
        .filter(|(name, _)| is_essential(name))
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect()
}
