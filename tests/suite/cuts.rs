//! Power cuts in a real boot: one in every step, each in the resume of the one before,
//! with a clock that is years off, so that the intent has long expired.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use repave_plan::report::Verdict;

use crate::vm::{Deadline, Order};

use super::job::{BOOT, Job, POLICY};
use super::second_pool::{assert_other, start_with_other};

/// Where the power goes: when the console shows the text, and how much later.
const CUTS: [(&str, u64); 6] = [
    ("repave: label-clear: begins", 0),
    ("repave: table-write: begins", 30),
    ("repave: kernel-table: begins", 0),
    ("repave: pool-create: begins", 700),
    ("repave: containerd-clear: begins", 0),
    ("repave: containerd-clear: done", 0),
];

pub(super) fn in_every_step() -> Result<()> {
    let mut job = start_with_other(Order::TankFirst, "cuts")?;
    job.write_policy(&format!("{POLICY}\n[limits]\nattempts = 20\n"))?;
    let entries = "for n in 1 2 3; do sgdisk -i $n /dev/vda; done";
    let before = job.machine.exec_ok(entries)?;
    job.arm()?;
    job.machine.power_off(Deadline::secs(BOOT))?;
    for (index, (text, later)) in CUTS.into_iter().enumerate() {
        let machine = job.machine.start_again(|options| {
            // The first boot is in time; every later one is years off.
            if index > 0 {
                options.rtc = Some(format!("20{}1-01-01T00:00:00", 2 + index % 2));
            }
            // What a power cut in the middle of the kernel's write leaves.
            options.inject_script =
                (index == 3).then(|| ": > /newroot/etc/zfs/zpool.cache".to_owned());
        })?;
        job = Job { machine };
        job.machine.wait_serial(text, Deadline::secs(BOOT))?;
        pause(later);
        job.machine.power_cut()?;
        let console = job.machine.serial_text()?;
        ensure!(
            !console.contains("finish: the node is whole"),
            "the cut came too late"
        );
    }
    let machine = job
        .machine
        .start_again(|options| options.inject_script = None)?;
    let job = Job { machine };
    job.machine.wait_boot(Deadline::secs(BOOT))?;
    let report = job.report().with_context(|| job.console_tail())?;
    ensure!(
        report.outcome == Verdict::Done,
        "the verdict is {:?}",
        report.outcome
    );
    let attempts = CUTS.len() as u32 + 1;
    ensure!(
        report.attempts == attempts,
        "{} attempts, not {attempts}",
        report.attempts
    );
    ensure!(
        job.machine.exec_ok(entries)? == before,
        "entries 1 to 3 changed"
    );
    job.assert_prints("sgdisk --verify /dev/vda", "No problems found")?;
    assert_other(&job)?;
    job.machine
        .wait_active("k3s-agent.service", Deadline::secs(120))?;
    job.assert_containers_start("after-cuts")?;
    job.throw_away()
}

/// Lets the guest run on for a moment: the cut is meant to fall inside the step.
#[expect(
    clippy::disallowed_methods,
    reason = "the length of the pause is what is tested"
)]
fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}
