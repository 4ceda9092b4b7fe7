//! Makes the recipe of the new pool from the pool as it is and the policy's wishes.
//!
//! What cannot be replayed exactly is a refusal by name, never left out in silence:
//! a dataset that comes back without its encryption is not the dataset that was there.

use std::collections::{BTreeMap, BTreeSet};

use crate::policy::Policy;
use crate::recipe::{CREATION_ONLY, DatasetRecipe, NEVER_REPLAYED, POOL_PROPERTIES, Recipe};
use crate::refusal::Refusal;
use crate::survey::{Dataset, DatasetKind, Pool, Property};
use crate::units::{Bytes, DatasetName};

/// The names of the skeleton: every dataset of the policy and its parents, the pool's
/// own dataset first.
pub(super) fn skeleton(policy: &Policy) -> BTreeSet<String> {
    let mut names = BTreeSet::from([policy.disk.pool.to_string()]);
    for dataset in &policy.datasets {
        let mut name = dataset.name.as_str();
        while let Some((parent, _)) = name.rsplit_once('/') {
            names.insert(name.to_owned());
            name = parent;
        }
    }
    names
}

pub(super) fn recipe(
    policy: &Policy,
    pool: &Pool,
    label_ashift: Option<u64>,
    new_size: Bytes,
) -> Result<Recipe, Refusal> {
    let refuse = |why: String| Refusal::Pool {
        pool: pool.name.to_string(),
        why,
    };
    // The property is 0 in a pool that was made without naming one (OpenZFS
    // `module/zcommon/zpool_prop.c`); the vdev's label always says what it has.
    let ashift = pool_value(pool, "ashift")
        .and_then(|v| v.parse().ok())
        .filter(|v| *v != 0)
        .or(label_ashift)
        .and_then(|v| u8::try_from(v).ok())
        .filter(|v| (9..=16).contains(v))
        .ok_or_else(|| refuse("its ashift could not be read".to_owned()))?;
    let mut made = Vec::new();
    for name in skeleton(policy) {
        made.push(dataset_recipe(policy, pool, &name)?);
    }
    let mut root = made.remove(0);
    // The pool is created with `-m none`; a mount point that was the default must be
    // said, or the pool's own dataset would not come back where it was.
    root.properties
        .entry("mountpoint".to_owned())
        .or_insert_with(|| format!("/{}", pool.name));
    check_reservations(pool, made.iter().chain([&root]), new_size)?;
    Ok(Recipe {
        pool: pool.name.clone(),
        ashift,
        compatibility: local(pool.properties.get("compatibility")),
        features: features(pool),
        properties: POOL_PROPERTIES
            .iter()
            .filter_map(|name| Some((name.to_string(), local(pool.properties.get(*name))?)))
            .chain(user_properties(pool))
            .collect(),
        root,
        datasets: made,
    })
}

fn pool_value<'a>(pool: &'a Pool, name: &str) -> Option<&'a str> {
    pool.properties.get(name).map(|p| p.value.as_str())
}

fn local(property: Option<&Property>) -> Option<String> {
    property
        .filter(|p| matches!(p.source.as_str(), "local" | "received"))
        .map(|p| p.value.clone())
}

/// `enabled` and `active` are both enabled in an empty pool.
fn features(pool: &Pool) -> Vec<String> {
    pool.properties
        .iter()
        .filter(|(_, p)| matches!(p.value.as_str(), "enabled" | "active"))
        .filter_map(|(name, _)| name.strip_prefix("feature@").map(str::to_owned))
        .collect()
}

fn user_properties(pool: &Pool) -> impl Iterator<Item = (String, String)> + '_ {
    pool.properties
        .iter()
        .filter(|(name, _)| name.contains(':'))
        .filter_map(|(name, p)| Some((name.clone(), local(Some(p))?)))
}

fn dataset_recipe(policy: &Policy, pool: &Pool, name: &str) -> Result<DatasetRecipe, Refusal> {
    let refuse = |why: String| Refusal::Dataset {
        dataset: name.to_owned(),
        why,
    };
    let dataset = pool
        .datasets
        .iter()
        .find(|d| d.name.as_str() == name)
        .ok_or_else(|| refuse("it does not exist in the pool".to_owned()))?;
    if dataset.kind == DatasetKind::Volume {
        return Err(refuse(
            "it is a volume; only file systems belong to a skeleton".to_owned(),
        ));
    }
    if let Some(what) = dataset.unsupported.first() {
        return Err(refuse(format!(
            "it has {what}, which a recipe does not carry over yet"
        )));
    }
    let mut properties: BTreeMap<String, String> = dataset
        .properties
        .iter()
        .filter(|(name, _)| {
            !NEVER_REPLAYED.contains(&name.as_str()) && !CREATION_ONLY.contains(&name.as_str())
        })
        .filter_map(|(name, property)| Some((name.clone(), local(Some(property))?)))
        .collect();
    let wishes = policy.datasets.iter().filter(|d| d.name.as_str() == name);
    properties.extend(wishes.flat_map(|d| d.set.clone()));
    Ok(DatasetRecipe {
        name: name
            .parse::<DatasetName>()
            .map_err(|e| refuse(e.to_string()))?,
        creation: creation_only(dataset, name)?,
        properties,
    })
}

/// The one-time properties have the source `-`: they are asked for by name, and a
/// survey that could not tell one is no ground to create a dataset from.
fn creation_only(dataset: &Dataset, name: &str) -> Result<BTreeMap<String, String>, Refusal> {
    let mut found = BTreeMap::new();
    for property in CREATION_ONLY {
        match dataset.properties.get(property) {
            Some(p) => found.insert(property.to_owned(), p.value.clone()),
            None => {
                return Err(Refusal::Dataset {
                    dataset: name.to_owned(),
                    why: format!("its {property} could not be read"),
                });
            }
        };
    }
    Ok(found)
}

/// The slop space OpenZFS keeps: 1/32 of the pool, between 128 MiB and 128 GiB
/// (OpenZFS `module/zfs/spa_misc.c`, `spa_get_slop_space`).
fn check_reservations<'a>(
    pool: &Pool,
    datasets: impl Iterator<Item = &'a DatasetRecipe>,
    new_size: Bytes,
) -> Result<(), Refusal> {
    let mut sum: u64 = 0;
    for dataset in datasets {
        for name in ["reservation", "refreservation"] {
            let Some(value) = dataset.properties.get(name) else {
                continue;
            };
            let bytes = match value.as_str() {
                "none" | "0" => 0,
                text => text.parse::<u64>().map_err(|_| Refusal::Dataset {
                    dataset: dataset.name.to_string(),
                    why: format!("its {name} is {text:?}, which is no number of bytes"),
                })?,
            };
            sum = sum.saturating_add(bytes);
        }
    }
    let slop = (new_size.0 / 32).clamp(128 << 20, 128 << 30);
    let room = new_size.0.saturating_sub(slop);
    match sum <= room {
        true => Ok(()),
        false => Err(Refusal::Pool {
            pool: pool.name.to_string(),
            why: format!(
                "its reservations sum to {}, the new pool has room for {}",
                Bytes(sum),
                Bytes(room)
            ),
        }),
    }
}
