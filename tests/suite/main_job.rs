//! The main job, end to end: armed by hand, done at the next boot, still there after a
//! second one.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use repave_plan::report::Verdict;
use repave_plan::step::{Outcome, StepName};

use crate::vm::{Deadline, Order, Run};

use super::job::{BOOT, Job, assert_absent, start_worker};

pub(super) fn tank_first() -> Result<()> {
    let job = start_worker(Order::TankFirst, "main-job-tank-first", |_| {})?;
    let before = Before::read(&job)?;
    job.arm_and_reboot()?;
    assert_done(&job, Order::TankFirst, &before).with_context(|| job.console_tail())?;
    let report = job.report()?;
    job.assert_containers_start("after-run")?;
    job.machine.reboot(Deadline::secs(BOOT))?;
    assert_second_boot(&job, &report.new_pool.context("no new pool")?.to_string())?;
    job.assert_containers_start("after-second-boot")?;
    job.machine.power_off(Deadline::secs(BOOT))?;
    assert_fsck(Order::TankFirst, job.machine.overlay())
}

/// What must be the same afterwards.
pub(super) struct Before {
    guid: String,
    entries: String,
    root: String,
    skeleton: String,
    images: String,
}

/// Entries 1 to 3 in full, as sgdisk tells them.
const ENTRIES: &str = "for n in 1 2 3; do sgdisk -i $n /dev/vda; done";
/// Start and size of the root partition, as the kernel has them.
const ROOT: &str = "cat /sys/block/vda/vda3/{start,size} | paste -s";
/// The skeleton's properties that were set by somebody.
const SKELETON: &str = "zfs get -Hp -s local -o name,property,value all tank tank/containerd tank/pvc; \
     zpool get -Hp -o property,value ashift,autotrim tank; \
     zfs get -Hp -o name,property,value casesensitivity,normalization,utf8only tank/containerd";
/// Images that containerd lists.
const IMAGES: &str = "k images ls -q | sort";

impl Before {
    pub(super) fn read(job: &Job) -> Result<Before> {
        let read = |script: &str| job.machine.exec_ok(script);
        Ok(Before {
            guid: read("zpool get -Hp -o value guid tank")?.trim().to_owned(),
            entries: read(ENTRIES)?,
            root: read(ROOT)?,
            skeleton: read(SKELETON)?,
            images: read(IMAGES)?,
        })
    }
}

pub(super) fn assert_done(job: &Job, order: Order, before: &Before) -> Result<()> {
    let report = job.report()?;
    ensure!(
        report.outcome == Verdict::Done,
        "the verdict is {:?}",
        report.outcome
    );
    ensure!(report.attempts == 1, "{} attempts", report.attempts);
    let outcomes: Vec<_> = report.steps.iter().map(|s| (s.step, s.outcome)).collect();
    let changed = Some(Outcome::Changed);
    ensure!(
        outcomes
            == [
                (StepName::LabelClear, changed),
                (StepName::TableWrite, changed),
                (StepName::KernelTable, changed),
                (StepName::PoolCreate, changed),
                (StepName::ContainerdClear, changed),
            ],
        "the steps ended as {outcomes:?}"
    );
    for name in ["intent.json", "changed"] {
        assert_absent(job, &format!("/var/lib/repave/{name}"))?;
    }
    assert_disk(job, order, before)?;
    assert_pool(job, before)?;
    assert_order(job)?;
    ensure!(
        report.new_pool.map(|g| g.to_string())
            == Some(
                job.machine
                    .exec_ok("zpool get -Hp -o value guid tank")?
                    .trim()
                    .to_owned()
            ),
        "the report names another pool"
    );
    let volumes: Vec<_> = report
        .volumes_lost
        .iter()
        .map(|v| v.name.as_str())
        .collect();
    ensure!(
        volumes.len() == 2 && volumes.iter().all(|name| name.starts_with("tank/pvc/pvc-")),
        "the volumes lost are {volumes:?}"
    );
    assert_memory(&job.machine.serial_text()?)?;
    job.machine
        .wait_active("k3s-agent.service", Deadline::secs(120))?;
    ensure!(
        job.machine.exec_ok(IMAGES)? == before.images,
        "the list of images changed"
    );
    Ok(())
}

/// What the boot program said of its own memory, against the limit.
fn assert_memory(console: &str) -> Result<()> {
    let said = console
        .lines()
        .rev()
        .find_map(|line| line.split("peak memory: ").nth(1));
    let said = said.context("the console tells no peak memory")?;
    let kib: u64 = said
        .trim_end_matches(" kB")
        .trim()
        .parse()
        .with_context(|| said.to_owned())?;
    println!("the boot program's peak memory: {kib} KiB");
    ensure!(kib < 16 * 1024, "the boot program had {kib} KiB of memory");
    Ok(())
}

fn assert_disk(job: &Job, order: Order, before: &Before) -> Result<()> {
    let read = |script: &str| job.machine.exec_ok(script);
    ensure!(read(ENTRIES)? == before.entries, "entries 1 to 3 changed");
    ensure!(
        read(ROOT)? == before.root,
        "the kernel's place of the root partition changed"
    );
    assert_untouched(job)?;
    let numbers = read("ls -d /sys/block/vda/vda* | grep -o '[0-9]*$' | paste -s -d' '")?;
    let new = order.tank().min(order.dead());
    ensure!(
        numbers.trim() == format!("1 2 3 {new}"),
        "the kernel has partitions {numbers}"
    );
    let first = number(
        job,
        &format!("sgdisk -i {new} /dev/vda | awk '/First sector/{{print $3}}'"),
    )?;
    let last = number(
        job,
        &format!("sgdisk -i {new} /dev/vda | awk '/Last sector/{{print $3}}'"),
    )?;
    let usable = number(
        job,
        "sgdisk -p /dev/vda | grep -o 'last usable sector is [0-9]*' | awk '{print $NF}'",
    )?;
    ensure!(
        first % 2048 == 0,
        "the new partition starts at {first}, which is at no MiB"
    );
    ensure!(
        last == usable,
        "the new partition ends at {last}, the last usable block is {usable}"
    );
    let size = number(job, &format!("cat /sys/block/vda/vda{new}/size"))?;
    ensure!(
        size == last - first + 1,
        "the kernel has {size} blocks, the table {}",
        last - first + 1
    );
    job.assert_prints("sgdisk --verify /dev/vda", "No problems found")?;
    let pool = number(job, "zpool list -Hp -o size tank")?;
    let bytes = size * 512;
    ensure!(
        pool <= bytes && pool > bytes / 100 * 97,
        "the pool has {pool} bytes on a partition of {bytes}"
    );
    job.assert_prints(
        "dmesg | grep -c 'EXT4-fs error' | grep -x 0 && echo clean",
        "clean",
    )
}

/// Bytes 1 MiB to the end of the second partition: p1 and p2. The guest's disk is an
/// overlay, so what was never written since the worker was made is not in it.
fn assert_untouched(job: &Job) -> Result<()> {
    let end = number(job, "cat /sys/block/vda/vda3/start")? * 512;
    let map = Run::new("qemu-img")
        .args(["map", "-U", "--output=json"])
        .arg(job.machine.overlay())
        .text()?;
    let map: Vec<serde_json::Value> = serde_json::from_str(&map).context("parse qemu-img map")?;
    let top = map.iter().filter(|entry| entry["depth"] == 0);
    let mut written = 0;
    for entry in top {
        let start = entry["start"].as_u64().context("an entry without start")?;
        let len = entry["length"]
            .as_u64()
            .context("an entry without length")?;
        written += 1;
        ensure!(
            start >= end || start + len <= 1 << 20,
            "bytes {start} to {} of p1 or p2 were written",
            start + len
        );
    }
    ensure!(written > 0, "nothing at all was written to the disk");
    Ok(())
}

/// Checks the root file system from another guest, which does not have it mounted.
fn assert_fsck(order: Order, disk: &Path) -> Result<()> {
    let job = start_worker(order, "fsck", |options| {
        options.second_disk = Some(disk.to_owned())
    })?;
    let check = job
        .machine
        .exec_for(400, "udevadm settle; e2fsck -f -n /dev/vdb3")?;
    ensure!(
        check.rc == 0,
        "e2fsck ended with {}: {}{}",
        check.rc,
        check.stdout,
        check.stderr
    );
    job.throw_away()
}

fn number(job: &Job, script: &str) -> Result<u64> {
    let text = job.machine.exec_ok(script)?;
    text.trim()
        .parse()
        .with_context(|| format!("`{script}` printed {text:?}"))
}

fn assert_pool(job: &Job, before: &Before) -> Result<()> {
    let guid = job.machine.exec_ok("zpool get -Hp -o value guid tank")?;
    ensure!(guid.trim() != before.guid, "the pool still has guid {guid}");
    let skeleton = job.machine.exec_ok(SKELETON)?;
    ensure!(
        skeleton == before.skeleton,
        "the skeleton was\n{}\nand is\n{skeleton}",
        before.skeleton
    );
    Ok(())
}

/// k3s and every import unit started after the boot run ended, and the finish unit.
fn assert_order(job: &Job) -> Result<()> {
    let ended = job.moment("repave-boot.service", "ActiveEnterTimestampMonotonic")?;
    // The moment a unit's conditions are looked at: it is told for a unit that was then
    // skipped too, as an import unit is when the cache file holds no other pool.
    for unit in ["zfs-import-cache.service", "zfs-mount.service"] {
        let began = job.moment(unit, "ConditionTimestampMonotonic")?;
        ensure!(
            began > ended,
            "{unit} began at {began} µs, the boot run ended at {ended} µs"
        );
    }
    let imported = job.moment("zfs-import.target", "ActiveEnterTimestampMonotonic")?;
    ensure!(
        imported > ended,
        "zfs-import.target was reached at {imported} µs, the boot run ended at {ended} µs"
    );
    let finished = job.moment("repave-finish.service", "ActiveEnterTimestampMonotonic")?;
    let k3s = job.moment("k3s-agent.service", "ExecMainStartTimestampMonotonic")?;
    ensure!(
        finished > ended && k3s > finished,
        "boot run {ended}, finish {finished}, k3s {k3s} µs"
    );
    let cycles = job
        .machine
        .exec("journalctl -b --no-pager | grep -ci 'ordering cycle'")?;
    ensure!(
        cycles.stdout.trim() == "0",
        "the journal speaks of an ordering cycle"
    );
    // The units of this project; what the distribution's own units lack is not ours.
    let verify = job.machine.exec(
        "systemd-analyze verify --recursive-errors=no repave-boot.service repave-late.service \
         repave-finish.service repave-cleanup.service 2>&1",
    )?;
    ensure!(
        verify.rc == 0 && verify.stdout.is_empty(),
        "systemd-analyze verify: {}",
        verify.stdout
    );
    Ok(())
}

/// A plain boot later: nothing of the run starts, and all of it is still there.
fn assert_second_boot(job: &Job, pool: &str) -> Result<()> {
    job.assert_unit("repave-boot.service", "ConditionResult", "no")?;
    job.assert_unit("repave-boot.service", "ExecMainPID", "0")?;
    job.assert_unit("repave-finish.service", "ConditionResult", "no")?;
    job.assert_is("zpool get -Hp -o value guid tank", pool)?;
    job.machine
        .wait_active("k3s-agent.service", Deadline::secs(120))
}
