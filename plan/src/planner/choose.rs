//! Finds the disk and the partitions a policy speaks of, or says why not.
//!
//! Takes the policy and the survey, gives a [`Chosen`]. Everything is found by what it
//! holds; a name of the kernel is never looked at.

use crate::bound::name_of;
use crate::chain::chain;
use crate::policy::{Contents, Mode, Policy, RemovePolicy};
use crate::refusal::Refusal;
use crate::survey::{Disk, LabelFact, Partition, Survey, TableFound, Use};
use crate::table::{BackupPlace, Table, TableImage, parse_table_with};
use crate::units::PoolGuid;

/// What the policy's words mean on this machine.
#[derive(Debug)]
pub(super) struct Chosen<'a> {
    pub disk: &'a Disk,
    pub image: &'a TableImage,
    pub table: Table,
    /// The pool's partition.
    pub member: &'a Partition,
    /// The pool's label on it.
    pub label: &'a LabelFact,
    pub pool_guid: PoolGuid,
    /// The partitions to remove, by number.
    pub removed: Vec<&'a Partition>,
}

pub(super) fn choose<'a>(policy: &Policy, survey: &'a Survey) -> Result<Chosen<'a>, Refusal> {
    let disk = choose_disk(policy, survey)?;
    let name = name_of(disk);
    let table_refusal = |why: String| Refusal::Table {
        disk: name.clone(),
        why,
    };
    if disk.read_only {
        return Err(Refusal::InUse {
            what: name,
            by: "the kernel has it read-only".to_owned(),
        });
    }
    let image = match &disk.table {
        TableFound::Gpt { image } => image,
        TableFound::None => return Err(table_refusal("it has no GPT".to_owned())),
        TableFound::Unreadable { why } => return Err(table_refusal(why.clone())),
    };
    let place = match policy.disk.relocate_backup {
        true => BackupPlace::MayMove,
        false => BackupPlace::AtEnd,
    };
    let table = parse_table_with(image, place).map_err(|e| table_refusal(chain(&e)))?;
    let member = choose_member(policy, disk)?;
    let label = only_label(policy, member)?;
    check_topology(policy, label)?;
    let pool_guid = label.pool_guid.ok_or_else(|| Refusal::Pool {
        pool: policy.disk.pool.to_string(),
        why: "its label has no pool guid".to_owned(),
    })?;
    let mut removed = Vec::new();
    for rule in &policy.remove {
        removed.push(choose_removed(rule, disk, member)?);
    }
    removed.sort_by_key(|part| part.number);
    let chosen = Chosen {
        disk,
        image,
        table,
        member,
        label,
        pool_guid,
        removed,
    };
    check_uses(&chosen)?;
    check_kernel(&chosen)?;
    check_labels(policy, survey, &chosen)?;
    Ok(chosen)
}

/// A disk qualifies when one of its partitions carries a label of the pool.
fn choose_disk<'a>(policy: &Policy, survey: &'a Survey) -> Result<&'a Disk, Refusal> {
    let pool = policy.disk.pool.as_str();
    let wish = |want: &Option<String>, have: &Option<String>| want.is_none() || want == have;
    let fits = |disk: &&Disk| {
        wish(&policy.disk.serial, &disk.serial)
            && wish(&policy.disk.wwn, &disk.wwn)
            && policy.disk.disk_guid.is_none_or(|want| {
                matches!(&disk.table, TableFound::Gpt { image }
                    if parse_table_with(image, BackupPlace::MayMove)
                        .is_ok_and(|table| table.disk_guid == want))
            })
    };
    let carries = |disk: &&Disk| {
        disk.partitions
            .iter()
            .any(|p| p.labels.iter().any(|l| l.pool.as_deref() == Some(pool)))
    };
    let found: Vec<&Disk> = survey.disks.iter().filter(carries).filter(fits).collect();
    let wanted = format!("a partition with a label of pool {pool}");
    match found.as_slice() {
        [disk] => Ok(disk),
        [] => Err(Refusal::NoDisk { wanted }),
        several => Err(Refusal::SeveralDisks {
            wanted,
            disks: several.iter().map(|d| name_of(d)).collect(),
        }),
    }
}

fn choose_member<'a>(policy: &Policy, disk: &'a Disk) -> Result<&'a Partition, Refusal> {
    let pool = policy.disk.pool.as_str();
    let has = |p: &&Partition| p.labels.iter().any(|l| l.pool.as_deref() == Some(pool));
    let members: Vec<&Partition> = disk.partitions.iter().filter(has).collect();
    let member = match members.as_slice() {
        [member] => *member,
        several => {
            return Err(Refusal::Pool {
                pool: pool.to_owned(),
                why: format!(
                    "{} partitions of {} are members of it",
                    several.len(),
                    disk.name
                ),
            });
        }
    };
    expect(
        member,
        "its name",
        policy.pool.partition_label.as_ref(),
        &member.name,
    )?;
    expect(
        member,
        "its type",
        policy.pool.partition_type.as_ref(),
        &member.type_guid,
    )?;
    Ok(member)
}

/// The one pool the partition's labels belong to. Labels of a second pool in the same
/// partition mean that two geometries overlap: the front ones hide the rear ones.
fn only_label<'a>(policy: &Policy, member: &'a Partition) -> Result<&'a LabelFact, Refusal> {
    let pool = policy.disk.pool.as_str();
    match member.labels.as_slice() {
        [label] => Ok(label),
        labels => {
            let foreign = labels.iter().find(|l| l.pool.as_deref() != Some(pool));
            let shown = foreign.or(labels.first());
            Err(Refusal::ForeignLabel {
                place: part_name(member),
                pool: shown
                    .and_then(|l| l.pool.clone())
                    .unwrap_or_else(|| "-".to_owned()),
                guid: guid_text(shown),
            })
        }
    }
}

/// The labels know the topology without an import, so an image can be judged too.
fn check_topology(policy: &Policy, label: &LabelFact) -> Result<(), Refusal> {
    if (label.leaves, label.top_level) == (1, 1) {
        return Ok(());
    }
    Err(Refusal::Pool {
        pool: policy.disk.pool.to_string(),
        why: format!(
            "its label names {} top-level vdevs, and {} leaf vdevs in this one; only a pool \
             of one partition is repaved",
            label.top_level, label.leaves
        ),
    })
}

fn choose_removed<'a>(
    rule: &RemovePolicy,
    disk: &'a Disk,
    member: &Partition,
) -> Result<&'a Partition, Refusal> {
    let named: Vec<&Partition> = disk
        .partitions
        .iter()
        .filter(|p| p.name == rule.label && p.number != member.number)
        .collect();
    let part = match named.as_slice() {
        [part] => *part,
        several => {
            return Err(Refusal::Partition {
                part: format!("named {:?}", rule.label),
                fact: "how many there are".to_owned(),
                expected: "1".to_owned(),
                found: several.len().to_string(),
            });
        }
    };
    expect(part, "its type", rule.type_guid.as_ref(), &part.type_guid)?;
    let found = contents(part);
    let right = match (rule.contains, &rule.of_pool) {
        (Contents::ZfsMember, Some(pool)) => {
            part.signatures.is_empty()
                && !part.labels.is_empty()
                && part
                    .labels
                    .iter()
                    .all(|l| l.pool.as_deref() == Some(pool.as_str()))
        }
        (Contents::ZfsMember, None) => false,
        (Contents::NoFilesystem, _) => part.signatures.is_empty() && part.labels.is_empty(),
    };
    if right {
        return Ok(part);
    }
    let expected = match (rule.contains, &rule.of_pool) {
        (Contents::ZfsMember, Some(pool)) => format!("a member of pool {pool} and nothing else"),
        _ => "no file system, volume or pool".to_owned(),
    };
    Err(Refusal::Partition {
        part: part_name(part),
        fact: "its content".to_owned(),
        expected,
        found,
    })
}

fn expect<T: PartialEq + std::fmt::Display>(
    part: &Partition,
    fact: &str,
    wanted: Option<&T>,
    found: &T,
) -> Result<(), Refusal> {
    match wanted {
        Some(expected) if expected != found => Err(Refusal::Partition {
            part: part_name(part),
            fact: fact.to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }),
        _ => Ok(()),
    }
}

/// What a partition holds, for people.
pub(super) fn contents(part: &Partition) -> String {
    let labels = part.labels.iter().map(|l| match &l.pool {
        Some(pool) => format!("ZFS member of {pool}"),
        None => format!("ZFS label of vdev {}", l.vdev_guid),
    });
    let mut all: Vec<String> = labels
        .chain(part.signatures.iter().map(|s| s.kind.clone()))
        .collect();
    if all.is_empty() && !part.remnants.is_empty() {
        all.push("remnants of a ZFS label".to_owned());
    }
    match all.is_empty() {
        true => "no signature".to_owned(),
        false => all.join(", "),
    }
}

/// A partition's name for a message.
pub(super) fn part_name(part: &Partition) -> String {
    format!("{} {:?}", part.number, part.name)
}

fn check_uses(chosen: &Chosen) -> Result<(), Refusal> {
    let in_use = |what: String, by: &Use| Refusal::InUse {
        what,
        by: describe_use(by),
    };
    if let Some(by) = chosen.disk.uses.first() {
        return Err(in_use(name_of(chosen.disk), by));
    }
    for part in chosen.removed.iter().copied().chain([chosen.member]) {
        if let Some(by) = part.uses.first() {
            return Err(in_use(format!("partition {}", part_name(part)), by));
        }
    }
    Ok(())
}

/// What uses something, for a message.
pub fn describe_use(by: &Use) -> String {
    match by {
        Use::Mount { at } => format!("mounted at {at}"),
        Use::Swap => "a swap area".to_owned(),
        Use::Holder { name } => format!("device {name} stands on it"),
        Use::Loop { name } => format!("{name} is backed by it"),
    }
}

/// The kernel and the table must agree before anything is planned: a kernel that is
/// stale already would be "corrected" from a wrong start.
fn check_kernel(chosen: &Chosen) -> Result<(), Refusal> {
    for part in &chosen.disk.partitions {
        if let Some(kernel) = part.kernel
            && kernel != part.extent
        {
            return Err(Refusal::Table {
                disk: name_of(chosen.disk),
                why: format!(
                    "the kernel has {} at {} to {}, the table at {} to {}",
                    part_name(part),
                    kernel.first,
                    kernel.last,
                    part.extent.first,
                    part.extent.last
                ),
            });
        }
    }
    Ok(())
}

/// Labels that nobody named: in the touched partitions, left over between them, or of
/// a second pool with the same name anywhere on the machine (an import by name, the
/// next time somebody makes one, would be ambiguous).
fn check_labels(policy: &Policy, survey: &Survey, chosen: &Chosen) -> Result<(), Refusal> {
    if let Mode::Grow = policy.mode
        && chosen.label.state > 1
    {
        return Err(Refusal::Pool {
            pool: policy.disk.pool.to_string(),
            why: format!(
                "its label has state {}; only a live pool can grow",
                chosen.label.state
            ),
        });
    }
    for disk in &survey.disks {
        for part in &disk.partitions {
            for label in &part.labels {
                if label.pool.as_deref() == Some(policy.disk.pool.as_str())
                    && label.pool_guid != Some(chosen.pool_guid)
                {
                    return Err(Refusal::ForeignLabel {
                        place: format!("{} of {}", part_name(part), name_of(disk)),
                        pool: policy.disk.pool.to_string(),
                        guid: guid_text(Some(label)),
                    });
                }
            }
        }
    }
    Ok(())
}

fn guid_text(label: Option<&LabelFact>) -> String {
    match label.and_then(|l| l.pool_guid) {
        Some(guid) => guid.to_string(),
        None => "none".to_owned(),
    }
}
