//! SIGKILL at every file effect and every call of arm and disarm.
//!
//! The killed process is this test binary again, with the point in its environment.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::{Arc, Mutex};

use repave_plan::units::RunId;
use repave_systemd::arm::Then;
use repave_systemd::host_systemd::OrderCheck;
use repave_systemd::{BusSystemd, CallError, ExitState, Inhibitor, Oneshot, Systemd, arm, disarm};

use crate::fake::{Behaviour, FakeBus, Log};
use crate::harness::{At, FOREIGN, HostDir, Recorded, is_armed, kill_self, request, starters};

/// The bus, with every call a point of the same count as the file effects.
struct Counted<'a> {
    inner: &'a BusSystemd,
    files: &'a Recorded,
}

impl Counted<'_> {
    fn point(&self, call: &'static str) {
        if self.files.point(call, "").unwrap() {
            kill_self();
        }
    }

    /// Killed before the call, or after it with its answer unread.
    fn around<T>(&self, call: &'static str, run: impl FnOnce(&BusSystemd) -> T) -> T {
        self.point(call);
        let answer = run(self.inner);
        self.point(call);
        answer
    }
}

impl Systemd for Counted<'_> {
    fn is_running(&self) -> bool {
        true
    }
    fn enable(&self, units: &[&str]) -> Result<bool, CallError> {
        self.around("enable", |s| s.enable(units))
    }
    fn disable(&self, units: &[&str]) -> Result<(), CallError> {
        self.around("disable", |s| s.disable(units))
    }
    fn reload(&self) -> Result<(), CallError> {
        self.around("reload", |s| s.reload())
    }
    fn run_oneshot(&self, oneshot: &Oneshot<'_>) -> Result<ExitState, CallError> {
        self.around("run", |s| s.run_oneshot(oneshot))
    }
    fn verify_order(&self, check: &OrderCheck<'_>) -> Result<ExitState, CallError> {
        self.around("verify", |s| s.verify_order(check))
    }
    fn start_and_wait(&self, unit: &str, limit: std::time::Duration) -> Result<(), CallError> {
        self.around("start", |s| s.start_and_wait(unit, limit))
    }
    fn active_state(&self, unit: &str) -> Result<String, CallError> {
        self.around("state", |s| s.active_state(unit))
    }
    fn inhibitors(&self) -> Result<Vec<Inhibitor>, CallError> {
        self.around("inhibitors", |s| s.inhibitors())
    }
    fn reboot(&self) -> Result<(), CallError> {
        self.around("reboot", |s| s.reboot())
    }
}

/// Arms or disarms on the host at `root` with the bus at `address`; the points passed.
fn act(root: &std::path::Path, address: &str, verb: &str, run: &str, at: At) -> usize {
    let log: Log = Arc::new(Mutex::new(Vec::new()));
    let files = Recorded::new(root, &log, at);
    let bus = BusSystemd::connect(address).unwrap();
    let systemd = Counted {
        inner: &bus,
        files: &files,
    };
    match verb {
        "arm" => {
            let run: RunId = run.parse().unwrap();
            arm(&files, &systemd, &request(&run, &starters(), Then::Reboot)).unwrap();
        }
        _ => {
            disarm(&files, &systemd).unwrap();
        }
    }
    files.count()
}

/// The process that is killed. Only with its environment: alone it has nothing to do.
#[test]
#[ignore = "started by every_kill_leaves_armed_or_not_armed, once for each point"]
fn killed_child() {
    let get = |name| std::env::var(name).unwrap();
    let point = get("REPAVE_KILL_POINT").parse().unwrap();
    let root = get("REPAVE_KILL_ROOT");
    act(
        root.as_ref(),
        &get("REPAVE_KILL_BUS"),
        &get("REPAVE_KILL_VERB"),
        "r1",
        At::Kill(point),
    );
}

fn run_killed(host: &HostDir, bus: &FakeBus, verb: &str, point: usize) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::killed_child", "--ignored", "--quiet"])
        .env("REPAVE_KILL_POINT", point.to_string())
        .env("REPAVE_KILL_ROOT", host.root())
        .env("REPAVE_KILL_BUS", &bus.address)
        .env("REPAVE_KILL_VERB", verb)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(9), "{verb}, point {point}: not hit");
}

fn clean(host: &HostDir) -> bool {
    !is_armed(host) && host.etc().keys().eq([&FOREIGN[1..]])
}

#[test]
fn every_kill_leaves_armed_or_not_armed() {
    let start = || {
        let host = HostDir::new();
        let log: Log = Arc::new(Mutex::new(Vec::new()));
        let bus = FakeBus::start(host.root(), &log, Behaviour::default());
        (host, bus)
    };
    let (host, bus) = start();
    let arm_points = act(host.root(), &bus.address, "arm", "r1", At::Never);
    let disarm_points = act(host.root(), &bus.address, "disarm", "r1", At::Never);
    assert!(
        arm_points > 75 && disarm_points > 30,
        "{arm_points} and {disarm_points}"
    );

    let (mut armed, mut not_armed) = (0, 0);
    for point in 1..=arm_points {
        let (host, bus) = start();
        run_killed(&host, &bus, "arm", point);
        if is_armed(&host) {
            armed += 1;
        } else {
            not_armed += 1;
            // What is half there is all taken back (every second point), and is no
            // obstacle to the next run (every point).
            if point % 2 == 0 {
                act(host.root(), &bus.address, "disarm", "", At::Never);
                assert!(clean(&host), "disarm after a kill of arm at {point}");
            }
            act(host.root(), &bus.address, "arm", "r2", At::Never);
            assert!(is_armed(&host), "arm after a kill at {point}");
        }
        act(host.root(), &bus.address, "disarm", "", At::Never);
        assert!(clean(&host), "disarm at {point}: {:?}", host.etc().keys());
    }
    // The rename of the intent is the commit: its sync, and Reboot before and after, follow.
    assert_eq!((armed, not_armed), (3, arm_points - 3));

    for point in 1..=disarm_points {
        let (host, bus) = start();
        act(host.root(), &bus.address, "arm", "r1", At::Never);
        run_killed(&host, &bus, "disarm", point);
        is_armed(&host);
        act(host.root(), &bus.address, "disarm", "", At::Never);
        assert!(clean(&host), "disarm after a kill of disarm at {point}");
    }
    println!("killed at {arm_points} points of arm and {disarm_points} of disarm");
}
