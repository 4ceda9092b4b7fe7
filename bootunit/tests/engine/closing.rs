//! The finish unit: what it wants before it opens the gate, and in which order it does.

use repave_boot::cache_file;
use repave_boot::finish::{Finished, finish};
use repave_boot::model_host::Cut;
use repave_boot::run::Ended;
use repave_plan::report::Verdict;
use repave_plan::stop::Stop;

use super::worker::*;

/// A worker after the boot run and the other units.
fn ready() -> Worker {
    let worker = armed(512);
    assert_eq!(worker.run(), Ended::StepsDone);
    worker.other_units();
    worker
}

fn close(worker: &Worker) -> Finished {
    finish(&worker.host, &worker.state).unwrap()
}

fn assert_not_ready(worker: &Worker, words: &str) {
    let Finished::Stopped(Stop::NotReady { found }) = close(worker) else {
        panic!("closed without: {words}");
    };
    assert!(found.contains(words), "{found}");
    assert!(worker.is_changed(), "the gate is open: {words}");
    assert!(matches!(
        worker.verdict(),
        Verdict::Stopped(Stop::NotReady { .. })
    ));
}

#[test]
fn the_intent_goes_before_changed() {
    let worker = ready();
    assert_eq!(close(&worker), Finished::Done);
    let calls = worker.calls();
    let last = |start: &str| {
        let at = calls.iter().rposition(|call| call.starts_with(start));
        at.unwrap_or_else(|| panic!("no call {start}"))
    };
    let order = [
        last("run zpool set cachefile=/etc/zfs/zpool.cache tank"),
        last("write /etc/zfs/zpool.cache"),
        last("write /var/lib/repave/runs"),
        last("remove /etc/issue.d/50-repave.issue"),
        last("write /var/lib/repave/cleanup.json"),
        last("remove /var/lib/repave/intent.json"),
        last("remove /var/lib/repave/changed"),
    ];
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(worker.call("remove /var/lib/repave/changed"), order[6]);
    assert!(
        calls[order[6] + 1..]
            .iter()
            .all(|call| call.starts_with("say "))
    );
    assert_eq!(worker.verdict(), Verdict::Done);
    let cache = worker.file(cache_file::PATH).unwrap();
    assert_eq!(
        String::from_utf8(cache).unwrap(),
        "store\t7777\ntank\t9001\n"
    );
}

#[test]
fn the_gate_stays_shut_until_every_step_is_done_in_this_boot() {
    // Done in the boot before; in this one the run could not even begin.
    let worker = armed(512);
    assert_eq!(worker.run(), Ended::StepsDone);
    worker.reboot();
    worker.host.world().import_for_unit("tank", 9001);
    worker.host.world().mount_all();
    assert_eq!(close(&worker), Finished::NotYet);
    assert!(worker.is_changed() && worker.has(worker.state.intent()));
    assert!(!worker.has(worker.run_file("report.json")));

    // All but the last step.
    let worker = armed(512);
    worker.host.world().fails = vec!["containerd-clear".to_owned()];
    assert!(matches!(worker.run(), Ended::Stopped(_)));
    worker.other_units();
    assert_eq!(close(&worker), Finished::NotYet);
    assert!(worker.is_changed());
}

#[test]
fn nothing_begun_is_nothing_to_close() {
    let worker = armed(512);
    assert_eq!(close(&worker), Finished::NothingBegun);
    assert_eq!(worker.calls(), ["read /var/lib/repave/changed"]);
}

#[test]
fn it_accepts_its_own_earlier_report() {
    let dry = ready();
    assert_eq!(close(&dry), Finished::Done);
    let report = dry
        .calls()
        .iter()
        .rposition(|c| c.ends_with("report.json"))
        .unwrap();
    let intent = dry.call("remove /var/lib/repave/intent.json");
    let changed = dry.call("remove /var/lib/repave/changed");
    for (at, how) in [
        (report, Cut::Kept),
        (intent, Cut::Lost),
        (intent, Cut::Kept),
        (changed, Cut::Lost),
    ] {
        let worker = ready();
        worker.host.world().cut = Some((at, how));
        drop(finish(&worker.host, &worker.state));
        assert!(worker.is_changed());
        assert_eq!(
            worker.has(worker.state.intent()),
            (at, how) != (intent, Cut::Kept) && at != changed
        );
        worker.reboot();
        let (ended, finished) = worker.boot_through();
        assert_eq!(ended, Some(Ended::StepsDone));
        assert_eq!(finished, Some(Finished::Done));
        assert_eq!(worker.pools_on_disk(), [9001]);
        assert_eq!(worker.host.world().zfs.creates, 1);
        assert_eq!(worker.report().attempts, 2);
    }
}

#[test]
fn a_node_that_is_not_whole_stays_shut() {
    let worker = ready();
    worker.host.world().zfs.imported.remove("tank");
    assert_not_ready(&worker, "pool tank is not imported");

    let worker = ready();
    worker
        .host
        .world()
        .zfs
        .imported
        .get_mut("tank")
        .unwrap()
        .guid = TANK;
    assert_not_ready(&worker, "still has the guid of the old pool, 4242");

    let worker = ready();
    worker.host.world().zfs.mounted.remove("tank/containerd");
    assert_not_ready(
        &worker,
        "dataset tank/containerd is not mounted at /var/lib/containerd/snap",
    );

    // One that mounts nothing by itself need not be mounted.
    let worker = ready();
    assert!(!worker.host.world().zfs.mounted.contains("tank/volumes"));
    assert_eq!(close(&worker), Finished::Done);

    for call in [
        "run zpool set",
        "write /etc/zfs/zpool.cache",
        "write /var/lib/repave/cleanup.json",
        "remove /var/lib/repave/intent.json",
    ] {
        let worker = ready();
        worker.host.world().fails = vec![call.to_owned()];
        assert_not_ready(&worker, "");
    }
}

#[test]
fn a_cache_file_without_the_pool_keeps_the_gate_shut() {
    let worker = ready();
    worker.host.world().cache_is_deaf = true;
    worker.put(cache_file::PATH, b"store\t7777\n");
    assert_not_ready(&worker, "/etc/zfs/zpool.cache does not hold pool tank");
}

#[test]
fn every_deployment_with_this_hostid_gets_the_cache_file() {
    let worker = ready();
    worker.put("/etc/hostid", b"1234");
    let deploy = "/ostree/deploy/os/deploy";
    for (name, hostid, zfs) in [
        ("a", "1234", true),
        ("b", "9999", true),
        ("c", "1234", false),
    ] {
        worker.put(format!("{deploy}/{name}/etc/hostid"), hostid.as_bytes());
        if zfs {
            worker.put(format!("{deploy}/{name}/etc/zfs/zpool.cache"), b"old");
        }
    }
    assert_eq!(close(&worker), Finished::Done);
    let new = worker.file(cache_file::PATH).unwrap();
    let cache = |name: &str| worker.file(format!("{deploy}/{name}/etc/zfs/zpool.cache"));
    assert_eq!(cache("a"), Some(new));
    assert_eq!(cache("b"), Some(b"old".to_vec()));
    assert_eq!(cache("c"), None);
}

#[test]
fn lines_of_datasets_that_are_gone_are_dropped() {
    let worker = ready();
    let list = "/etc/zfs/zfs-list.cache/tank";
    worker.put(
        list,
        b"tank\t/tank\ntank/volumes/pvc-1\t/x\ntank/volumes\t-\n",
    );
    assert_eq!(close(&worker), Finished::Done);
    let kept = worker.file(list).unwrap();
    assert_eq!(
        String::from_utf8(kept).unwrap(),
        "tank\t/tank\ntank/volumes\t-\n"
    );
}
