//! The recipe of a pool: all that is needed to make it again, empty.
//!
//! Stage: part of the plan. Takes what the survey saw of a live pool and the policy's
//! wishes; gives plain data that the boot run replays. It never holds what the pool
//! contains: children made by drivers are losses, not recipe.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::units::{DatasetName, PoolName};

/// A pool, as it is made again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Its name.
    pub pool: PoolName,
    /// log2 of its sector size. Given always: the default may differ between devices.
    pub ashift: u8,
    /// The `compatibility` property, when it is set.
    pub compatibility: Option<String>,
    /// The features that are enabled; every other feature stays disabled, so that an
    /// older ZFS can still import the pool after a rollback.
    pub features: Vec<String>,
    /// Pool properties with a local value, ashift and compatibility left out.
    pub properties: BTreeMap<String, String>,
    /// The pool's own dataset.
    pub root: DatasetRecipe,
    /// The skeleton below it, parents first.
    pub datasets: Vec<DatasetRecipe>,
}

/// A dataset, as it is made again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetRecipe {
    /// Its full name.
    pub name: DatasetName,
    /// Properties that can be given only at creation (OpenZFS
    /// `module/zcommon/zfs_prop.c`, the one-time properties).
    pub creation: BTreeMap<String, String>,
    /// Properties with a local or received value.
    pub properties: BTreeMap<String, String>,
}

/// The one-time properties of a file system (OpenZFS `module/zcommon/zfs_prop.c`).
/// They have the source `-`, so a list of local properties misses them.
pub const CREATION_ONLY: [&str; 3] = ["casesensitivity", "normalization", "utf8only"];

/// Pool properties that are replayed when they are local (OpenZFS
/// `module/zcommon/zpool_prop.c`). `cachefile` and `altroot` belong to one import, and
/// what is not listed here is read-only or says what is on the pool.
pub const POOL_PROPERTIES: [&str; 9] = [
    "autoexpand",
    "autoreplace",
    "autotrim",
    "comment",
    "dedup_table_quota",
    "delegation",
    "failmode",
    "listsnapshots",
    "multihost",
];

/// Dataset properties that say what a dataset holds or is right now, or that only
/// make sense for one mount: never replayed, whatever their source.
pub const NEVER_REPLAYED: [&str; 8] = [
    "guid",
    "createtxg",
    "creation",
    "mounted",
    "origin",
    "receive_resume_token",
    "keystatus",
    "encryptionroot",
];

/// The dataset properties that the approval is about: the rest of a dataset's local
/// properties are replayed, but user properties that tools set (they have a colon)
/// may come and go without a new approval.
pub fn is_essential(property: &str) -> bool {
    !property.contains(':')
}
