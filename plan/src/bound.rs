//! The bound facts: what must hold again at boot.
//!
//! Takes a survey, gives the identity of the disk and of what is on it; compares two
//! such identities fact by fact. It judges no state: mounts and holders are looked at
//! where they matter.

use serde::{Deserialize, Serialize};

use crate::refusal::Refusal;
use crate::survey::{Disk, LabelFact, Survey, TableFound};
use crate::table::{Table, TableImage};
use crate::units::{
    BlockSize, Bytes, Digest, Extent, Guid, MachineId, PartNo, PoolGuid, PoolName, VdevGuid,
};

/// What must hold again at boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// The machine.
    pub machine_id: MachineId,
    /// The disk's serial number.
    pub serial: Option<String>,
    /// The disk's WWN.
    pub wwn: Option<String>,
    /// The disk's size.
    pub size: Bytes,
    /// The disk's logical block size.
    pub block: BlockSize,
    /// The GUID of its table.
    pub disk_guid: Guid,
    /// Digest of LBA 0, the primary header and the primary array.
    pub primary: Digest,
    /// Digest of the backup array and header.
    pub backup: Digest,
    /// Every partition.
    pub partitions: Vec<BoundPartition>,
    /// The pool.
    pub pool: PoolName,
    /// The pool's guid, from the labels.
    pub pool_guid: PoolGuid,
    /// The guid of its one leaf, from the labels.
    pub vdev_guid: VdevGuid,
}

/// A partition, as far as it must be the same at boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundPartition {
    /// Its number.
    pub number: PartNo,
    /// Its place.
    pub extent: Extent,
    /// Its type.
    pub type_guid: Guid,
    /// Its GUID.
    pub guid: Guid,
}

/// Makes the bound facts of one disk of a survey.
pub fn bound_of(
    machine_id: &MachineId,
    disk: &Disk,
    table: &Table,
    image: &TableImage,
    member: &LabelFact,
    pool: &PoolName,
) -> Result<Bound, Refusal> {
    let pool_guid = member.pool_guid.ok_or_else(|| Refusal::Pool {
        pool: pool.to_string(),
        why: "its label has no pool guid".to_owned(),
    })?;
    Ok(Bound {
        machine_id: machine_id.clone(),
        serial: disk.serial.clone(),
        wwn: disk.wwn.clone(),
        size: disk.size,
        block: disk.block,
        disk_guid: table.disk_guid,
        primary: image.primary_digest(),
        backup: image.backup_digest(),
        partitions: table
            .entries
            .iter()
            .map(|e| BoundPartition {
                number: e.number,
                extent: e.extent,
                type_guid: e.type_guid,
                guid: e.guid,
            })
            .collect(),
        pool: pool.clone(),
        pool_guid,
        vdev_guid: member.vdev_guid,
    })
}

/// Finds the disk of these facts among the disks of a fresh survey: by serial and
/// WWN, or by the table's GUID when it has neither. A second disk that carries the
/// same table GUID is never ignored: links by PARTUUID would be ambiguous.
pub fn find_disk<'a>(bound: &Bound, survey: &'a Survey) -> Result<&'a Disk, Refusal> {
    let wanted = describe(bound);
    let hardware = |disk: &&Disk| disk.serial == bound.serial && disk.wwn == bound.wwn;
    let same_table = |disk: &&Disk| disk_guid(disk) == Some(bound.disk_guid);
    let identified = bound.serial.is_some() || bound.wwn.is_some();
    let matches: Vec<&Disk> = survey
        .disks
        .iter()
        .filter(|disk| {
            if identified {
                hardware(disk)
            } else {
                same_table(disk)
            }
        })
        .collect();
    let copies: Vec<&Disk> = survey.disks.iter().filter(same_table).collect();
    let (found, clones) = match (matches.as_slice(), copies.as_slice()) {
        ([], _) => return Err(Refusal::NoDisk { wanted }),
        ([disk], [] | [_]) if copies.iter().all(|copy| copy.name == disk.name) => {
            return Ok(disk);
        }
        (found, clones) => (found, clones),
    };
    let mut disks: Vec<String> = found.iter().chain(clones).map(|d| name_of(d)).collect();
    disks.sort();
    disks.dedup();
    Err(Refusal::SeveralDisks { wanted, disks })
}

/// A disk's name for a message: the kernel's name and the serial.
pub fn name_of(disk: &Disk) -> String {
    match &disk.serial {
        Some(serial) => format!("{} (serial {serial})", disk.name),
        None => disk.name.clone(),
    }
}

/// The first bound fact that differs.
pub fn compare(expected: &Bound, found: &Bound) -> Result<(), Refusal> {
    if expected.machine_id != found.machine_id {
        return Err(Refusal::OtherMachine {
            expected: expected.machine_id.to_string(),
            found: found.machine_id.to_string(),
        });
    }
    let optional = |v: &Option<String>| v.clone().unwrap_or_else(|| "none".to_owned());
    let partitions = |b: &Bound| {
        b.partitions
            .iter()
            .map(|p| {
                format!(
                    "{} {}-{} {} {}",
                    p.number, p.extent.first, p.extent.last, p.type_guid, p.guid
                )
            })
            .collect::<Vec<_>>()
            .join("; ")
    };
    let facts = |b: &Bound| {
        [
            ("the disk's serial", optional(&b.serial)),
            ("the disk's WWN", optional(&b.wwn)),
            ("the disk's size", b.size.0.to_string()),
            ("the disk's logical block size", b.block.0.to_string()),
            ("the table's disk GUID", b.disk_guid.to_string()),
            ("the list of partitions", partitions(b)),
            ("the digest of the primary table", b.primary.to_string()),
            ("the digest of the backup table", b.backup.to_string()),
            ("the pool's name on the label", b.pool.to_string()),
            ("the pool's guid on the label", b.pool_guid.to_string()),
            ("the vdev's guid on the label", b.vdev_guid.to_string()),
        ]
    };
    for ((fact, expected), (_, found)) in facts(expected).into_iter().zip(facts(found)) {
        if expected != found {
            return Err(Refusal::FactChanged {
                fact: fact.to_owned(),
                expected,
                found,
            });
        }
    }
    Ok(())
}

/// What the disk is, for messages.
pub fn describe(bound: &Bound) -> String {
    let part = |name: &str, value: &Option<String>| {
        value
            .as_ref()
            .map(|v| format!("{name} {v}, "))
            .unwrap_or_default()
    };
    format!(
        "{}{}disk GUID {}, {}",
        part("serial", &bound.serial),
        part("WWN", &bound.wwn),
        bound.disk_guid,
        bound.size
    )
}

/// The GUID in the primary header as it stands. Not parsed strictly: on a resume the
/// two copies differ, and the GUID is the same in both.
fn disk_guid(disk: &Disk) -> Option<Guid> {
    let TableFound::Gpt { image } = &disk.table else {
        return None;
    };
    let header = image.head.get(image.block.0 as usize..)?;
    // UEFI 2.10, table 5.5: the signature is at 0, the disk GUID at 56.
    let raw = header
        .get(56..72)
        .filter(|_| header.starts_with(b"EFI PART"))?;
    raw.try_into().ok().map(Guid)
}
