//! A node that was armed and whose run could not start: nothing is destroyed, it boots
//! on as before, and the intent is gone and never fires later.

use anyhow::{Context, Result, ensure};
use repave_plan::report::EXIT_NOT_RUN;

use crate::vm::{Deadline, Order};

use super::job::{BOOT, Job, assert_absent, start_worker};

pub(super) fn three_ways() -> Result<()> {
    let job = start_worker(Order::TankFirst, "not-run", |_| {})?;
    let guid = pool_guid(&job)?;
    for (name, script) in [
        ("a program that cannot be executed", CORRUPT_PROGRAM),
        ("a unit that is gone", REMOVE_UNIT),
        ("a /var that is read-only at first", LATE_VAR),
    ] {
        (|| {
            job.arm()?;
            job.machine.exec_ok("test -e /var/lib/repave/intent.json")?;
            job.machine.exec_ok(script)?;
            job.machine.reboot(Deadline::secs(BOOT))?;
            assert_not_run(&job, &guid)
        })()
        .with_context(|| format!("{name}\n{}", job.console_tail()))?;
        job.machine.exec_ok("systemctl disable lab-ro lab-rw 2>/dev/null; rm -f /etc/systemd/system/lab-r*.service; systemctl daemon-reload")?;
        job.machine.exec_ok("repave-agent disarm")?;
    }
    // And never later: another boot does nothing either.
    job.machine.reboot(Deadline::secs(BOOT))?;
    ensure!(pool_guid(&job)? == guid, "the pool is another one");
    job.throw_away()
}

/// Not an ELF file any more, and not executable either.
const CORRUPT_PROGRAM: &str = "\
    p=$(sed -n 's/^ExecStart=\\([^ ]*\\) run$/\\1/p' /etc/systemd/system/repave-boot.service); \
    test -x $p && echo garbage > $p && chmod 600 $p";

/// As after an /etc that did not carry over.
const REMOVE_UNIT: &str = "\
    rm /etc/systemd/system/repave-boot.service \
       /etc/systemd/system/sysinit.target.wants/repave-boot.service";

/// /var turns read-only before the run and writable again after it.
const LATE_VAR: &str = "\
cat > /etc/systemd/system/lab-ro.service <<'S'
[Unit]
DefaultDependencies=no
After=systemd-remount-fs.service
Before=repave-boot.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'mount --bind /var /var && mount -o remount,ro,bind /var'
[Install]
WantedBy=sysinit.target
S
cat > /etc/systemd/system/lab-rw.service <<'S'
[Unit]
DefaultDependencies=no
After=repave-boot.service
Before=local-fs.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/umount /var
[Install]
WantedBy=sysinit.target
S
systemctl daemon-reload && systemctl enable lab-ro lab-rw";

fn pool_guid(job: &Job) -> Result<String> {
    job.machine.exec_ok("zpool get -Hp -o value guid tank")
}

fn assert_not_run(job: &Job, guid: &str) -> Result<()> {
    ensure!(pool_guid(job)? == guid, "the pool is another one");
    for path in ["/var/lib/repave/intent.json", "/var/lib/repave/changed"] {
        assert_absent(job, path)?;
    }
    job.machine
        .wait_active("k3s-agent.service", Deadline::secs(120))?;
    let status = job.machine.exec("repave-agent status")?;
    ensure!(
        status.rc == i32::from(EXIT_NOT_RUN),
        "status ended with {}: {}{}",
        status.rc,
        status.stdout,
        status.stderr
    );
    job.assert_prints(
        "k run --rm --snapshotter zfs docker.io/library/lab:1 still",
        "hello from layer 2",
    )
}
