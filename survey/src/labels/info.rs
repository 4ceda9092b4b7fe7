//! What one label says: its configuration as facts.
//!
//! Pure: takes the 256 KiB of a label and gives a [`Verdict`]. A label is an nvlist
//! that unpacks and has a guid other than 0 and a state of at most 4, whatever its
//! txg or checksum: that is what OpenZFS's `zpool_clear_label` counts
//! (`lib/libzfs/libzfs_import.c`), and a txg of 0 is a pool whose creation was cut
//! short (`vdev_label_init`). What is left of a label without that is a remnant.

use repave_plan::units::{PoolGuid, VdevGuid};
use serde::{Deserialize, Serialize};

use super::checksum::block_is_sealed;
use super::nvlist::{Endian, Nvlist, parse_packed};
use super::uberblock::{Ring, parse_ring};

/// Size of a label in bytes (`vdev_label_t`).
pub const LABEL_SIZE: u64 = 256 << 10;
/// Where a label's configuration starts, in bytes: behind two pads of 8 KiB, one of
/// them legacy, one with the boot environment. Clearing starts here too.
pub const CONFIG_START: usize = 16 << 10;
/// Where a label's uberblock ring starts, in bytes.
pub const RING_START: usize = 128 << 10;

/// What stands at a place where a label can be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Verdict {
    /// A label, whole enough to name its owner.
    Label(Box<LabelInfo>),
    /// Uberblocks without a label, or a label cut short.
    Remnant(Remnant),
    /// Nothing of ZFS.
    Clear,
}

/// A pool's or an auxiliary device's state, as labels number them
/// (OpenZFS `include/sys/fs/zfs.h` `pool_state_t`; higher ones are never on disk).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LabelState {
    /// 0: imported when last written.
    Active,
    /// 1: exported.
    Exported,
    /// 2: destroyed.
    Destroyed,
    /// 3: a hot spare.
    Spare,
    /// 4: a cache device.
    L2cache,
}

impl LabelState {
    /// The state of this number.
    pub fn of(number: u64) -> Option<LabelState> {
        Some(match number {
            0 => LabelState::Active,
            1 => LabelState::Exported,
            2 => LabelState::Destroyed,
            3 => LabelState::Spare,
            4 => LabelState::L2cache,
            _ => return None,
        })
    }

    /// The name it is printed with.
    pub fn as_str(self) -> &'static str {
        match self {
            LabelState::Active => "active",
            LabelState::Exported => "exported",
            LabelState::Destroyed => "destroyed",
            LabelState::Spare => "spare",
            LabelState::L2cache => "l2cache",
        }
    }
}

/// A label's facts. What a label of its state does not carry is absent: spares and
/// cache devices name no pool (`vdev_aux_label_generate`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelInfo {
    /// The pool's name as the label has it: for people.
    pub pool_name: Option<String>,
    /// The pool's guid.
    pub pool_guid: Option<PoolGuid>,
    /// This device's guid.
    pub vdev_guid: VdevGuid,
    /// The guid of the top-level vdev it is part of.
    pub top_guid: Option<VdevGuid>,
    /// The transaction group of the configuration; 0 in a pool that was being created.
    pub txg: Option<u64>,
    /// The state.
    pub state: LabelState,
    /// The host id of the last importer; absent when that was 0.
    pub hostid: Option<u64>,
    /// The host name of the last importer.
    pub hostname: Option<String>,
    /// Sector size of the vdev as a power of two.
    pub ashift: Option<u64>,
    /// Top-level vdevs of the pool.
    pub vdev_children: Option<u64>,
    /// The top-level vdev this device is part of.
    pub tree: Option<VdevTree>,
    /// Features that a reader must know.
    pub features_for_read: Vec<String>,
    /// Whether the embedded checksum holds at this place.
    pub checksum_ok: bool,
    /// The byte order of its writer.
    pub endian: Endian,
}

/// A top-level vdev in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VdevTree {
    /// `disk`, `file`, `mirror`, `raidz`, `draid`, …
    pub kind: String,
    /// The devices it is made of, in order; itself when it is one device.
    pub leaves: Vec<VdevLeaf>,
}

/// One device of a vdev.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VdevLeaf {
    /// `disk`, `file`, `spare`, `dspare`, `hole`, …
    pub kind: String,
    /// Its guid.
    pub guid: Option<VdevGuid>,
    /// The path it was last seen under.
    pub path: Option<String>,
}

/// What is left of a label that is none any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remnant {
    /// The pool's guid, when the damage left it legible.
    pub pool_guid: Option<PoolGuid>,
    /// The device's guid, when the damage left it legible.
    pub vdev_guid: Option<VdevGuid>,
    /// The state, when the damage left it legible.
    pub state: Option<LabelState>,
    /// Why there is no label, in words.
    pub damage: String,
}

/// One label as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedLabel {
    /// What it is.
    pub verdict: Verdict,
    /// Its ring.
    pub ring: Ring,
    /// The byte of the label that makes it seen: the configuration's first, or the
    /// first uberblock's. As long as that one stands the rest is found again.
    pub anchor: Option<usize>,
}

/// Reads one label. `bytes` are its 256 KiB, `on_vdev` their offset on the vdev,
/// which only the checksums depend on.
pub fn parse_label(bytes: &[u8], on_vdev: u64) -> ParsedLabel {
    let config = bytes.get(CONFIG_START..RING_START).unwrap_or_default();
    let ring = bytes.get(RING_START..).unwrap_or_default();
    let ring_at = on_vdev + RING_START as u64..on_vdev + LABEL_SIZE;

    let unpacked = match parse_packed(config) {
        Ok(unpacked) => unpacked,
        Err(none) => return ring_only(parse_ring(ring, None, ring_at), none.to_string()),
    };
    let list = &unpacked.list;
    let guid = list.u64("guid").filter(|guid| *guid != 0);
    let state = list.u64("state").and_then(LabelState::of);
    if let (None, Some(guid), Some(state)) = (&unpacked.damage, guid, state) {
        let checksum_ok = block_is_sealed(config, on_vdev + CONFIG_START as u64);
        let info = label_info(list, guid, state, checksum_ok, unpacked.endian);
        return ParsedLabel {
            ring: parse_ring(ring, info.ashift, ring_at),
            verdict: Verdict::Label(Box::new(info)),
            anchor: Some(CONFIG_START),
        };
    }

    let ring = parse_ring(ring, None, ring_at);
    let pool_guid = list.u64("pool_guid").filter(|guid| *guid != 0);
    let Some(damage) = &unpacked.damage else {
        return ring_only(ring, "the nvlist there is no label's".to_owned());
    };
    // Four bytes that look like a header are no evidence; a guid behind them is.
    if pool_guid.is_none() && guid.is_none() {
        return ring_only(ring, damage.to_string());
    }
    ParsedLabel {
        verdict: Verdict::Remnant(Remnant {
            pool_guid: pool_guid.map(PoolGuid),
            vdev_guid: guid.map(VdevGuid),
            state,
            damage: damage.to_string(),
        }),
        ring,
        anchor: Some(CONFIG_START),
    }
}

fn ring_only(ring: Ring, damage: String) -> ParsedLabel {
    ParsedLabel {
        verdict: match ring.count {
            0 => Verdict::Clear,
            _ => Verdict::Remnant(Remnant {
                pool_guid: None,
                vdev_guid: None,
                state: None,
                damage,
            }),
        },
        anchor: ring.first.map(|first| RING_START + first),
        ring,
    }
}

fn label_info(
    list: &Nvlist,
    guid: u64,
    state: LabelState,
    checksum_ok: bool,
    endian: Endian,
) -> LabelInfo {
    let text = |name| list.text(name).map(str::to_owned);
    let tree = list.list("vdev_tree");
    LabelInfo {
        pool_name: text("name"),
        pool_guid: list.u64("pool_guid").map(PoolGuid),
        vdev_guid: VdevGuid(guid),
        top_guid: list.u64("top_guid").map(VdevGuid),
        txg: list.u64("txg"),
        state,
        hostid: list.u64("hostid"),
        hostname: text("hostname"),
        // A cache device has no tree; its ashift stands beside its guid.
        ashift: tree.unwrap_or(list).u64("ashift"),
        vdev_children: list.u64("vdev_children"),
        tree: tree.map(vdev_tree),
        features_for_read: list
            .list("features_for_read")
            .map(|features| features.names().map(str::to_owned).collect())
            .unwrap_or_default(),
        checksum_ok,
        endian,
    }
}

fn vdev_tree(tree: &Nvlist) -> VdevTree {
    let mut leaves = Vec::new();
    push_leaves(tree, &mut leaves);
    VdevTree {
        kind: tree.text("type").unwrap_or_default().to_owned(),
        leaves,
    }
}

// The nesting is bounded by the nvlist reader.
fn push_leaves(vdev: &Nvlist, into: &mut Vec<VdevLeaf>) {
    let children = vdev.lists("children");
    if children.is_empty() {
        into.push(VdevLeaf {
            kind: vdev.text("type").unwrap_or_default().to_owned(),
            guid: vdev.u64("guid").map(VdevGuid),
            path: vdev.text("path").map(str::to_owned),
        });
    }
    for child in children {
        push_leaves(child, into);
    }
}
