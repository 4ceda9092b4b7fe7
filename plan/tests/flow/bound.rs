//! The bound facts: one row a fact, and the search for the disk they belong to.

use repave_plan::bound::{Bound, compare, find_disk};
use repave_plan::planner::bind;
use repave_plan::refusal::Refusal;
use repave_plan::survey::{Disk, Survey, TableFound};
use repave_plan::units::{BlockSize, Bytes, Digest, Lba, PartNo, PoolGuid, VdevGuid};

use crate::fixtures::*;
use crate::inputs::policy;

fn bound() -> Bound {
    bind(&policy(POLICY), &worker()).unwrap()
}

type Change = fn(&mut Bound);

#[test]
fn every_bound_fact_is_compared_and_named() {
    let expected = bound();
    compare(&expected, &expected.clone()).unwrap();
    let rows: [(&str, Change); 17] = [
        ("the disk's serial", |b| b.serial = None),
        ("the disk's serial", |b| b.serial = Some("other".to_owned())),
        ("the disk's WWN", |b| b.wwn = Some("other".to_owned())),
        ("the disk's size", |b| b.size = Bytes(1)),
        ("the disk's logical block size", |b| {
            b.block = BlockSize(4096)
        }),
        ("the table's disk GUID", |b| b.disk_guid = part_guid(9)),
        ("the list of partitions", |b| {
            b.partitions[1].number = PartNo(9)
        }),
        ("the list of partitions", |b| {
            b.partitions[1].extent.first = Lba(9)
        }),
        ("the list of partitions", |b| {
            b.partitions[1].extent.last = Lba(9)
        }),
        ("the list of partitions", |b| {
            b.partitions[1].type_guid = part_guid(9)
        }),
        ("the list of partitions", |b| {
            b.partitions[1].guid = part_guid(9)
        }),
        ("the list of partitions", |b| b.partitions.truncate(4)),
        ("the digest of the primary table", |b| {
            b.primary = Digest::of(b"x")
        }),
        ("the digest of the backup table", |b| {
            b.backup = Digest::of(b"x")
        }),
        ("the pool's name on the label", |b| {
            b.pool = "tonk".parse().unwrap()
        }),
        ("the pool's guid on the label", |b| {
            b.pool_guid = PoolGuid(1)
        }),
        ("the vdev's guid on the label", |b| {
            b.vdev_guid = VdevGuid(1)
        }),
    ];
    for (fact, change) in rows {
        let mut found = expected.clone();
        change(&mut found);
        for (one, other) in [(&expected, &found), (&found, &expected)] {
            match compare(one, other) {
                Err(Refusal::FactChanged {
                    fact: named,
                    expected,
                    found,
                }) => {
                    assert_eq!(named, fact);
                    assert_ne!(expected, found);
                }
                other => panic!("{fact}: {other:?}"),
            }
        }
    }
    let mut elsewhere = expected.clone();
    elsewhere.machine_id = "f".repeat(32).parse().unwrap();
    let result = compare(&expected, &elsewhere);
    assert!(
        matches!(result, Err(Refusal::OtherMachine { .. })),
        "{result:?}"
    );
}

fn disks(disks: Vec<Disk>) -> Survey {
    Survey { disks, ..worker() }
}

/// The reference disk under another name and serial, with another table.
fn stranger() -> Disk {
    let worker = Worker {
        disk_guid: guid("d15c0000-0000-4000-8000-000000000002"),
        ..Worker::new(512, tank_first())
    };
    Disk {
        name: "sdb".to_owned(),
        serial: Some("STRANGER".to_owned()),
        wwn: None,
        ..worker.disk()
    }
}

fn renamed(disk: Disk, name: &str) -> Disk {
    Disk {
        name: name.to_owned(),
        ..disk
    }
}

fn anonymous(disk: Disk) -> Disk {
    Disk {
        serial: None,
        wwn: None,
        ..disk
    }
}

#[test]
fn the_disk_is_found_by_identity_and_a_copy_is_never_ignored() {
    let disk = || Worker::new(512, tank_first()).disk();
    let clone = || Disk {
        serial: Some("CLONE".to_owned()),
        ..renamed(disk(), "sdb")
    };
    // The disk of the serial with another table, while another disk carries the known one.
    let rewritten = || Disk {
        table: stranger().table,
        ..disk()
    };
    let blank = || Disk {
        table: TableFound::None,
        ..stranger()
    };
    let known = bound();
    let nameless = bind(&policy(POLICY), &disks(vec![anonymous(disk())])).unwrap();
    // bound facts, disks of the fresh survey, the disk found or the refusal
    let rows = [
        ("alone", &known, vec![disk()], Ok("nvme0n1")),
        (
            "under another name",
            &known,
            vec![stranger(), renamed(disk(), "sdz")],
            Ok("sdz"),
        ),
        (
            "with strangers",
            &known,
            vec![stranger(), disk(), blank()],
            Ok("nvme0n1"),
        ),
        ("gone", &known, vec![stranger()], Err("no-disk")),
        ("no disk at all", &known, vec![], Err("no-disk")),
        ("only a clone", &known, vec![clone()], Err("no-disk")),
        (
            "with a clone of its table",
            &known,
            vec![disk(), clone()],
            Err("several-disks"),
        ),
        (
            "its table is on another disk",
            &known,
            vec![rewritten(), clone()],
            Err("several-disks"),
        ),
        (
            "serial twice",
            &known,
            vec![disk(), renamed(disk(), "sdb")],
            Err("several-disks"),
        ),
        (
            "no serial any more",
            &known,
            vec![anonymous(disk())],
            Err("no-disk"),
        ),
        (
            "nameless, alone",
            &nameless,
            vec![anonymous(disk()), stranger()],
            Ok("nvme0n1"),
        ),
        (
            "nameless, cloned",
            &nameless,
            vec![anonymous(disk()), anonymous(renamed(disk(), "sdb"))],
            Err("several-disks"),
        ),
        (
            "nameless, gone",
            &nameless,
            vec![stranger(), blank()],
            Err("no-disk"),
        ),
    ];
    for (what, bound, found, expected) in rows {
        let survey = disks(found);
        let result = find_disk(bound, &survey);
        let result = result
            .as_ref()
            .map(|d| d.name.as_str())
            .map_err(Refusal::name);
        assert_eq!(result, expected, "{what}");
    }
}
