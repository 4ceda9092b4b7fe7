//! Stage *policy*: what may happen on a node, read from TOML drop-ins.
//!
//! Takes the texts of the drop-ins in their order, gives one [`Policy`] and its
//! digest. A later file's keys win over an earlier one's; an unknown key anywhere is
//! an error, because a misspelt limit is a limit that is not there.
//! It never reads a file: the agent does, and passes name and text.

use serde::{Deserialize, Serialize};

use crate::units::{DatasetName, Digest, Guid, PoolName};

/// The version of the policy format that this program writes and reads.
pub const VERSION: u32 = 1;

/// The largest drop-in that is read, in bytes. A policy is some kilobytes; what is
/// larger is not a policy.
pub const MAX_FILE: usize = 1024 * 1024;

/// What may happen on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// The format's version: 1.
    pub version: u32,
    /// Whether the pool is destroyed and made again, or keeps its data and grows.
    pub mode: Mode,
    /// What the disk must hold.
    pub disk: DiskPolicy,
    /// The pool whose partition takes the disk's tail.
    pub pool: PoolPolicy,
    /// The partitions to remove.
    #[serde(default)]
    pub remove: Vec<RemovePolicy>,
    /// The datasets to make again, with changes to their properties.
    #[serde(default)]
    pub datasets: Vec<DatasetPolicy>,
    /// What becomes of containerd's metadata.
    #[serde(default)]
    pub containerd: ContainerdPolicy,
    /// The image the node must have booted when the job runs.
    #[serde(default)]
    pub image: Option<ImagePolicy>,
    /// Bounds on the run.
    #[serde(default)]
    pub limits: Limits,
}

/// Whether data on the pool is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The pool is destroyed and made again over the whole tail.
    Recreate,
    /// The pool's partition grows at its end and the pool is expanded; nothing on it is lost.
    Grow,
}

/// Names the disk by what it holds. A kernel name (`sda`) cannot be written here: it
/// may be another disk at the next boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskPolicy {
    /// The pool whose only leaf vdev is a partition of the disk.
    pub pool: PoolName,
    /// The disk's serial number, when it must be a certain one.
    #[serde(default)]
    pub serial: Option<String>,
    /// The disk's WWN, when it must be a certain one.
    #[serde(default)]
    pub wwn: Option<String>,
    /// The GUID of the disk's partition table, when it must be a certain one.
    #[serde(default)]
    pub disk_guid: Option<Guid>,
    /// Whether a backup table that is not at the disk's end may be moved there.
    #[serde(default)]
    pub relocate_backup: bool,
}

/// What must be true of the pool's partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolPolicy {
    /// The partition's name in the GPT.
    #[serde(default)]
    pub partition_label: Option<String>,
    /// The partition's type GUID.
    #[serde(default)]
    pub partition_type: Option<Guid>,
}

/// A partition to remove and all that must be true of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemovePolicy {
    /// The partition's name in the GPT.
    pub label: String,
    /// The partition's type GUID.
    #[serde(default, rename = "type")]
    pub type_guid: Option<Guid>,
    /// What it must contain.
    pub contains: Contents,
    /// For `zfs-member`: the pool it was a member of.
    #[serde(default)]
    pub of_pool: Option<PoolName>,
}

/// What a partition that is removed must contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contents {
    /// No signature of a file system, volume manager or pool.
    NoFilesystem,
    /// Labels of the pool named in `of_pool`, and nothing else.
    ZfsMember,
}

/// A dataset that is made again in the new pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetPolicy {
    /// Its full name, the pool first. Its parents are made too.
    pub name: DatasetName,
    /// Properties that get another value than they have now.
    #[serde(default)]
    pub set: std::collections::BTreeMap<String, String>,
}

/// What becomes of containerd's metadata after its snapshots are gone.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerdPolicy {
    /// containerd's root directory, when the one found is not the one meant.
    #[serde(default)]
    pub root: Option<String>,
    /// The snapshotter, when the one found is not the one meant.
    #[serde(default)]
    pub snapshotter: Option<String>,
    /// How much is cleared.
    #[serde(default)]
    pub clear: ClearMode,
}

/// How much of containerd's metadata is cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClearMode {
    /// The lost snapshotter's snapshots and what hangs on them; images stay.
    #[default]
    Snapshots,
    /// Metadata and content.
    All,
    /// Nothing.
    None,
}

/// The image that must be booted when the job runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImagePolicy {
    /// The digest `bootc status` must show as booted.
    pub digest: Digest,
}

/// Bounds on the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// How long an intent may be acted on after it was armed, in seconds.
    pub not_after_secs: u64,
    /// How often the boot run is tried before it stops for good.
    pub attempts: u32,
    /// Room that must be free for the state directory, in bytes.
    pub min_state_free: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            not_after_secs: 3600,
            attempts: 5,
            min_state_free: 64 * 1024 * 1024,
        }
    }
}

/// Why the policy cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No drop-in was found in any of the places.
    #[error("no policy was found in {places}")]
    None {
        /// The folders looked into.
        places: String,
    },
    /// A drop-in is too large to be one.
    #[error("{path} has {size} bytes; a policy has {max} at most")]
    TooLarge {
        /// The drop-in.
        path: String,
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        max: usize,
    },
    /// A drop-in is not text.
    #[error("{path} is not UTF-8 text (byte {at})")]
    NotText {
        /// The drop-in.
        path: String,
        /// The first byte that is not UTF-8.
        at: usize,
    },
    /// A drop-in is not TOML.
    #[error("{path} is not valid TOML: {what}")]
    Syntax {
        /// The drop-in.
        path: String,
        /// The parser's words, with line and column.
        what: String,
    },
    /// The drop-ins together are not a policy.
    #[error("the policy read from {paths} is not valid: {what}")]
    Invalid {
        /// The drop-ins, in the order they were read.
        paths: String,
        /// The parser's words, or the rule that is broken.
        what: String,
    },
}

/// One drop-in: where it was found and its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DropIn {
    /// The full path, for messages.
    pub path: String,
    /// The file as it is stored.
    pub bytes: Vec<u8>,
}

/// Makes the policy of the drop-ins, later ones over earlier ones.
///
/// Tables are merged key by key; an array (`[[remove]]`, `[[datasets]]`) is replaced
/// as a whole, so that a drop-in can take an entry away.
pub fn parse_policy(drop_ins: &[DropIn]) -> Result<Policy, PolicyError> {
    let paths = drop_ins
        .iter()
        .map(|d| d.path.as_str())
        .collect::<Vec<_>>()
        .join(", ");
    let mut merged = toml::Table::new();
    for drop_in in drop_ins {
        merge(&mut merged, parse_drop_in(drop_in)?);
    }
    let policy: Policy = toml::Value::Table(merged)
        .try_into()
        .map_err(|e: toml::de::Error| invalid(&paths, e.message().to_owned()))?;
    check(&policy).map_err(|what| invalid(&paths, what))?;
    Ok(policy)
}

/// The digest of a policy: over its value, so that comments and order do not count.
pub fn policy_digest(policy: &Policy) -> Result<Digest, serde_json::Error> {
    Ok(Digest::of(&serde_json::to_vec(policy)?))
}

fn invalid(paths: &str, what: String) -> PolicyError {
    PolicyError::Invalid {
        paths: paths.to_owned(),
        what,
    }
}

fn parse_drop_in(drop_in: &DropIn) -> Result<toml::Table, PolicyError> {
    let path = drop_in.path.clone();
    if drop_in.bytes.len() > MAX_FILE {
        let size = drop_in.bytes.len() as u64;
        return Err(PolicyError::TooLarge {
            path,
            size,
            max: MAX_FILE,
        });
    }
    let text = std::str::from_utf8(&drop_in.bytes).map_err(|e| PolicyError::NotText {
        path: path.clone(),
        at: e.valid_up_to(),
    })?;
    text.parse::<toml::Table>()
        .map_err(|e| PolicyError::Syntax {
            path,
            what: e.to_string().trim().replace('\n', "; "),
        })
}

fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

fn check(policy: &Policy) -> Result<(), String> {
    if policy.version != VERSION {
        return Err(format!(
            "its version is {}, this program knows {VERSION}; install the program that wrote it",
            policy.version
        ));
    }
    let pool = policy.disk.pool.as_str();
    for dataset in &policy.datasets {
        if dataset.name.pool() != pool {
            return Err(format!("dataset {} is not in pool {pool}", dataset.name));
        }
    }
    for remove in &policy.remove {
        if (remove.contains == Contents::ZfsMember) != remove.of_pool.is_some() {
            return Err(format!(
                "partition {:?}: `of_pool` goes with `contains = \"zfs-member\"`, and only with it",
                remove.label
            ));
        }
    }
    if !(60..=86_400).contains(&policy.limits.not_after_secs) {
        return Err("limits.not_after_secs is not between 60 and 86400".to_owned());
    }
    if !(1..=20).contains(&policy.limits.attempts) {
        return Err("limits.attempts is not between 1 and 20".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = r#"
version = 1
mode = "recreate"
[disk]
pool = "tank"
[pool]
partition_label = "tank"
[[remove]]
label = "mayastor"
contains = "no-filesystem"
[[datasets]]
name = "tank/containerd"
"#;

    fn drop_in(name: &str, text: &str) -> DropIn {
        DropIn {
            path: name.to_owned(),
            bytes: text.as_bytes().to_vec(),
        }
    }

    #[test]
    fn later_drop_ins_win_and_tables_merge() {
        let over = "[limits]\nattempts = 2\n[containerd]\nclear = \"all\"\n";
        let policy = parse_policy(&[drop_in("10-base", BASE), drop_in("20-over", over)]).unwrap();
        assert_eq!(policy.limits.attempts, 2);
        assert_eq!(policy.limits.not_after_secs, 3600);
        assert_eq!(policy.containerd.clear, ClearMode::All);
        assert_eq!(policy.remove[0].label, "mayastor");
    }

    #[test]
    fn a_drop_in_can_empty_a_list() {
        let policy = parse_policy(&[drop_in("a", BASE), drop_in("b", "remove = []")]).unwrap();
        assert_eq!(policy.remove, []);
    }

    #[test]
    fn the_digest_is_of_the_value() {
        let plain = parse_policy(&[drop_in("a", BASE)]).unwrap();
        let other = format!("# a comment\n{BASE}");
        let commented = parse_policy(&[drop_in("b", &other)]).unwrap();
        assert_eq!(
            policy_digest(&plain).unwrap(),
            policy_digest(&commented).unwrap()
        );
    }

    #[test]
    fn bad_policies_are_named() {
        for (text, part) in [
            ("version = 1\nmoed = \"grow\"", "moed"),
            ("[disk]\npool = \"tank\"\nname = \"sda\"", "name"),
            ("mode = \"wipe\"", "wipe"),
            ("version = 2", "its version is 2"),
            ("[limits]\nattempts = 0", "limits.attempts"),
            ("[limits]\nnot_after_secs = 59", "limits.not_after_secs"),
            (
                "[[datasets]]\nname = \"other/x\"",
                "dataset other/x is not in pool tank",
            ),
            (
                "[[remove]]\nlabel = \"x\"\ncontains = \"zfs-member\"",
                "of_pool",
            ),
            (
                "[[remove]]\nlabel = \"x\"\ncontains = \"no-filesystem\"\nof_pool = \"p\"",
                "of_pool",
            ),
        ] {
            let error = parse_policy(&[drop_in("a", BASE), drop_in("b.toml", text)]).unwrap_err();
            let PolicyError::Invalid {
                ref paths,
                ref what,
            } = error
            else {
                panic!("{text:?} gave {error:?}")
            };
            assert_eq!(paths, "a, b.toml");
            assert!(what.contains(part), "{text:?}: {what}");
        }
    }

    #[test]
    fn files_that_are_no_policy_are_named() {
        let big = DropIn {
            path: "big.toml".into(),
            bytes: vec![b'#'; MAX_FILE + 1],
        };
        assert!(matches!(
            parse_policy(&[big]),
            Err(PolicyError::TooLarge { .. })
        ));
        let binary = DropIn {
            path: "bin.toml".into(),
            bytes: vec![b'a', 0xff, 0],
        };
        assert!(matches!(
            parse_policy(&[binary]),
            Err(PolicyError::NotText { at: 1, .. })
        ));
        let cut = drop_in("cut.toml", &BASE[..BASE.len() - 3]);
        assert!(matches!(
            parse_policy(&[cut]),
            Err(PolicyError::Syntax { .. })
        ));
    }
}
