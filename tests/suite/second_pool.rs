//! A second pool on another disk, and a pool that was imported before the run.
//!
//! OpenZFS rewrites /etc/zfs/zpool.cache with only what is imported at that moment, and
//! at early boot that is nothing: one careless create or export and every other pool
//! stays away from then on.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use repave_plan::report::{EXIT_REFUSED, Verdict};

use crate::vm::{Deadline, Layout, Order, make_disk, target_folder};

use super::job::{BOOT, Job, start_worker};
use super::main_job::{Before, assert_done};

/// A worker with a second disk that carries pool `other`, imported and in the cache.
pub(super) fn start_with_other(order: Order, label: &str) -> Result<Job> {
    let disk = second_disk(label)?;
    let job = start_worker(order, label, |options| options.second_disk = Some(disk))?;
    job.machine.exec_ok(
        "udevadm settle; zpool create -f -m /other other /dev/disk/by-id/virtio-LABDISK1-part5 \
         && echo kept > /other/file && sync && strings /etc/zfs/zpool.cache | grep -x other",
    )?;
    Ok(job)
}

fn second_disk(label: &str) -> Result<PathBuf> {
    let path = target_folder().join(format!("second-{label}-{}.raw", std::process::id()));
    make_disk(&path, &Layout::worker(Order::TankFirst).retagged('a'))?;
    Ok(path)
}

/// The second pool is imported by the import unit, as on any boot.
pub(super) fn assert_other(job: &Job) -> Result<()> {
    job.assert_is("zpool list -Hp -o name,health other", "other\tONLINE")?;
    job.assert_is("cat /other/file", "kept")?;
    job.assert_prints("strings /etc/zfs/zpool.cache", "other")?;
    job.assert_prints("strings /etc/zfs/zpool.cache", "tank")
}

pub(super) fn dead_first_with_second_pool() -> Result<()> {
    let job = start_with_other(Order::DeadFirst, "main-job-dead-first")?;
    let before = Before::read(&job)?;
    job.arm_and_reboot()?;
    assert_done(&job, Order::DeadFirst, &before).with_context(|| job.console_tail())?;
    assert_other(&job)?;
    job.assert_containers_start("after-run")?;
    job.throw_away()
}

/// Imports the pool where an initrd with ZFS would have done so. That writes the initrd's
/// own cache file; here the root's is put back.
const EARLY_IMPORT: &str = "\
cat > /etc/systemd/system/lab-early.service <<'S'
[Unit]
DefaultDependencies=no
After=systemd-remount-fs.service systemd-udev-settle.service
Wants=systemd-udev-settle.service
Before=repave-boot.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'modprobe zfs; cp /etc/zfs/zpool.cache /run/cache'
ExecStart=/bin/sh -c 'zpool import -N -c /run/cache tank; cp /run/cache /etc/zfs/zpool.cache'
ExecStart=/bin/sh -c 'if [ -e /root/mount-early ]; then zfs mount tank/containerd; fi'
[Install]
WantedBy=sysinit.target
S
systemctl daemon-reload && systemctl enable lab-early";

/// Three boots of one worker: mounted, so refused; exported and then refused, because
/// the point of no return cannot be recorded; exported and done.
pub(super) fn imported_before() -> Result<()> {
    let job = start_with_other(Order::TankFirst, "initrd-pool")?;
    let guid = job.machine.exec_ok("zpool get -Hp -o value guid tank")?;
    job.machine.exec_ok(EARLY_IMPORT)?;

    job.machine.exec_ok("touch /root/mount-early")?;
    assert_refused(&job, &guid, "in-use").context("imported and mounted")?;
    job.machine.exec_ok("rm /root/mount-early")?;

    // A folder in the place of the file that `changed` is renamed from.
    job.machine.exec_ok("mkdir /var/lib/repave/changed.new")?;
    assert_refused(&job, &guid, "host").context("exported, then refused")?;
    job.machine.exec_ok("rmdir /var/lib/repave/changed.new")?;

    job.arm_and_reboot()?;
    let report = job.report()?;
    ensure!(
        report.outcome == Verdict::Done,
        "the verdict is {:?}",
        report.outcome
    );
    assert_other(&job)?;
    job.machine
        .wait_active("k3s-agent.service", Deadline::secs(120))?;
    job.assert_containers_start("exported")?;
    job.throw_away()
}

fn assert_refused(job: &Job, guid: &str, name: &str) -> Result<()> {
    job.arm()?;
    job.machine.reboot(Deadline::secs(BOOT))?;
    job.assert_unit(
        "repave-boot.service",
        "ExecMainStatus",
        &EXIT_REFUSED.to_string(),
    )
    .with_context(|| job.console_tail())?;
    let report = job.report()?;
    match &report.outcome {
        Verdict::Refused(refusal) if refusal.name() == name => {}
        other => anyhow::bail!("the verdict is {other:?}, not {name}"),
    }
    ensure!(
        job.machine.exec_ok("zpool get -Hp -o value guid tank")? == guid,
        "the pool is another one"
    );
    assert_other(job)?;
    job.machine
        .wait_active("k3s-agent.service", Deadline::secs(120))?;
    job.machine.exec_ok("repave-agent disarm").map(drop)
}
