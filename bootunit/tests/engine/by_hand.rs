//! `repave-boot resume`: a person goes on.

use repave_boot::Attempts;
use repave_boot::by_hand::{Resumed, resume};
use repave_boot::run::Ended;
use repave_plan::report::Verdict;
use repave_plan::stop::Stop;

use super::worker::*;

fn resumed(worker: &Worker, attempts: Attempts) -> Resumed {
    resume(&worker.host, &worker.state, attempts).unwrap()
}

#[test]
fn a_resume_never_begins_a_first_run() {
    let worker = armed(512);
    for attempts in [Attempts::Limited, Attempts::OnceMore] {
        assert_eq!(resumed(&worker, attempts), Resumed::NothingBegun);
    }
    assert_eq!(worker.calls(), ["read /var/lib/repave/changed"; 2]);
    assert!(worker.has(worker.state.intent()));
    assert!(worker.host.world().started.is_empty());
}

/// A worker whose boot stopped, with the other units of that boot behind it.
fn stopped() -> Worker {
    let worker = armed(512);
    worker.host.world().fails = vec!["disk write 512 ".to_owned()];
    assert!(matches!(worker.run(), Ended::Stopped(_)));
    worker.other_units();
    worker
}

#[test]
fn after_a_resume_the_enabled_starters_are_started() {
    let worker = stopped();
    worker.host.world().fails.clear();
    let done = Resumed::Done {
        started: vec!["k3s-agent.service".to_owned()],
        failed: vec![],
    };
    assert_eq!(resumed(&worker, Attempts::Limited), done);
    assert_eq!(worker.host.world().started, ["k3s-agent.service"]);
    let removed = worker.call("remove /var/lib/repave/changed");
    assert!(removed < worker.call("run systemctl start"));
    assert_eq!(worker.verdict(), Verdict::Done);
    assert!(!worker.is_changed());
    assert!(worker.host.world().zfs.mounted.contains("tank/containerd"));
    assert_eq!(worker.host.world().zfs.imported["store"].guid, STORE);
}

#[test]
fn a_resume_that_stops_again_starts_nothing() {
    let worker = stopped();
    let again = resumed(&worker, Attempts::Limited);
    assert!(
        matches!(again, Resumed::Stopped(Stop::StepFailed { .. })),
        "{again:?}"
    );
    assert!(worker.host.world().started.is_empty());
    assert!(worker.is_changed());

    // Whole but for a mount.
    let worker = stopped();
    worker.host.world().fails = vec!["run zfs mount".to_owned()];
    let again = resumed(&worker, Attempts::Limited);
    assert!(
        matches!(again, Resumed::Stopped(Stop::NotReady { .. })),
        "{again:?}"
    );
    assert!(worker.host.world().started.is_empty());
}

#[test]
fn a_resume_is_bounded_too_and_once_more_is_not() {
    let worker = stopped();
    for _ in 2..=5 {
        let again = resumed(&worker, Attempts::Limited);
        assert!(matches!(again, Resumed::Stopped(Stop::StepFailed { .. })));
    }
    worker.host.world().fails.clear();
    let end = Resumed::Stopped(Stop::AttemptsUsedUp { attempts: 5 });
    assert_eq!(resumed(&worker, Attempts::Limited), end);
    let more = resumed(&worker, Attempts::OnceMore);
    assert!(matches!(more, Resumed::Done { .. }), "{more:?}");
}

#[test]
fn starters_that_fail_are_named() {
    let worker = stopped();
    worker.host.world().fails = vec!["run systemctl start".to_owned()];
    let Resumed::Done { started, failed } = resumed(&worker, Attempts::Limited) else {
        panic!("the run is not closed");
    };
    assert_eq!(started, [""; 0]);
    assert!(failed[0].starts_with("k3s-agent.service: "), "{failed:?}");
}
