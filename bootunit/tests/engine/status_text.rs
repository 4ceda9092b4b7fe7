//! `repave-boot status`: the exact lines of every state.

use repave_boot::finish::Finished;
use repave_boot::model_host::Cut;
use repave_boot::run::Ended;
use repave_boot::status::status;
use repave_plan::units::BootId;

use super::worker::*;

fn assert_status(worker: &Worker, lines: &str, code: u8) {
    let boot: BootId = worker.host.world().boot_id().parse().unwrap();
    let files = worker.host.world().files.clone();
    let found = status(&worker.host, &worker.state, Some(&boot)).unwrap();
    assert_eq!(found.lines(), lines);
    assert_eq!(found.exit_code(), code, "{lines}");
    assert_eq!(worker.host.world().files, files, "a status changes nothing");
}

#[test]
fn idle() {
    let worker = armed(512);
    worker.host.world().files.clear();
    assert_status(&worker, "state: idle\n", 0);
}

#[test]
fn armed_for_the_coming_boot() {
    let worker = armed(512);
    assert_status(
        &worker,
        "state: armed\nrun: 20260101t000000-a\n\
         to go on: reboot to run it, or `repave-agent disarm`\n",
        0,
    );
    worker.put(worker.state.intent(), b"torn");
    assert_status(
        &worker,
        "state: armed\n\
         reason: the intent is damaged: its first line is not that of an intent\n\
         to go on: reboot to run it, or `repave-agent disarm`\n",
        0,
    );
}

#[test]
fn stopped_by_a_step() {
    let worker = armed(512);
    worker.host.world().busy.insert(3, u32::MAX);
    assert!(matches!(worker.run(), Ended::Stopped(_)));
    assert_status(
        &worker,
        "state: stopped\nrun: 20260101t000000-a\nstep: kernel-table\nattempts: 1\n\
         reason: the table is written and the kernel still has the old one: \
         have the kernel let go of p3: it is in use\n\
         see: docs/recovery.md, kernel-stale\n\
         to go on: repave-boot resume\n",
        20,
    );
}

#[test]
fn stopped_by_power() {
    let worker = armed(512).begun();
    assert_status(
        &worker,
        "state: stopped\nrun: 20260101t000000-a\nattempts: 1\n\
         reason: the run was cut short, most likely by power\n\
         to go on: repave-boot resume\n",
        20,
    );
    worker.put_intent(b"torn");
    let boot: BootId = worker.host.world().boot_id().parse().unwrap();
    let lost = status(&worker.host, &worker.state, Some(&boot)).unwrap();
    assert_eq!(lost.entry.as_deref(), Some("intent-lost"));
    assert_eq!(lost.exit_code(), 20);
}

#[test]
fn stopped_for_good() {
    let worker = armed_with(512, |intent| intent.attempts = 1).begun();
    assert!(matches!(worker.run(), Ended::Stopped(_)));
    assert_status(
        &worker,
        "state: stopped\nrun: 20260101t000000-a\nattempts: 1\n\
         reason: the run was tried 1 times, which is the limit\n\
         see: docs/recovery.md, attempts-used-up\n\
         to go on: repave-boot resume --once-more\n",
        20,
    );
}

#[test]
fn refused() {
    let worker = armed(512);
    worker.host.world().image = None;
    worker.host.world().zfs.module = "2.2.7-1".to_owned();
    assert!(matches!(worker.run(), Ended::Refused(_)));
    assert_status(
        &worker,
        "state: refused\nrun: 20260101t000000-a\n\
         reason: the ZFS tools and module differ: the tools are 2.3.9-1, the module is 2.2.7-1\n\
         see: docs/recovery.md, host\n\
         to go on: boot an image whose ZFS tools and module belong together, then arm again\n",
        10,
    );
}

#[test]
fn done() {
    let worker = armed(512);
    assert_eq!(worker.boot_through().1, Some(Finished::Done));
    assert_status(
        &worker,
        "state: done\nrun: 20260101t000000-a\nattempts: 1\n",
        0,
    );
}

#[test]
fn not_run() {
    // The program could not be started; the late unit removed the intent.
    let worker = armed(512);
    worker.other_units();
    worker.host.boot(Cut::Kept);
    assert_status(
        &worker,
        "state: not-run\nrun: 20260101t000000-a\n\
         reason: the intent was gone after the boot it was made for, and no run was recorded\n\
         to go on: see `journalctl -u repave-boot -u repave-late`; arm again\n",
        11,
    );
    // In the boot that armed it, a missing intent was disarmed.
    let boot: BootId = worker.intent.armed_boot.clone();
    let disarmed = status(&worker.host, &worker.state, Some(&boot)).unwrap();
    assert_eq!((disarmed.state, disarmed.exit_code()), ("idle", 0));
}
