//! The inputs of the scenarios, as they are written with `REPAVE_BLESS=inputs`: each
//! is the reference worker with one thing changed.

use repave_plan::plan::Plan;
use repave_plan::policy::{DropIn, Policy, parse_policy};
use repave_plan::refusal::Refusal;
use repave_plan::survey::{StaleLabel, Survey, TableFound, Use};
use repave_plan::units::{Bytes, Extent, Lba, PoolGuid, VdevGuid};

use crate::fixtures::*;

/// A scenario's folder, its policy and its survey.
pub struct Input {
    pub name: &'static str,
    pub policy: String,
    pub survey: Survey,
}

pub fn policy(text: &str) -> Policy {
    let drop_in = DropIn {
        path: "policy.toml".to_owned(),
        bytes: text.as_bytes().to_vec(),
    };
    parse_policy(&[drop_in]).unwrap()
}

pub fn plan_of(survey: &Survey) -> Result<Plan, Refusal> {
    repave_plan::planner::plan(&policy(POLICY), survey)
}

fn input(name: &'static str, policy: &str, survey: Survey) -> Input {
    Input {
        name,
        policy: policy.to_owned(),
        survey,
    }
}

/// The reference worker with a change.
fn with(name: &'static str, change: impl FnOnce(&mut Survey)) -> Input {
    let mut survey = worker();
    change(&mut survey);
    input(name, POLICY, survey)
}

/// The reference policy with one text in the place of another.
pub fn policy_with(from: &str, to: &str) -> String {
    assert!(POLICY.contains(from), "{from}");
    POLICY.replace(from, to)
}

pub fn inputs() -> Vec<Input> {
    let recreate = "mode = \"recreate\"";
    let grow = policy_with(recreate, "mode = \"grow\"");
    let member = policy_with(
        "contains = \"no-filesystem\"",
        "contains = \"zfs-member\"\nof_pool = \"old\"",
    );
    let old = || label("old", PoolGuid(77), VdevGuid(78));
    let grown = || Worker {
        made_for: DISK_SIZE - (8 << 30),
        ..Worker::new(512, tank_first())
    };
    let between = vec![
        part(1, "EFI", EFI, 1, 513),
        part(2, "boot", LINUX, 513, 1537),
        part(3, "tank", ZFS, 1537, 147_969),
        part(4, "root", LINUX, 147_969, 173_057),
        Part {
            end: None,
            ..part(5, "mayastor", LINUX, 173_057, 0)
        },
    ];
    // Numbers do not follow the places: the dead partition is p7, the pool p9, and
    // p4 to p6 and p8 are free.
    let holes = dead_first()
        .into_iter()
        .map(|p| Part {
            number: [0, 1, 2, 3, 7, 9][p.number as usize],
            ..p
        })
        .collect();
    let required = |s: &mut Survey| {
        let host = s.host.as_mut().unwrap();
        host.required_pool_mounts = vec!["/srv/data".to_owned()];
    };
    vec![
        with("01-tank-first-recreate", |_| {}),
        input(
            "02-dead-first-recreate",
            POLICY,
            Worker::new(512, dead_first()).survey(),
        ),
        input("03-grow", &grow, worker()),
        input(
            "04-grow-dead-in-front",
            &grow,
            Worker::new(512, dead_first()).survey(),
        ),
        input(
            "05-dead-not-adjacent",
            POLICY,
            Worker::new(512, between).survey(),
        ),
        with("06-dead-has-another-label", |s| {
            part_mut(s, "mayastor").name = "data".to_owned();
        }),
        with("07-dead-has-another-type", |s| {
            part_mut(s, "mayastor").type_guid = guid(ZFS);
        }),
        with("08-dead-has-a-file-system", |s| {
            let found = part_mut(s, "root").signatures.clone();
            part_mut(s, "mayastor").signatures = found;
        }),
        with("09-two-disks-match", |s| {
            let mut clone = s.disks[0].clone();
            clone.name = "sdb".to_owned();
            clone.serial = Some("CLONE".to_owned());
            s.disks.push(clone);
        }),
        with("10-dead-carries-a-foreign-pool", |s| {
            part_mut(s, "mayastor").labels = vec![old()];
        }),
        input("11-dead-is-a-member-of-a-named-pool", &member, {
            let mut survey = worker();
            part_mut(&mut survey, "mayastor").labels = vec![old()];
            survey
        }),
        with("12-stale-label-of-a-foreign-pool", |s| {
            s.disks[0].stale = vec![StaleLabel {
                offset: Bytes(200_000 << 20),
                pool: Some("older".to_owned()),
                pool_guid: Some(PoolGuid(99)),
                vdev_guid: Some(VdevGuid(98)),
            }];
        }),
        with("13-dead-is-mounted", |s| {
            part_mut(s, "mayastor").uses = vec![Use::Mount {
                at: "/mnt/old".to_owned(),
            }];
        }),
        with("14-dead-is-swap", |s| {
            part_mut(s, "mayastor").uses = vec![Use::Swap];
        }),
        with("15-disk-is-held-by-dm", |s| {
            s.disks[0].uses = vec![Use::Holder {
                name: "dm-0".to_owned(),
            }];
        }),
        input("16-4kn", POLICY, Worker::new(4096, tank_first()).survey()),
        input("17-backup-not-at-end", POLICY, grown().survey()),
        input(
            "18-relocate-backup",
            &policy_with(
                "pool = \"tank\"\n\n[pool]",
                "pool = \"tank\"\nrelocate_backup = true\n\n[pool]",
            ),
            grown().survey(),
        ),
        with("19-encrypted-skeleton", |s| {
            dataset_mut(s, "tank/localpv").unsupported = vec!["encryption".to_owned()];
        }),
        with("20-missing-dataset", |s| {
            s.pools[0]
                .datasets
                .retain(|d| d.name.as_str() != "tank/localpv");
        }),
        with("21-containerd-root-on-the-pool", |s| {
            let root = &mut s.containerd.as_mut().unwrap().root;
            *root = path(&root.path, &root.path, "zfs", "tank/containerd");
        }),
        with("22-no-containerd", |s| s.containerd = None),
        input(
            "23-no-containerd-and-none-wanted",
            &format!("{POLICY}\n[containerd]\nclear = \"none\"\n"),
            {
                let mut survey = worker();
                survey.containerd = None;
                survey
            },
        ),
        input(
            "24-clear-none-with-snapshots-on-the-pool",
            &format!("{POLICY}\n[containerd]\nclear = \"none\"\n"),
            worker(),
        ),
        with("25-reservation-too-large", |s| {
            let size = (500u64 << 30).to_string();
            let reserved = property(&size, "local");
            let properties = &mut dataset_mut(s, "tank/localpv").properties;
            properties.insert("reservation".to_owned(), reserved);
        }),
        with("26-several-leaves", |s| {
            s.pools[0].leaves.push(VdevGuid(5));
            part_mut(s, "tank").labels[0].leaves = 2;
        }),
        with("27-pool-is-not-imported", |s| s.pools.clear()),
        with("28-mount-that-the-boot-requires", required),
        with("29-kernel-has-another-table", |s| {
            let part = part_mut(s, "mayastor");
            part.kernel = Some(Extent {
                last: Lba(part.extent.last.0 - 8),
                ..part.extent
            });
        }),
        input(
            "30-holes-in-the-numbering",
            POLICY,
            Worker::new(512, holes).survey(),
        ),
        with("31-no-such-disk", |s| {
            s.disks[0].partitions[3].labels.clear()
        }),
        with("32-second-pool-of-the-same-name", |s| {
            let mut other = Worker::new(512, tank_first()).disk();
            other.name = "sdb".to_owned();
            other.serial = Some("OTHER".to_owned());
            other.partitions[3].labels[0].pool_guid = Some(PoolGuid(5));
            s.disks.push(other);
        }),
        with("33-imported-pool-is-another", |s| {
            s.pools[0].guid = PoolGuid(5)
        }),
        with("34-imported-vdev-is-another", |s| {
            s.pools[0].leaves = vec![VdevGuid(5)];
        }),
        input("35-grow-with-several-leaves", &grow, {
            let mut survey = worker();
            survey.pools[0].leaves.push(VdevGuid(5));
            survey
        }),
        with("36-pool-of-two-top-level-vdevs", |s| {
            part_mut(s, "tank").labels[0].top_level = 2;
        }),
        with("37-labels-of-two-pools-in-one-partition", |s| {
            part_mut(s, "tank").labels.push(old());
        }),
        with("38-two-members-on-the-disk", |s| {
            let label = part_mut(s, "tank").labels[0].clone();
            part_mut(s, "mayastor").labels = vec![label];
        }),
        with("39-disk-is-read-only", |s| s.disks[0].read_only = true),
        with("40-table-cannot-be-read", |s| {
            s.disks[0].table = TableFound::Unreadable {
                why: "EIO".to_owned(),
            };
        }),
        input(
            "41-pool-has-another-label",
            &policy_with("partition_label = \"tank\"", "partition_label = \"zfs\""),
            worker(),
        ),
        input("42-grow-an-exported-pool", &grow, {
            let mut survey = worker();
            part_mut(&mut survey, "tank").labels[0].state = 2;
            survey
        }),
        with("43-no-place-for-the-shadow", |s| {
            s.disks[0].zero_runs.clear();
            // Both are smaller than what is kept free for labels at either end.
            s.disks[0] = {
                let mut parts = tank_first();
                parts[3].end = Some(26_625 + 3);
                parts[4].mib = 26_625 + 3;
                parts[4].end = Some(26_625 + 6);
                parts.push(part(6, "rest", LINUX, 26_625 + 6, 300_000));
                let mut disk = Worker::new(512, parts).disk();
                disk.zero_runs.clear();
                disk
            };
        }),
        input(
            "44-volume-in-the-skeleton",
            &policy_with("tank/localpv\"\nset", "tank/localpv/pvc-0a\"\nset"),
            worker(),
        ),
        input(
            "45-snapshots-are-not-recreated",
            &policy_with("[[datasets]]\nname = \"tank/containerd\"\n", ""),
            worker(),
        ),
        with("46-creation-property-not-seen", |s| {
            let properties = &mut dataset_mut(s, "tank/containerd").properties;
            properties.remove("utf8only");
        }),
    ]
}
