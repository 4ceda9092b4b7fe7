//! Design 4: what an approval is about, one row a fact. A row that changes nothing it
//! should change, or the other way round, is red by name.

use repave_plan::essence::approval_digest;
use repave_plan::planner::plan;
use repave_plan::survey::Survey;
use repave_plan::units::{Digest, PoolGuid, VdevGuid};
use serde_json::{Value, json};

use crate::fixtures::*;
use crate::inputs::{policy, policy_with};

fn digest(policy_text: &str, survey: &Survey) -> Digest {
    approval_digest(&plan(&policy(policy_text), survey).unwrap()).unwrap()
}

fn reference() -> Survey {
    let mut survey = worker();
    survey.pools[0]
        .properties
        .insert("com.example:note".to_owned(), property("a tool's", "local"));
    survey
}

#[test]
fn what_moves_on_a_live_node_does_not_move_the_digest() {
    let base = reference();
    let expected = digest(POLICY, &base);
    let rows: Vec<(&str, Value)> = vec![
        ("/taken", json!(1)),
        ("/unknown", json!(["pool other: no answer"])),
        ("/host/boot_id", json!("b0071d00000000000000000000000002")),
        ("/host/hostname", json!("renamed")),
        ("/host/kernel", json!("6.18.0")),
        ("/host/state_dir/free", json!(5)),
        ("/host/zfs_tools", json!("2.4.0")),
        ("/host/zfs_module", json!("2.4.0")),
        ("/host/starters", json!([])),
        ("/host/programs/zfs", json!("/usr/local/sbin/zfs")),
        ("/host/image", json!({"booted": null, "staged": null})),
        ("/disks/0/name", json!("nvme1n1")),
        ("/disks/0/node", json!("/dev/nvme1n1")),
        ("/disks/0/zero_runs", json!([])),
        ("/disks/0/partitions/3/labels/0/txg", json!(9_999_999)),
        ("/disks/0/partitions/3/labels/0/checksum_ok", json!(false)),
        ("/disks/0/partitions/3/labels/0/places", json!([0, 1])),
        ("/disks/0/partitions/3/labels/0/state", json!(1)),
        (
            "/disks/0/partitions/2/uses",
            json!([{"use": "mount", "at": "/"}]),
        ),
        ("/disks/0/partitions/3/remnants", json!([2])),
        ("/pools/0/health", json!("DEGRADED")),
        ("/pools/0/size", json!(1)),
        ("/pools/0/allocated", json!(7)),
        ("/pools/0/properties/size/value", json!("1")),
        (
            "/pools/0/properties/com.example:note/value",
            json!("another"),
        ),
        (
            "/pools/0/properties/feature@lz4_compress/value",
            json!("enabled"),
        ),
        // Not named when the pool was made: the label's ashift counts, and is the same.
        ("/pools/0/properties/ashift/value", json!("0")),
        ("/pools/0/datasets/0/guid", json!("17")),
        ("/pools/0/datasets/1/mounted_at", json!("/mnt")),
        ("/pools/0/datasets/2/used", json!(3)),
        ("/pools/0/datasets/2/name", json!("tank/containerd/4711")),
        ("/pools/0/datasets/7/name", json!("tank/localpv/pvc-new")),
        (
            "/pools/0/datasets/5/properties/com.example:owner/value",
            json!("x"),
        ),
        ("/containerd/found_by", json!("elsewhere")),
        ("/containerd/database", json!(false)),
        ("/containerd/root/free", json!(1)),
    ];
    for (pointer, value) in rows {
        let survey = edited(&base, pointer, value);
        assert_eq!(digest(POLICY, &survey), expected, "{pointer}");
    }
    let mut fewer = base.clone();
    fewer.pools[0].datasets.truncate(6);
    assert_eq!(digest(POLICY, &fewer), expected, "children gone");
    let limits = format!("{POLICY}\n[limits]\nattempts = 2\n");
    assert_eq!(digest(&limits, &base), expected, "limits");
}

#[test]
fn every_essential_fact_of_the_survey_moves_the_digest() {
    let base = reference();
    let expected = digest(POLICY, &base);
    let other_guid = json!("9a479999-0000-4000-8000-000000000009");
    let rows: Vec<(&str, Value)> = vec![
        (
            "/host/machine_id",
            json!("ffffffffffffffffffffffffffffffff"),
        ),
        ("/disks/0/serial", json!("OTHER")),
        ("/disks/0/wwn", json!(null)),
        ("/disks/0/size", json!(DISK_SIZE - 512)),
        ("/disks/0/partitions/3/guid", other_guid.clone()),
        ("/disks/0/partitions/3/type_guid", json!(LINUX)),
        ("/disks/0/partitions/4/guid", other_guid),
        ("/pools/0/properties/ashift/value", json!("13")),
        ("/pools/0/properties/autotrim/value", json!("off")),
        ("/pools/0/properties/failmode/source", json!("local")),
        ("/pools/0/properties/compatibility/source", json!("local")),
        (
            "/pools/0/properties/feature@block_cloning/value",
            json!("enabled"),
        ),
        (
            "/pools/0/properties/feature@zstd_compress/value",
            json!("disabled"),
        ),
        (
            "/pools/0/datasets/0/properties/compression/value",
            json!("off"),
        ),
        ("/pools/0/datasets/1/properties/atime/value", json!("on")),
        (
            "/pools/0/datasets/1/properties/atime/source",
            json!("default"),
        ),
        (
            "/pools/0/datasets/1/properties/casesensitivity/value",
            json!("mixed"),
        ),
        (
            "/pools/0/datasets/1/properties/normalization/value",
            json!("formC"),
        ),
        ("/pools/0/datasets/5/properties/utf8only/value", json!("on")),
        ("/containerd/root/path", json!("/srv/containerd")),
        ("/containerd/snapshotter", json!("zfs2")),
    ];
    for (pointer, value) in rows {
        let survey = edited(&base, pointer, value);
        assert_ne!(digest(POLICY, &survey), expected, "{pointer}");
    }

    let mut pool = base.clone();
    pool.pools[0].guid = PoolGuid(5);
    part_mut(&mut pool, "tank").labels[0].pool_guid = Some(PoolGuid(5));
    assert_ne!(digest(POLICY, &pool), expected, "the pool's guid");
    let mut vdev = base.clone();
    vdev.pools[0].leaves = vec![VdevGuid(6)];
    part_mut(&mut vdev, "tank").labels[0].vdev_guid = VdevGuid(6);
    assert_ne!(digest(POLICY, &vdev), expected, "the vdev's guid");
}

#[test]
fn every_byte_of_the_table_moves_the_digest() {
    let of = |worker: Worker| digest(POLICY, &worker.survey());
    let base = || Worker::new(512, tank_first());
    let expected = of(base());
    let renamed = |name| {
        let mut worker = base();
        worker.parts[1].name = name;
        worker
    };
    assert_eq!(of(renamed("boot")), expected);
    // Not touched, and all the same in the bytes that will be written again.
    assert_ne!(of(renamed("loader")), expected);
    assert_ne!(of(Worker::new(512, dead_first())), expected);
    assert_ne!(of(Worker::new(4096, tank_first())), expected);
    let mut shorter = base();
    shorter.parts[4].end = Some(400_000);
    assert_ne!(of(shorter), expected, "the dead partition's end");
    let disk_guid = guid("d15c0000-0000-4000-8000-000000000002");
    assert_ne!(
        of(Worker {
            disk_guid,
            ..base()
        }),
        expected
    );
}

#[test]
fn every_essential_wish_of_the_policy_moves_the_digest() {
    let base = reference();
    let expected = digest(POLICY, &base);
    let image = format!("[image]\ndigest = \"{}\"\n", Digest::of(b"one"));
    let other = format!("[image]\ndigest = \"{}\"\n", Digest::of(b"two"));
    let mut seen = vec![expected];
    for text in [
        policy_with("mode = \"recreate\"", "mode = \"grow\""),
        policy_with("compression = \"zstd\"", "compression = \"lz4\""),
        policy_with(
            "[[datasets]]\nname = \"tank/localpv\"\nset = { compression = \"zstd\" }\n",
            "",
        ),
        format!("{POLICY}\n[containerd]\nclear = \"all\"\n"),
        format!("{POLICY}\n[containerd]\nclear = \"none\"\n"),
        format!("{POLICY}\n{image}"),
        format!("{POLICY}\n{other}"),
    ] {
        let digest = digest(&text, &base);
        assert!(!seen.contains(&digest), "{text}");
        seen.push(digest);
    }
}

#[test]
fn the_labels_that_will_be_erased_move_the_digest() {
    let text = policy_with(
        "contains = \"no-filesystem\"",
        "contains = \"zfs-member\"\nof_pool = \"old\"",
    );
    let of = |pool_guid, vdev| {
        let mut survey = reference();
        part_mut(&mut survey, "mayastor").labels =
            vec![label("old", PoolGuid(pool_guid), VdevGuid(vdev))];
        digest(&text, &survey)
    };
    assert_ne!(of(77, 78), of(79, 78));
    let spare = |vdev| {
        let mut survey = reference();
        let mut found = label("old", PoolGuid(0), VdevGuid(vdev));
        found.pool_guid = None;
        part_mut(&mut survey, "mayastor").labels = vec![found];
        digest(&text, &survey)
    };
    assert_ne!(spare(78), spare(79));
}

#[test]
fn the_digest_is_pinned() {
    // A digest that moves with a version of this program makes every approval that is
    // waiting worthless; it may move with the essence's own version only.
    let expected = "sha256:24d2af26aa65ff34aa982a75fe40f5abd9eb3e3be8de7e95e5577110712746a8";
    assert_eq!(digest(POLICY, &worker()).to_string(), expected);
}
