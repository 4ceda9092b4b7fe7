//! `arm` and `disarm` on a tree that will be booted later.

use std::fs;

use repave_plan::intent::open;

use crate::worker::Worker;

#[test]
fn without_an_approval_nothing_is_written() {
    let worker = Worker::new();
    let before = worker.tree();
    let digest = worker.digest();
    let dry = worker.run("arm", &[]);
    assert_eq!((dry.code, dry.err.as_str()), (Some(0), ""));
    for part in [
        "warning: armed by hand, nothing is drained",
        "dry run   nothing was written",
        &format!("repave-agent arm --approve {digest}"),
    ] {
        assert!(dry.out.contains(part), "{part}\n{}", dry.out);
    }
    assert_eq!(worker.tree(), before);
}

#[test]
fn another_digest_is_refused_and_nothing_is_written() {
    let worker = Worker::new();
    let approved = worker.digest();
    // What was approved was the old plan: the pool's features changed since.
    worker.edit(
        "usr/sbin/zpool",
        "feature@edonr\\tdisabled",
        "feature@edonr\\tenabled",
    );
    let before = worker.tree();
    let refused = worker.run("arm", &["--approve", &approved]);
    assert_eq!(refused.code, Some(10));
    let now = worker.digest();
    assert!(
        refused.err.contains(&format!(
            "the plan's digest is {now}, the approval names {approved}"
        )),
        "{}",
        refused.err
    );
    assert_eq!(worker.tree(), before);
}

#[test]
fn an_approved_plan_is_armed_shown_and_taken_back() {
    let worker = Worker::new();
    let armed = worker.arm(&[]);
    assert_eq!(
        (armed.code, armed.err.as_str()),
        (Some(0), ""),
        "{}",
        armed.out
    );
    let sealed = fs::read(worker.path("var/lib/repave/intent.json")).unwrap();
    let intent = open(&sealed).unwrap();
    assert_eq!(intent.approval.to_string(), worker.digest());
    assert_eq!(intent.not_after.0 - intent.armed_at.0, 3600);
    assert_eq!(intent.programs["zpool"], "/usr/sbin/zpool");
    assert_eq!(intent.starters, ["containerd.service", "k3s-agent.service"]);
    let run = format!("var/lib/repave/runs/{}", intent.run_id);
    for name in ["policy.json", "survey.json", "plan.json"] {
        let text = fs::read_to_string(worker.path(&format!("{run}/{name}"))).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
    }
    let copy = fs::read(worker.path(&format!("{run}/intent.json"))).unwrap();
    assert_eq!(copy, sealed);
    assert!(
        worker
            .path("etc/systemd/system/repave-boot.service")
            .exists()
    );

    let status = worker.run("status", &[]);
    assert_eq!(status.code, Some(0), "{}", status.err);
    assert!(status.out.starts_with("state:    armed"), "{}", status.out);
    assert!(
        status.out.contains(intent.run_id.as_str()),
        "{}",
        status.out
    );

    let again = worker.arm(&[]);
    assert_eq!(again.code, Some(10), "{}", again.err);
    assert!(again.err.contains("armed already"), "{}", again.err);
    assert!(
        again.err.contains("way out: run `repave-agent disarm`"),
        "{}",
        again.err
    );
    assert_eq!(
        fs::read(worker.path("var/lib/repave/intent.json")).unwrap(),
        sealed
    );

    let disarmed = worker.run("disarm", &[]);
    assert_eq!((disarmed.code, disarmed.err.as_str()), (Some(0), ""));
    assert!(!worker.path("var/lib/repave/intent.json").exists());
    assert!(
        !worker
            .path("etc/systemd/system/repave-boot.service")
            .exists()
    );
    let status = worker.run("status", &["--json"]);
    let status: serde_json::Value = serde_json::from_str(&status.out).unwrap();
    assert_eq!(status["state"], "disarmed");
    let idle = worker.run("disarm", &[]);
    assert_eq!(
        (idle.code, idle.out.as_str()),
        (Some(0), "nothing was armed\n")
    );
}

#[test]
fn a_boot_program_that_does_not_run_is_not_armed() {
    let worker = Worker::new();
    worker.program("boot/repave-boot", "#!/bin/sh\necho no >&2\nexit 3\n");
    let failed = worker.arm(&[]);
    assert_eq!(failed.code, Some(10), "{}", failed.err);
    assert!(
        failed
            .err
            .contains("the self-test ended with exit-code (status 3)"),
        "{}",
        failed.err
    );
    assert!(!worker.path("var/lib/repave/intent.json").exists());
    assert!(
        !worker
            .path("etc/systemd/system/repave-boot.service")
            .exists()
    );
    // Its folder stays, and is not taken for an intent that did not run.
    let status = worker.run("status", &[]);
    assert_eq!(status.code, Some(0));
    assert!(
        status.out.starts_with("state:    disarmed"),
        "{}",
        status.out
    );
}

#[test]
fn a_host_that_would_be_refused_at_boot_is_not_armed() {
    let worker = Worker::new();
    let mounts = "proc/1/mountinfo";
    let state = |fs: &str, source: &str| {
        format!("70 27 0:50 / /var/lib/repave rw,relatime shared:9 - {fs} {source} rw\n28 27")
    };
    let etc = "71 27 0:51 / /etc rw,relatime shared:9 - overlay overlay rw\n28 27";
    let read_only =
        "70 27 254:2 /r /var/lib/repave ro,relatime shared:9 - ext4 /dev/vda2 ro\n28 27";
    let rows: [(&str, &str, &str, &str); 8] = [
        (
            mounts,
            "28 27",
            &state("zfs", "solo/state"),
            "zfs (solo/state), which is not a plain",
        ),
        (
            mounts,
            "28 27",
            &state("tmpfs", "tmpfs"),
            "tmpfs (tmpfs), which is not a plain",
        ),
        (
            mounts,
            "28 27",
            &state("nfs4", "srv:/x"),
            "nfs4 (srv:/x), which is not a plain",
        ),
        (
            mounts,
            "28 27",
            &state("overlay", "o"),
            "overlay (o), which is not a plain",
        ),
        (
            mounts,
            "28 27",
            read_only,
            "/var/lib/repave is mounted read-only",
        ),
        (
            mounts,
            "28 27",
            etc,
            "the units' place /etc: it lies on overlay",
        ),
        (
            "etc/repave/policy.d/50-worker.toml",
            "[disk]",
            "[limits]\nmin_state_free = 1152921504606846976\n[disk]",
            "free, limits.min_state_free is 1024.0 PiB",
        ),
        (
            "etc/repave/policy.d/50-worker.toml",
            "[disk]",
            "[image]\ndigest = \"sha256:0000000000000000000000000000000000000000000000000000000000000001\"\n[disk]",
            "should be booted, none is",
        ),
    ];
    for (path, from, to, message) in rows {
        let old = fs::read_to_string(worker.path(path)).unwrap();
        worker.edit(path, from, to);
        let before = worker.tree();
        let refused = worker.arm(&[]);
        assert_eq!(refused.code, Some(10), "{message}\n{}", refused.err);
        assert!(refused.err.contains(message), "{message}\n{}", refused.err);
        assert!(refused.err.contains("\nway out: "), "{}", refused.err);
        assert_eq!(worker.tree(), before, "{message}");
        worker.write(path, &old);
    }
    fs::remove_file(worker.path("usr/sbin/modprobe")).unwrap();
    let before = worker.tree();
    let refused = worker.run("arm", &[]);
    assert_eq!(refused.code, Some(10), "{}", refused.err);
    let message = "modprobe not found in";
    assert!(refused.err.contains(message), "{}", refused.err);
    assert_eq!(worker.tree(), before);
}
