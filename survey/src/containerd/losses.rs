//! Which records die with a snapshotter. Pure: the preview and the edit ask the same.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::metadata::{Metadata, Namespace};

/// What one namespace loses with a snapshotter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespaceLosses {
    /// The namespace.
    pub namespace: String,
    /// Number of snapshots.
    pub snapshots: u64,
    /// Containers whose root file system was one of them.
    pub containers: BTreeSet<String>,
    /// Sandboxes: all but those whose own container is on another snapshotter.
    pub sandboxes: BTreeSet<String>,
    /// Leases of these sandboxes: containerd 2's CRI makes one per sandbox, with the sandbox's
    /// id and no expiry, and removes it with the sandbox only.
    pub leases: BTreeSet<String>,
    /// Number of snapshots that leases hold.
    pub leased: u64,
}

impl NamespaceLosses {
    /// Whether nothing is lost.
    pub fn is_empty(&self) -> bool {
        self.snapshots == 0
            && self.containers.is_empty()
            && self.sandboxes.is_empty()
            && self.leases.is_empty()
            && self.leased == 0
    }
}

/// What each namespace loses with this snapshotter; namespaces that lose nothing are left out.
pub fn losses(metadata: &Metadata, snapshotter: &str) -> Vec<NamespaceLosses> {
    let of = |(name, namespace): (&String, &Namespace)| NamespaceLosses {
        namespace: name.clone(),
        ..namespace_losses(namespace, snapshotter)
    };
    let all = metadata.namespaces.iter().map(of);
    all.filter(|losses| !losses.is_empty()).collect()
}

fn namespace_losses(namespace: &Namespace, snapshotter: &str) -> NamespaceLosses {
    let on_it = |id: &String| {
        let container = namespace.containers.get(id);
        container.is_some_and(|container| container.snapshotter.as_deref() == Some(snapshotter))
    };
    let elsewhere = |id: &String| namespace.containers.contains_key(id) && !on_it(id);
    let count = |of: &std::collections::BTreeMap<String, u64>| {
        of.get(snapshotter).copied().unwrap_or_default()
    };
    let containers = namespace.containers.keys().filter(|id| on_it(id));
    let sandboxes = namespace.sandboxes.iter().filter(|id| !elsewhere(id));
    let sandboxes: BTreeSet<String> = sandboxes.cloned().collect();
    let leases = namespace.leases.intersection(&sandboxes);
    NamespaceLosses {
        namespace: String::new(),
        snapshots: count(&namespace.snapshots),
        containers: containers.cloned().collect(),
        leases: leases.cloned().collect(),
        sandboxes,
        leased: count(&namespace.leased),
    }
}
