//! `cargo xtask demo`: the main job on a virtual worker, with everything shown.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use repave_plan::report::Verdict;
use repave_tests::suite::{BOOT, start_worker};
use repave_tests::vm::{Bed, Deadline, Machine, Order, Progress, set_up};

/// Sets up, builds, and does the main job in a VM.
pub fn run() -> Result<()> {
    let begun = Instant::now();
    let progress = Progress::start();
    set_up(&progress)?;
    progress.step("building the products", 3.0);
    crate::build::run()?;
    progress.step(
        "building the worker's disk, or finding it in the cache",
        2.0,
    );
    Bed::ensure(Order::TankFirst)?;

    progress.step(
        "starting a healthy worker: dead partition behind the pool",
        0.3,
    );
    let job = start_worker(Order::TankFirst, "demo", |_| {})?;
    show(
        &job.machine,
        "the disk before",
        "sgdisk -p /dev/vda; zpool list -v; zfs list",
    )?;
    show(&job.machine, "survey", "repave-agent survey")?;
    show(
        &job.machine,
        "plan (a dry run; nothing is written)",
        "repave-agent plan",
    )?;

    progress.step(
        "approving, arming and rebooting: the job is done at early boot",
        1.5,
    );
    let digest = job.digest()?;
    println!("$ repave-agent arm --approve {digest} --reboot");
    job.arm_and_reboot()?;
    let console = job.machine.serial_text()?;
    println!("\n--- the console during the boot run");
    for line in console.lines().filter(|line| line.contains("repave: ")) {
        println!("{}", line.trim_end());
    }
    let report = job.report()?;
    ensure!(
        report.outcome == Verdict::Done,
        "the run ended as {:?}",
        report.outcome
    );
    println!("\n--- the report");
    for step in &report.steps {
        println!(
            "{:<17} {:>6} ms  {:?}",
            step.step.to_string(),
            step.millis,
            step.outcome
        );
    }
    show(
        &job.machine,
        "the journal",
        "cat /var/lib/repave/runs/*/journal.jsonl",
    )?;
    show(
        &job.machine,
        "the disk after",
        "sgdisk -p /dev/vda; zpool list -v; zfs list",
    )?;
    show(
        &job.machine,
        "a container from an image that was kept, with no pull",
        "k images ls -q; k run --rm --snapshotter zfs docker.io/library/lab:1 demo",
    )?;

    progress.step(
        "a second, plain reboot: nothing runs, all of it is still there",
        1.0,
    );
    job.machine.reboot(Deadline::secs(BOOT))?;
    job.machine
        .wait_active("k3s-agent.service", Deadline::secs(120))?;
    show(
        &job.machine,
        "after the second boot",
        "systemctl show -p ConditionResult,ExecMainPID repave-boot.service; zpool list; \
         k run --rm --snapshotter zfs docker.io/library/lab:1 again",
    )?;
    job.assert_unit("repave-boot.service", "ConditionResult", "no")?;
    job.throw_away()?;
    println!(
        "\nthe demo is done; it took {} min",
        begun.elapsed().as_secs().div_ceil(60)
    );
    Ok(())
}

fn show(machine: &Machine, title: &str, script: &str) -> Result<()> {
    println!("\n--- {title}");
    for line in script.split("; ") {
        println!("$ {}", line.trim());
    }
    let text = machine.exec_ok(script).with_context(|| title.to_owned())?;
    println!("{}", text.trim_end());
    Ok(())
}
