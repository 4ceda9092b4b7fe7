//! The trap this project began with, as the control of the containerd step: the same run
//! without it ends in a node that starts no container.

use anyhow::{Result, ensure};
use repave_plan::report::Verdict;

use crate::vm::Order;

use super::job::{POLICY, start_worker};

pub(super) fn without_clear() -> Result<()> {
    let job = start_worker(Order::TankFirst, "trap", |_| {})?;
    job.write_policy(&format!("{POLICY}\n[containerd]\nclear = \"none\"\n"))?;
    job.arm_and_reboot()?;
    let report = job.report()?;
    ensure!(
        report.outcome == Verdict::Done,
        "the verdict is {:?}",
        report.outcome
    );
    ensure!(
        report.steps.len() == 4,
        "{} steps were done",
        report.steps.len()
    );
    // containerd's own words, measured with 1.7.24: the parent of the image's top
    // snapshot is in its database and not in the snapshotter's.
    let run = job
        .machine
        .exec("k run --rm --snapshotter zfs docker.io/library/lab:1 trap")?;
    let said = format!("{}{}", run.stdout, run.stderr);
    ensure!(
        run.rc != 0 && said.contains("failed to prepare extraction snapshot"),
        "a container was expected to fail; it ended with {} and {said:?}",
        run.rc
    );
    let pod = job
        .machine
        .exec("cri run trap-pod docker.io/library/lab:1")?;
    let said = format!("{}{}", pod.stdout, pod.stderr);
    ensure!(
        pod.rc != 0 && said.contains("missing parent"),
        "a pod was expected to fail; it ended with {} and {said:?}",
        pod.rc
    );
    job.throw_away()
}
