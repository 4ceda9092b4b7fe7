//! What happens before what, on the call list of one uncut run (design: the boot run).

use repave_boot::model_host::Cut;
use repave_boot::run::Ended;
use repave_plan::journal::Record;
use repave_plan::refusal::Refusal;
use repave_plan::step::{Outcome, StepName};

use super::worker::*;

/// Calls that change the disk.
fn disk_writes(calls: &[String]) -> Vec<usize> {
    calls
        .iter()
        .enumerate()
        .filter(|(_, call)| call.contains(" write ") && !call.starts_with("say"))
        .map(|(at, _)| at)
        .collect()
}

#[test]
fn changed_is_durable_before_the_first_write() {
    let worker = armed(512);
    assert_eq!(worker.run(), Ended::StepsDone);
    let calls = worker.calls();
    let first = disk_writes(&calls)[0];
    let changed = worker.call("write /var/lib/repave/changed");
    assert!(changed < first, "{changed} {first}");
    // The bodies of the old pool's first two labels, all but what makes them seen.
    assert_eq!(calls[first], "disk write 41959936 245248");

    // A marker that cannot be written is a refusal, and nothing was written.
    let worker = armed(512);
    let before = worker.host.world().disk.clone();
    worker.host.world().fails = vec!["write /var/lib/repave/changed".to_owned()];
    let Ended::Refused(Refusal::Host { what, .. }) = worker.run() else {
        panic!("a run without a marker went on");
    };
    assert_eq!(what, "the point of no return cannot be recorded");
    assert_eq!(disk_writes(&worker.calls()), Vec::<usize>::new());
    assert!(worker.host.world().disk == before);
}

#[test]
fn the_steps_stand_in_their_order() {
    let worker = armed(512);
    assert_eq!(worker.run(), Ended::StepsDone);
    let marks = [
        "write /var/lib/repave/changed",
        "say label-clear: begins",
        // The first label of the old pool.
        "disk write 41959424 ",
        "say table-write: begins",
        // The one sector that commits the table.
        "disk write 512 512",
        "say kernel-table: begins",
        "kernel del p3",
        "kernel del p4",
        "kernel add p3",
        "close",
        "wait /dev/disk/by-partuuid/",
        "say pool-create: begins",
        "run zpool create",
        "run zfs create",
        "say containerd-clear: begins",
        "containerd-clear /var/lib/containerd",
    ];
    let at: Vec<usize> = marks.iter().map(|mark| worker.call(mark)).collect();
    assert!(at.is_sorted(), "{marks:?} {at:?}");
    let steps: Vec<StepName> = worker
        .records()
        .iter()
        .filter_map(|record| match record {
            Record::Done { step, outcome, .. } => {
                assert_eq!(*outcome, Outcome::Changed);
                Some(*step)
            }
            _ => None,
        })
        .collect();
    assert_eq!(steps, worker.intent.plan.step_names());
    assert_eq!(steps.len(), 5);
}

#[test]
fn the_lock_is_released_before_the_link_is_waited_for() {
    let worker = armed(512);
    assert_eq!(worker.run(), Ended::StepsDone);
    let calls = worker.calls();
    let wait = worker.call("wait ");
    let last_open = calls[..wait].iter().rposition(|c| c.starts_with("open "));
    let last_close = calls[..wait].iter().rposition(|c| c == "close");
    assert!(last_close > last_open, "the disk is open at the wait");
}

#[test]
fn the_tables_are_saved_before_changed() {
    let worker = armed(512);
    assert_eq!(worker.run(), Ended::StepsDone);
    let changed = worker.call("write /var/lib/repave/changed");
    for name in ["table-before.sgdisk", "table-after.sgdisk", "zpool.cache"] {
        let call = format!("write {}", worker.run_file(name).display());
        assert!(worker.call(&call) < changed, "{name}");
    }
}

#[test]
fn each_step_is_begun_proved_and_done_in_the_journal() {
    let worker = armed(512);
    assert_eq!(worker.run(), Ended::StepsDone);
    let mut seen = Vec::new();
    for record in worker.records() {
        seen.push(match record {
            Record::Attempt { .. } => "attempt".to_owned(),
            Record::Begin { step, .. } => format!("begin {step}"),
            Record::Proof { step, .. } => format!("proof {step}"),
            Record::Done { step, .. } => format!("done {step}"),
            Record::Stopped { name, .. } => format!("stopped {name}"),
        });
    }
    let mut wanted = vec!["attempt".to_owned()];
    for step in worker.intent.plan.step_names() {
        for what in ["begin", "proof", "done"] {
            wanted.push(format!("{what} {step}"));
        }
    }
    assert_eq!(seen, wanted);
}

#[test]
fn an_approval_is_spent_by_its_first_look() {
    // A refusal leaves an attempt behind.
    let worker = armed(512);
    worker.host.world().clock += 7200;
    let Ended::Refused(Refusal::Stale { .. }) = worker.run() else {
        panic!("a stale intent ran");
    };
    assert!(matches!(worker.records()[..], [Record::Attempt { .. }]));

    // The power goes while the intent is judged: it is never judged again. The clock is
    // asked once for the record and once for the judgement.
    let dry = armed(512);
    assert_eq!(dry.run(), Ended::StepsDone);
    let calls = dry.calls();
    let judged = calls.iter().rposition(|c| c.starts_with("facts")).unwrap();
    let first_now = calls.iter().position(|c| c == "now").unwrap();
    let second = first_now
        + 1
        + calls[first_now + 1..]
            .iter()
            .position(|c| c == "now")
            .unwrap();
    assert!(second < judged);
    for at in [second, judged] {
        let worker = armed(512);
        worker.host.world().cut = Some((at, Cut::Lost));
        drop(worker.run());
        assert!(worker.has(worker.state.intent()));
        worker.reboot();
        let before = worker.host.world().disk.clone();
        let Ended::Refused(Refusal::AlreadyRun { run_id }) = worker.run() else {
            panic!("an intent was judged twice, cut at {}", calls[at]);
        };
        assert_eq!(run_id, RUN);
        assert!(worker.host.world().disk == before);
        assert!(!worker.has(worker.state.intent()));
    }
}

#[test]
fn the_cache_file_is_not_touched() {
    let worker = armed(512);
    assert_eq!(worker.run(), Ended::StepsDone);
    let calls = worker.calls();
    let creates: Vec<&String> = calls
        .iter()
        .filter(|call| call.starts_with("run zpool create"))
        .collect();
    let device = format!("/dev/disk/by-partuuid/{}", worker.intent.plan.new.guid);
    assert_eq!(
        creates,
        [&format!(
            "run zpool create -R / -m none -d -o ashift=12 -o feature@async_destroy=enabled \
             -o feature@lz4_compress=enabled -o autotrim=on -O casesensitivity=sensitive \
             -O normalization=none -O utf8only=off -O compression=lz4 tank {device}"
        )]
    );
    assert!(!calls.iter().any(|call| call == "kernel-cache"));
    assert_eq!(
        worker.file(repave_boot::cache_file::PATH).unwrap(),
        CACHE.as_bytes()
    );

    // The same when the pool was made and only has to be imported.
    let guid = worker.pools_on_disk()[0];
    worker.reboot();
    assert_eq!(worker.run(), Ended::StepsDone);
    let imports: Vec<String> = worker
        .calls()
        .into_iter()
        .filter(|call| call.starts_with("run zpool import"))
        .collect();
    assert_eq!(
        imports,
        [format!("run zpool import -N -R / -d {device} {guid}")]
    );
    assert!(!worker.calls().iter().any(|call| call == "kernel-cache"));
    assert_eq!(
        worker.file(repave_boot::cache_file::PATH).unwrap(),
        CACHE.as_bytes()
    );
    assert!(
        worker.host.world().zfs.mounted.is_empty(),
        "mounted out of order"
    );
}
