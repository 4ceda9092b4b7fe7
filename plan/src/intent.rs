//! Stage *intent*: the approved plan, bound to one machine, one boot and one hour.
//!
//! Takes a plan and the facts it stands on, gives sealed bytes; opens such bytes at
//! boot. The seal is a SHA-256 over the stored bytes: it guards against torn writes,
//! wrong nodes and stale plans, and not against root, who could as well call sgdisk.
//!
//! The file: one header line `repave-intent VERSION DIGEST`, then the value as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bound::Bound;
use crate::plan::Plan;
use crate::refusal::Refusal;
use crate::units::{BootId, Bytes, DatasetGuid, DatasetName, Digest, RunId, UnixTime};

/// The version of the intent format that this program writes; older ones are read.
pub const VERSION: u32 = 1;

/// The largest intent that is read, in bytes.
pub const MAX_SIZE: usize = 16 * 1024 * 1024;

const MAGIC: &str = "repave-intent";

/// What a node was armed with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// The format's version.
    pub version: u32,
    /// The run.
    pub run_id: RunId,
    /// The digest that was approved: that of the plan's essence.
    pub approval: Digest,
    /// The plan.
    pub plan: Plan,
    /// What must hold again at boot.
    pub bound: Bound,
    /// The boot in which it was armed; the run needs another one.
    pub armed_boot: BootId,
    /// When it was armed.
    pub armed_at: UnixTime,
    /// Until when it may be acted on for the first time.
    pub not_after: UnixTime,
    /// How often the run may be tried.
    pub attempts: u32,
    /// Room that must be free for the state directory.
    pub min_state_free: Bytes,
    /// Absolute paths of the programs the run starts, by name.
    pub programs: BTreeMap<String, String>,
    /// The volumes that are on the pool now: the proof a reclaim stands on.
    pub volumes: Vec<Volume>,
    /// The units that are held back while `changed` exists.
    pub starters: Vec<String>,
}

/// A dataset that a volume driver made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// Its name.
    pub name: DatasetName,
    /// Its ZFS guid.
    pub guid: DatasetGuid,
    /// Bytes used.
    pub used: Bytes,
}

/// Seals an intent: the bytes that are stored.
pub fn seal(intent: &Intent) -> Result<Vec<u8>, serde_json::Error> {
    let body = serde_json::to_vec(intent)?;
    let mut bytes = header_line(intent.version, &Digest::of(&body)).into_bytes();
    bytes.push(b'\n');
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// Opens sealed bytes. Nothing of the value is used before the seal is checked, and
/// the version is looked at before the value is parsed.
pub fn open(bytes: &[u8]) -> Result<Intent, Refusal> {
    let damaged = |why: String| Refusal::IntentDamaged { why };
    if bytes.len() > MAX_SIZE {
        return Err(damaged(format!(
            "it has {} bytes, {MAX_SIZE} at most",
            bytes.len()
        )));
    }
    let end = bytes
        .iter()
        .take(256)
        .position(|b| *b == b'\n')
        .ok_or_else(|| damaged("its first line is not that of an intent".to_owned()))?;
    let (header, body) = (&bytes[..end], &bytes[end + 1..]);
    let header = std::str::from_utf8(header)
        .map_err(|_| damaged("its first line is not text".to_owned()))?;
    // Compared as written: a digit in another case or a sign in front would be read as
    // the same value, and a byte that differs is a byte that differs.
    let (version, digest) = parse_header(header)
        .filter(|(version, digest)| header == header_line(*version, digest))
        .ok_or_else(|| damaged(format!("its first line is {header:?}")))?;
    if version > VERSION {
        return Err(Refusal::NewerFormat {
            found: version,
            known: VERSION,
        });
    }
    let found = Digest::of(body);
    if found != digest {
        return Err(damaged(format!(
            "its seal is {digest}, its bytes have {found}"
        )));
    }
    let intent: Intent =
        serde_json::from_slice(body).map_err(|e| damaged(format!("its value: {e}")))?;
    if intent.version != version {
        return Err(damaged(format!(
            "its first line says version {version}, its value {}",
            intent.version
        )));
    }
    Ok(intent)
}

fn header_line(version: u32, digest: &Digest) -> String {
    format!("{MAGIC} {version} {digest}")
}

fn parse_header(header: &str) -> Option<(u32, Digest)> {
    let mut words = header.split(' ');
    let (magic, version, digest) = (words.next()?, words.next()?, words.next()?);
    if magic != MAGIC || words.next().is_some() {
        return None;
    }
    Some((version.parse().ok()?, digest.parse().ok()?))
}

/// The moment of a first run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// The id of this boot.
    pub boot_id: BootId,
    /// The clock.
    pub now: UnixTime,
    /// The digest of the booted image, when the host has images.
    pub booted_image: Option<Digest>,
}

/// Whether an intent may be acted on for the first time at this moment.
///
/// Never asked on a resume: once something was changed, a clock that jumps or an
/// image that fell back must not keep the run from finishing.
pub fn check_moment(intent: &Intent, moment: &Moment) -> Result<(), Refusal> {
    if intent.armed_boot == moment.boot_id {
        return Err(Refusal::SameBoot {
            boot: moment.boot_id.clone(),
        });
    }
    if moment.now < intent.armed_at {
        return Err(Refusal::ClockBeforeArming {
            armed: intent.armed_at,
            now: moment.now,
        });
    }
    if moment.now > intent.not_after {
        return Err(Refusal::Stale {
            not_after: intent.not_after,
            now: moment.now,
        });
    }
    match (intent.plan.image, moment.booted_image) {
        (Some(expected), found) if found != Some(expected) => Err(Refusal::OtherImage {
            expected,
            found: found.map_or_else(|| "none".to_owned(), |d| d.to_string()),
        }),
        _ => Ok(()),
    }
}
