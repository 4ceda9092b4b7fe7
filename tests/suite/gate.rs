//! The gate: a run that stopped after its first destructive write keeps k3s out and
//! leaves a node that a person can reach and bring back with one command.

use anyhow::{Context, Result, ensure};
use repave_plan::report::{EXIT_STOPPED, Verdict};
use repave_plan::stop::Stop;

use crate::vm::{Deadline, Order, Run};

use super::job::{Job, start_worker};

/// `zpool` fails to create a pool until the folder is healed: the fault of a device or
/// of a tool, in the middle of the run.
const BROKEN_ZPOOL: &str = "#!/bin/sh\n\
    [ \"$1\" = create ] && [ ! -e /run/healed ] && { echo 'injected failure' >&2; exit 1; }\n\
    exec /usr/sbin/zpool.real \"$@\"\n";

pub(super) fn break_zpool(job: &Job) -> Result<()> {
    job.machine
        .exec_ok("mv /usr/sbin/zpool /usr/sbin/zpool.real")?;
    job.machine
        .push("/usr/sbin/zpool", 0o755, BROKEN_ZPOOL.as_bytes())
}

pub(super) fn stopped_and_resumed() -> Result<()> {
    let job = start_worker(Order::TankFirst, "gate", |_| {})?;
    break_zpool(&job)?;
    job.arm_and_reboot()?;
    assert_stopped(&job).with_context(|| job.console_tail())?;
    assert_reachable(&job)?;
    // Another boot changes nothing about it: the run resumes by itself and stops again.
    job.machine.exec_ok("touch /run/healed")?;
    let resumed = job.machine.exec_for(300, "repave-boot resume")?;
    ensure!(
        resumed.rc == 0,
        "resume ended with {}: {}",
        resumed.rc,
        resumed.stdout
    );
    job.assert_unit("k3s-agent.service", "ActiveState", "active")?;
    let report = job.report()?;
    ensure!(
        report.outcome == Verdict::Done,
        "the verdict is {:?}",
        report.outcome
    );
    ensure!(report.attempts == 2, "{} attempts", report.attempts);
    job.assert_is("ls /etc/issue.d/50-repave.issue 2>/dev/null | wc -l", "0")?;
    job.assert_is("repave-boot status | head -1", "state: done")?;
    job.assert_containers_start("resumed")?;
    job.throw_away()
}

/// Console, status, journal and report name the reason and the one command.
fn assert_stopped(job: &Job) -> Result<()> {
    job.assert_unit(
        "repave-boot.service",
        "ExecMainStatus",
        &EXIT_STOPPED.to_string(),
    )?;
    let report = job.report()?;
    let Verdict::Stopped(Stop::StepFailed { step, why }) = &report.outcome else {
        anyhow::bail!("the verdict is {:?}", report.outcome);
    };
    ensure!(step.as_str() == "pool-create", "it stopped in {step}");
    ensure!(why.contains("injected failure"), "the reason is {why:?}");
    ensure!(
        report.way_out.as_deref() == Some("repave-boot resume"),
        "{:?}",
        report.way_out
    );
    let console = job.machine.serial_text()?;
    for words in [
        "STOPPED (step-failed)",
        "injected failure",
        "to go on: repave-boot resume",
    ] {
        ensure!(
            console.contains(words),
            "the console does not say {words:?}"
        );
    }
    let status = job.machine.exec("repave-boot status")?;
    ensure!(
        status.rc == i32::from(EXIT_STOPPED),
        "status ended with {}",
        status.rc
    );
    for words in [
        "step: pool-create",
        "injected failure",
        "to go on: repave-boot resume",
    ] {
        ensure!(
            status.stdout.contains(words),
            "status does not say {words:?}: {}",
            status.stdout
        );
    }
    let journal = job
        .machine
        .exec_ok("journalctl -b -t repave-boot -o json --no-pager")?;
    ensure!(
        journal.contains("\"F_STOP\":\"step-failed\""),
        "the journal has no F_STOP field"
    );
    job.assert_prints("cat /etc/issue.d/50-repave.issue", "repave-boot resume")
}

fn assert_reachable(job: &Job) -> Result<()> {
    for (unit, state) in [
        ("ssh.service", "active"),
        ("network-online.target", "active"),
        ("multi-user.target", "active"),
        ("emergency.target", "inactive"),
        ("rescue.target", "inactive"),
        ("k3s-agent.service", "inactive"),
    ] {
        job.assert_unit(unit, "ActiveState", state)?;
    }
    job.assert_unit("k3s-agent.service", "AssertResult", "no")?;
    job.assert_unit("k3s-agent.service", "ExecMainPID", "0")?;
    // It is not tried again by Restart=; the gate holds.
    job.assert_unit("k3s-agent.service", "NRestarts", "0")?;
    let over_ssh = job.machine.ssh(&["repave-boot", "status"]);
    let (program, words) = over_ssh.split_first().context("an empty ssh command")?;
    let script = format!("{program} {}; [ $? = {EXIT_STOPPED} ]", words.join(" "));
    let text = Run::new("sh").args(["-c", &script]).text()?;
    ensure!(
        text.contains("state: stopped"),
        "over ssh the status is {text:?}"
    );
    job.machine.wait_active("ssh.service", Deadline::secs(10))
}
