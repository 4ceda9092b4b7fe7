//! The order of arm and disarm, and what every failure on the way leaves.

use std::sync::{Arc, Mutex};

use repave_plan::units::{Digest, RunId};
use repave_systemd::arm::Then;
use repave_systemd::{ArmFault, BusSystemd, DisarmError, Systemd, arm, disarm, uninstall};

use crate::fake::{Behaviour, FakeBus, Log};
use crate::harness::{At, BINARY, FOREIGN, HostDir, Recorded, chain, is_armed, request, starters};

/// A host with its bus, and what happened on it.
struct Scene {
    host: HostDir,
    log: Log,
    systemd: BusSystemd,
    _bus: FakeBus,
}

impl Scene {
    fn new(behaviour: Behaviour) -> Self {
        let host = HostDir::new();
        let log: Log = Arc::new(Mutex::new(Vec::new()));
        let bus = FakeBus::start(host.root(), &log, behaviour);
        let systemd = BusSystemd::connect(&bus.address).unwrap();
        Self {
            host,
            log,
            systemd,
            _bus: bus,
        }
    }

    fn files(&self, at: At) -> Recorded {
        Recorded::new(self.host.root(), &self.log, at)
    }

    fn arm(
        &self,
        run: &str,
        then: Then,
    ) -> Result<repave_systemd::Armed, repave_systemd::ArmError> {
        let run: RunId = run.parse().unwrap();
        arm(
            &self.files(At::Never),
            &self.systemd,
            &request(&run, &starters(), then),
        )
    }

    fn disarm(&self) -> Result<repave_systemd::Disarmed, DisarmError> {
        disarm(&self.files(At::Never), &self.systemd)
    }

    fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    /// Nothing is armed and /etc is as it was before anything happened.
    fn assert_untouched(&self, why: &str) {
        assert!(!is_armed(&self.host), "{why}");
        let etc = self.host.etc();
        assert_eq!(etc.keys().collect::<Vec<_>>(), [&FOREIGN[1..]], "{why}");
    }
}

/// The log without what repeats, in groups that a person can follow.
fn outline(log: &[String]) -> Vec<String> {
    let digest = Digest::of(BINARY).to_string()[7..].to_owned();
    let mut lines: Vec<String> = Vec::new();
    for entry in log {
        let entry = entry.replace(&digest, "DIGEST");
        let entry = match entry.split_once(' ') {
            Some(("write" | "rename" | "sync" | "mkdir", path))
                if path.contains("/etc/systemd") =>
            {
                "unit files".to_owned()
            }
            Some(("remove" | "rmdir" | "sync", path)) if path.contains("/etc/systemd") => {
                "unit files gone".to_owned()
            }
            _ => entry,
        };
        if lines.last() != Some(&entry) {
            lines.push(entry);
        }
    }
    lines
}

const UNITS: &str =
    "repave-boot.service repave-late.service repave-finish.service repave-cleanup.service";

#[test]
fn arm_puts_the_intent_last_and_then_reboots() {
    let scene = Scene::new(Behaviour::default());
    let armed = scene.arm("r1", Then::Reboot).unwrap();
    assert!(is_armed(&scene.host));
    assert_eq!(armed.inhibitors.len(), 1);
    let state = "/var/lib/repave";
    let binary = "/var/lib/repave/bin/DIGEST/repave-boot";
    let enable = format!("EnableUnitFiles {UNITS}");
    let self_test = format!("StartTransientUnit repave-selftest-r1.service: {binary} self-test");
    let order = format!(
        "StartTransientUnit repave-order-r1.service: /usr/bin/systemd-analyze verify --man=no \
         --generators=yes default.target {UNITS} {state}/runs/r1/repave-control-a.service"
    );
    assert_eq!(
        outline(&scene.take_log()),
        [
            "mkdir /var/lib/repave",
            "lock /var/lib/repave/lock",
            // Run files.
            "mkdir /var/lib/repave/runs",
            "mkdir /var/lib/repave/runs/r1",
            "write /var/lib/repave/runs/r1/plan.json",
            "write /var/lib/repave/runs/r1/intent.json",
            "sync /var/lib/repave/runs/r1",
            "sync /var/lib/repave/runs",
            "sync /var/lib/repave",
            // The binary, labelled before it has its name.
            "mkdir /var/lib/repave/bin",
            "mkdir /var/lib/repave/bin/DIGEST",
            "write /var/lib/repave/bin/DIGEST/.repave-boot.new",
            "label /var/lib/repave/bin/DIGEST/.repave-boot.new",
            "rename /var/lib/repave/bin/DIGEST/repave-boot",
            "sync /var/lib/repave/bin/DIGEST",
            "sync /var/lib/repave/bin",
            // It runs here.
            "Subscribe",
            &self_test,
            "LoadUnit repave-selftest-r1.service",
            "Properties.Get Result",
            "StopUnit repave-selftest-r1.service replace",
            // Units, and before them the mark that this boot is not theirs.
            "mkdir /run/repave",
            "write /run/repave/armed",
            "unit files",
            &enable,
            "unit files",
            "Reload",
            // No cycle.
            "write /var/lib/repave/runs/r1/repave-control-a.service",
            "write /var/lib/repave/runs/r1/repave-control-b.service",
            "Subscribe",
            &order,
            "LoadUnit repave-order-r1.service",
            "Properties.Get Result",
            "ResetFailedUnit repave-order-r1.service",
            "ListInhibitors",
            // The intent, last.
            "write /var/lib/repave/.intent.json.new",
            "rename /var/lib/repave/intent.json",
            "sync /var/lib/repave",
            "Reboot",
        ]
    );
}

#[test]
fn disarm_takes_the_intent_first() {
    let scene = Scene::new(Behaviour::default());
    scene.arm("r1", Then::Wait).unwrap();
    scene.take_log();
    let disarmed = scene.disarm().unwrap();
    assert!(disarmed.was_armed);
    assert_eq!(disarmed.removed[0], "/var/lib/repave/intent.json");
    let disable = format!("DisableUnitFiles {UNITS}");
    assert_eq!(
        outline(&scene.take_log()),
        [
            "lock /var/lib/repave/lock",
            "remove /var/lib/repave/intent.json",
            "sync /var/lib/repave",
            &disable,
            "unit files gone",
            // Flushed.
            "unit files",
            "Reload",
        ]
    );
    scene.assert_untouched("disarmed");
    // Again, and on a host that never was armed: nothing to do, and no call.
    let again = scene.disarm().unwrap();
    assert!(!again.was_armed && again.removed.is_empty());
    assert!(
        !scene
            .take_log()
            .iter()
            .any(|l| l.contains("Unit") || l == "Reload")
    );
}

#[test]
fn each_call_failing_leaves_nothing_armed_and_is_named() {
    for call in [
        "Subscribe",
        "StartTransientUnit",
        "LoadUnit",
        "Properties.Get",
        "StopUnit",
        "EnableUnitFiles",
        "Reload",
        "ListInhibitors",
        "Reboot",
    ] {
        let scene = Scene::new(Behaviour {
            fail: Some(call),
            ..Behaviour::default()
        });
        let error = scene.arm("r1", Then::Reboot).unwrap_err();
        let text = chain(&error);
        assert!(text.contains(&format!("call {call}: ")), "{call}: {text}");
        assert!(text.contains("injected"), "{call}: {text}");
        // A reload that fails fails in taking back too, and is said; the files are gone.
        assert_eq!(
            error.left_behind.is_some(),
            call == "Reload",
            "{call}: {text}"
        );
        scene.assert_untouched(call);
    }
}

#[test]
fn each_file_effect_failing_leaves_nothing_armed_and_is_named() {
    let dry = Scene::new(Behaviour::default());
    let files = dry.files(At::Never);
    let run: RunId = "r1".parse().unwrap();
    let starters = starters();
    arm(
        &files,
        &dry.systemd,
        &request(&run, &starters, Then::Reboot),
    )
    .unwrap();
    let points = files.count();
    let mut hit = 0;
    let scene = Scene::new(Behaviour::default());
    for point in 1..=points {
        let run: RunId = format!("r{point}").parse().unwrap();
        let files = scene.files(At::Fail(point));
        let error = arm(
            &files,
            &scene.systemd,
            &request(&run, &starters, Then::Reboot),
        )
        .expect_err("armed in spite of a failure");
        let failed = scene
            .take_log()
            .into_iter()
            .filter(|l| l.starts_with("failed "));
        hit += failed.count();
        let text = chain(&error);
        assert!(
            text.contains("injected") && text.contains(" /"),
            "{point}: {text}"
        );
        assert!(error.left_behind.is_none(), "{point}: {text}");
        scene.assert_untouched(&format!("point {point}"));
    }
    println!("arm: {hit} file effects failed one by one");
    assert!(points > 60 && hit == points, "{hit} of {points}");
}

#[test]
fn a_disarm_that_fails_has_taken_the_intent_and_is_finished_by_the_next() {
    for call in ["DisableUnitFiles", "Reload"] {
        let scene = Scene::new(Behaviour::default());
        scene.arm("r1", Then::Wait).unwrap();
        let deaf = FakeBus::start(
            scene.host.root(),
            &scene.log,
            Behaviour {
                fail: Some(call),
                ..Behaviour::default()
            },
        );
        let systemd = BusSystemd::connect(&deaf.address).unwrap();
        let error = disarm(&scene.files(At::Never), &systemd).unwrap_err();
        assert!(chain(&error).contains(&format!("call {call}: ")));
        // Only the reload is owed: the files do not wait for an answer.
        scene.assert_untouched(call);
        scene.disarm().unwrap();
    }
    let scene = Scene::new(Behaviour::default());
    scene.arm("r0", Then::Wait).unwrap();
    let dry = scene.files(At::Never);
    disarm(&dry, &scene.systemd).unwrap();
    for point in 1..=dry.count() {
        scene.arm(&format!("r{point}"), Then::Wait).unwrap();
        let error = disarm(&scene.files(At::Fail(point)), &scene.systemd).unwrap_err();
        assert!(chain(&error).contains("injected"), "{point}");
        // Armed with all it needs (the lock, the intent itself), or not armed.
        assert_eq!(is_armed(&scene.host), point <= 2, "{point}");
        scene.disarm().unwrap();
        scene.assert_untouched(&format!("point {point}"));
    }
    println!("disarm: {} file effects failed one by one", dry.count());
}

#[test]
fn a_host_that_cannot_run_it_is_not_armed() {
    let cases = [
        (
            ("exit-code", 1, 203, ""),
            "203: the program could not be executed",
        ),
        (("exit-code", 1, 2, "no zfs\n"), "its output: no zfs"),
        (("signal", 2, 11, ""), "ended with signal"),
        (("timeout", 2, 15, ""), "ended with timeout"),
    ];
    for (self_test, expected) in cases {
        let scene = Scene::new(Behaviour {
            self_test,
            ..Behaviour::default()
        });
        let text = chain(&scene.arm("r1", Then::Wait).unwrap_err());
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("repave-selftest-r1.service"), "{text}");
        assert!(
            !scene
                .take_log()
                .iter()
                .any(|l| l.starts_with("EnableUnitFiles"))
        );
        scene.assert_untouched(expected);
    }
}

#[test]
fn a_host_with_an_ordering_cycle_or_a_blind_check_is_not_armed() {
    let cycle = "repave-control-b.service: Found ordering cycle on repave-control-a.service/start\n\
                 local-fs.target: Found ordering cycle on repave-boot.service/start\n";
    let cases = [
        (
            ("exit-code", 1, 1, cycle),
            "ordering cycle: local-fs.target",
        ),
        (
            ("success", 1, 0, ""),
            "does not report the cycle that was put before it",
        ),
        (
            ("exit-code", 1, 203, ""),
            "systemd-analyze verify ended with exit-code (203",
        ),
        (
            ("timeout", 2, 15, ""),
            "systemd-analyze verify ended with timeout",
        ),
    ];
    for (order, expected) in cases {
        let scene = Scene::new(Behaviour {
            order,
            ..Behaviour::default()
        });
        let text = chain(&scene.arm("r1", Then::Wait).unwrap_err());
        assert!(text.contains(expected), "{text}");
        scene.assert_untouched(expected);
    }
}

#[test]
fn the_links_are_believed_and_not_the_answer() {
    for behaviour in [
        Behaviour {
            unlinked: Some("repave-late.service"),
            ..Behaviour::default()
        },
        Behaviour {
            carries_install_info: false,
            ..Behaviour::default()
        },
    ] {
        let scene = Scene::new(behaviour);
        let text = chain(&scene.arm("r1", Then::Wait).unwrap_err());
        assert!(text.contains("call EnableUnitFiles: "), "{text}");
        scene.assert_untouched("links");
    }
}

#[test]
fn a_block_on_shutdown_is_found_before_the_intent() {
    for (mode, what, armed) in [
        ("block", "sleep:shutdown", false),
        ("block-weak", "shutdown", false),
        ("block", "sleep", true),
        ("delay", "shutdown", true),
    ] {
        let scene = Scene::new(Behaviour {
            inhibitors: vec![(what, "backup", "nightly", mode)],
            ..Behaviour::default()
        });
        let result = scene.arm("r1", Then::Reboot);
        assert_eq!(result.is_ok(), armed, "{mode} {what}");
        assert_eq!(is_armed(&scene.host), armed);
        if let Err(error) = result {
            assert!(chain(&error).contains("forbidden by backup: nightly"));
            assert!(
                !scene
                    .take_log()
                    .iter()
                    .any(|l| l.contains("intent.json.new"))
            );
        }
    }
}

#[test]
fn what_is_armed_changed_spent_or_masked_is_not_touched() {
    let scene = Scene::new(Behaviour::default());
    scene.arm("r1", Then::Wait).unwrap();
    let fault = |scene: &Scene, run: &str| *scene.arm(run, Then::Wait).unwrap_err().fault;
    assert!(matches!(fault(&scene, "r2"), ArmFault::AlreadyArmed));
    assert!(is_armed(&scene.host));
    scene.disarm().unwrap();
    assert!(matches!(fault(&scene, "r1"), ArmFault::SpentRun { .. }));
    std::fs::write(scene.host.at("/var/lib/repave/changed"), "").unwrap();
    scene.take_log();
    assert!(matches!(fault(&scene, "r3"), ArmFault::Changed));
    assert!(matches!(scene.disarm().unwrap_err(), DisarmError::Changed));
    let touched = |l: &String| !l.starts_with("lock ") && !l.starts_with("mkdir ");
    assert!(!scene.take_log().iter().any(touched));
    std::fs::remove_file(scene.host.at("/var/lib/repave/changed")).unwrap();
    let unit = scene.host.at("/etc/systemd/system/repave-boot.service");
    std::os::unix::fs::symlink("/dev/null", &unit).unwrap();
    assert!(matches!(fault(&scene, "r4"), ArmFault::Masked { .. }));
    assert!(unit.is_symlink());
}

#[test]
fn one_at_a_time() {
    use repave_systemd::{HostFiles, RootFiles};
    let scene = Scene::new(Behaviour::default());
    std::fs::create_dir(scene.host.at("/var/lib/repave")).unwrap();
    let other = RootFiles::open(scene.host.root()).unwrap();
    let held = other.try_lock("/var/lib/repave/lock").unwrap().unwrap();
    let error = scene.arm("r1", Then::Wait).unwrap_err();
    assert!(matches!(*error.fault, ArmFault::Busy));
    assert!(matches!(scene.disarm().unwrap_err(), DisarmError::Busy));
    drop(held);
    scene.arm("r1", Then::Wait).unwrap();
}

#[test]
fn a_wrong_binary_or_file_name_is_refused() {
    let scene = Scene::new(Behaviour::default());
    let run: RunId = "r1".parse().unwrap();
    let starters = starters();
    let files = scene.files(At::Never);
    for name in ["", "..", "a/b", ".intent.json.new"] {
        let mut bad = request(&run, &starters, Then::Wait);
        let named: [(&str, &[u8]); 1] = [(name, b"")];
        bad.run_files = &named;
        let error = arm(&files, &scene.systemd, &bad).unwrap_err();
        assert!(
            matches!(*error.fault, ArmFault::FileName { .. }),
            "{name:?}"
        );
    }
    let mut bad = request(&run, &starters, Then::Wait);
    bad.binary_digest = Digest::of(b"another");
    let error = arm(&files, &scene.systemd, &bad).unwrap_err();
    assert!(matches!(*error.fault, ArmFault::Binary(_)));
    scene.assert_untouched("wrong binary");
}

#[test]
fn trees_that_wait_for_removal_keep_their_unit() {
    let scene = Scene::new(Behaviour::default());
    scene.arm("r1", Then::Wait).unwrap();
    std::fs::write(scene.host.at("/var/lib/repave/cleanup.json"), "[]").unwrap();
    scene.disarm().unwrap();
    let unit = "etc/systemd/system/repave-cleanup.service";
    let link = "etc/systemd/system/multi-user.target.wants/repave-cleanup.service";
    let etc = scene.host.etc();
    assert_eq!(etc.keys().collect::<Vec<_>>(), [&FOREIGN[1..], link, unit]);
    std::fs::remove_file(scene.host.at("/var/lib/repave/cleanup.json")).unwrap();
    scene.disarm().unwrap();
    scene.assert_untouched("cleaned up");
}

#[test]
fn uninstalling_removes_the_binary_and_keeps_the_runs() {
    let scene = Scene::new(Behaviour::default());
    scene.arm("r1", Then::Wait).unwrap();
    uninstall(&scene.files(At::Never), &scene.systemd).unwrap();
    scene.assert_untouched("uninstalled");
    assert!(!scene.host.at("/var/lib/repave/bin").exists());
    assert!(
        scene
            .host
            .at("/var/lib/repave/runs/r1/intent.json")
            .exists()
    );
}

#[test]
fn a_started_unit_is_waited_for() {
    let scene = Scene::new(Behaviour::default());
    let limit = std::time::Duration::from_secs(10);
    scene.systemd.start_and_wait("good.service", limit).unwrap();
    let error = scene
        .systemd
        .start_and_wait("bad.service", limit)
        .unwrap_err();
    assert!(chain(&error).contains("the job of bad.service ended with \"failed\""));
}
