//! `survey` and `plan`: what they show, and that they write nothing.

use repave_plan::survey::Survey;

use crate::worker::{Worker, agent};

#[test]
fn a_survey_is_shown_and_printed_as_the_value() {
    let worker = Worker::new();
    let before = worker.tree();
    let shown = worker.run("survey", &[]);
    assert_eq!((shown.code, shown.err.as_str()), (Some(0), ""));
    for part in [
        "host       worker-1 (0123456789abcdef0123456789abcdef), kernel 6.12.117+deb13-amd64",
        "p3   tank              128.0 MiB  label of pool solo (guid 11653465990387255776)",
        "p2   root               32.0 MiB  ext4, mounted at /",
        "snapshotter zfs in /var/lib/rancher/k3s/agent/containerd/",
    ] {
        assert!(shown.out.contains(part), "{part}\n{}", shown.out);
    }
    let json = worker.run("survey", &["--json"]);
    let survey: Survey = serde_json::from_str(&json.out).unwrap();
    assert_eq!(survey.pools[0].name.as_str(), "solo");
    assert_eq!(worker.tree(), before);
}

#[test]
fn a_plan_is_shown_with_a_digest_that_stays_and_nothing_is_written() {
    let worker = Worker::new();
    let before = worker.tree();
    let digest = worker.digest();
    let shown = worker.run("plan", &[]);
    assert_eq!((shown.code, shown.err.as_str()), (Some(0), ""));
    for part in [
        "p3   tank              128.0 MiB  ZFS member of solo           destroyed, part of p3",
        "p2   root               32.0 MiB  ext4                         kept bit for bit",
        "1 datasets below solo/containerd",
        "5 containerd-clear: have containerd in /var/lib/rancher/k3s/agent/containerd forget",
        &format!("digest    {digest}"),
        &format!("repave-agent arm --approve {digest}"),
    ] {
        assert!(shown.out.contains(part), "{part}\n{}", shown.out);
    }
    assert_eq!(worker.digest(), digest);
    assert_eq!(worker.tree(), before);
    worker.policy("recreate", "grow");
    assert_ne!(worker.digest(), digest);
}

#[test]
fn an_image_is_planned_as_far_as_it_can_be() {
    let worker = Worker::new();
    let before = worker.tree();
    let image = worker.path("dev/vda");
    let policy = worker.path("etc/repave/policy.d/50-worker.toml");
    let [image, policy] = [&image, &policy].map(|p| p.to_str().unwrap());
    let plan = |block, args: &[&str]| {
        let base = [
            "plan", "--image", image, "--block", block, "--policy", policy,
        ];
        agent(&[&base, args].concat())
    };
    let shown = plan("512", &[]);
    assert_eq!((shown.code, shown.err.as_str()), (Some(0), ""));
    for part in [
        "p3   tank              128.0 MiB  ZFS member of solo           destroyed, part of p3",
        "unknown   the machine: whether anything on the disk is mounted",
        "digest    none: this is a preview of the disk alone, and cannot be approved",
    ] {
        assert!(shown.out.contains(part), "{part}\n{}", shown.out);
    }
    let json: serde_json::Value = serde_json::from_str(&plan("512", &["--json"]).out).unwrap();
    assert_eq!(json["preview"]["new"]["number"], 3);
    // The table of a disk of 512-byte blocks cannot be seen in blocks of 4096.
    let wrong = plan("4096", &["--json"]);
    assert_eq!(wrong.code, Some(10), "{}", wrong.err);
    let json: serde_json::Value = serde_json::from_str(&wrong.out).unwrap();
    assert_eq!(json["name"], "no-disk");
    assert!(
        wrong.err.starts_with("refused: no disk matches"),
        "{}",
        wrong.err
    );
    assert_eq!(worker.tree(), before);
}

#[test]
fn a_refusal_names_the_fact_and_the_way_out() {
    let worker = Worker::new();
    worker.policy("label = \"mayastor\"", "label = \"relic\"");
    let before = worker.tree();
    let plan = worker.run("plan", &[]);
    assert_eq!(plan.code, Some(10));
    assert_eq!(plan.out, "");
    assert_eq!(
        plan.err,
        "refused: partition named \"relic\": how many there are is 0, the policy says 1\n\
         way out: make the policy say what is there, if that is what you mean to remove\n"
    );
    assert_eq!(worker.tree(), before);
}
