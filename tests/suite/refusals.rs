//! Refusals: what is not what was armed is refused by name, with exit code 10, and
//! nothing is written but the records on the root partition.

use anyhow::{Context, Result, ensure};
use repave_plan::intent::{Intent, open, seal};
use repave_plan::report::{EXIT_REFUSED, EXIT_USAGE, Report, Verdict};
use repave_plan::units::{Bytes, Digest, UnixTime};

use crate::vm::{Deadline, Order, read_write_log};

use super::job::{BOOT, Job, POLICY, assert_absent, start_worker};

/// One changed intent and the refusal it must meet.
struct Changed {
    name: &'static str,
    /// Words of the message, which name the fact.
    says: &'static str,
    change: fn(&mut Intent),
}

/// Made as if armed in an earlier boot, so that only the one change is wrong.
fn earlier_boot(intent: &mut Intent) {
    if let Ok(boot) = "0".repeat(32).parse() {
        intent.armed_boot = boot;
    }
}

const CHANGED: [Changed; 11] = [
    Changed {
        name: "other-machine",
        says: "the intent is for machine ffffffff",
        change: |i| {
            if let Ok(id) = "f".repeat(32).parse() {
                i.bound.machine_id = id;
            }
        },
    },
    Changed {
        name: "stale",
        says: "the intent was good until",
        change: |i| {
            i.armed_at = UnixTime(1);
            i.not_after = UnixTime(2);
        },
    },
    Changed {
        name: "clock-before-arming",
        says: "the clock says",
        change: |i| i.armed_at = UnixTime(i.armed_at.0 + 1_000_000),
    },
    Changed {
        name: "other-image",
        says: "should be booted, none is",
        change: |i| i.plan.image = Some(Digest::of(b"another image")),
    },
    Changed {
        name: "no-disk",
        says: "no disk matches: serial ANOTHER",
        change: |i| i.bound.serial = Some("ANOTHER".to_owned()),
    },
    Changed {
        name: "fact-changed",
        says: "the disk's size was",
        change: |i| i.bound.size.0 += 512,
    },
    Changed {
        name: "fact-changed",
        says: "the digest of the primary table was",
        change: |i| i.bound.primary = Digest::of(b"another table"),
    },
    Changed {
        name: "fact-changed",
        says: "the digest of the backup table was",
        change: |i| i.bound.backup = Digest::of(b"another table"),
    },
    Changed {
        name: "fact-changed",
        says: "the pool's guid on the label was",
        change: |i| i.bound.pool_guid.0 ^= 1,
    },
    Changed {
        name: "host",
        says: "the file system under /var/lib/repave-case is too full",
        change: |i| i.min_state_free = Bytes(u64::MAX),
    },
    // The control: nothing is wrong but that this node is live and has the pool mounted.
    Changed {
        name: "in-use",
        says: "imported before this unit",
        change: |_| {},
    },
];

pub(super) fn many_in_one_boot() -> Result<()> {
    let job = start_worker(Order::TankFirst, "refusals", |_| {})?;
    let guid = job.machine.exec_ok("zpool get -Hp -o value guid tank")?;
    let table = "(head -c 17408 /dev/vda; tail -c 16896 /dev/vda) | sha256sum";
    let before = job.machine.exec_ok(table)?;
    refused_by_the_agent(&job)?;
    job.arm()?;
    let sealed = job.machine.pull("/var/lib/repave/intent.json")?;
    job.machine.exec_ok("repave-agent disarm")?;
    let armed = open(&sealed)?;

    refuse_all(&job, &armed, &sealed, &CHANGED)?;
    assert_refused(&job, &sealed, "same-boot", "in which the intent was armed")?;
    assert_spent(&job, &armed)?;

    ensure!(
        job.machine.exec_ok(table)? == before,
        "the partition table changed"
    );
    ensure!(
        job.machine.exec_ok("zpool get -Hp -o value guid tank")? == guid,
        "the pool is another one"
    );
    job.assert_unit("k3s-agent.service", "ActiveState", "active")?;
    job.throw_away()
}

/// Every changed intent of the list, and every way in which sealed bytes are no intent.
fn refuse_all(job: &Job, armed: &Intent, sealed: &[u8], cases: &[Changed]) -> Result<()> {
    for (index, case) in cases.iter().enumerate() {
        let mut intent = armed.clone();
        earlier_boot(&mut intent);
        (case.change)(&mut intent);
        assert_refused(job, &seal(&intent)?, case.name, case.says)
            .with_context(|| format!("case {index}: {}", case.name))?;
    }
    let mut flipped = sealed.to_vec();
    let last = flipped.len() - 10;
    flipped[last] ^= 0x20;
    let half = &sealed[..sealed.len() / 2];
    let text = String::from_utf8(sealed.to_vec())?;
    let newer = text.replacen("repave-intent 1 ", "repave-intent 2 ", 1);
    let body = text.split_once('\n').context("no header line")?.1;
    let unknown = body.replacen("{", "{\"a_key_nobody_knows\":1,", 1);
    let unknown = format!(
        "repave-intent 1 {}\n{unknown}",
        Digest::of(unknown.as_bytes())
    );
    for (bytes, name, says) in [
        (flipped.as_slice(), "intent-damaged", "its seal is sha256:"),
        (half, "intent-damaged", "its seal is sha256:"),
        (b"", "intent-damaged", "its first line"),
        (
            newer.as_bytes(),
            "newer-format",
            "format version 2, this program knows 1",
        ),
        (unknown.as_bytes(), "intent-damaged", "a_key_nobody_knows"),
    ] {
        assert_refused(job, bytes, name, says).with_context(|| says.to_owned())?;
    }
    Ok(())
}

const CASE: &str = "/var/lib/repave-case";

fn run_case(job: &Job, sealed: &[u8], fresh: bool) -> Result<(i32, String)> {
    if fresh {
        job.machine
            .exec_ok(&format!("rm -rf {CASE}; mkdir {CASE}"))?;
    }
    job.machine
        .push(&format!("{CASE}/intent.json"), 0o600, sealed)?;
    let run = job
        .machine
        .exec(&format!("repave-boot run --state {CASE}"))?;
    Ok((run.rc, format!("{}{}", run.stdout, run.stderr)))
}

fn assert_refused(job: &Job, sealed: &[u8], name: &str, says: &str) -> Result<()> {
    let (rc, said) = run_case(job, sealed, true)?;
    ensure!(rc == i32::from(EXIT_REFUSED), "it ended with {rc}: {said}");
    ensure!(
        said.contains(&format!("refused ({name})")),
        "it is not {name}: {said}"
    );
    ensure!(said.contains(says), "it does not say {says:?}: {said}");
    ensure!(said.contains("way out: "), "it names no way out: {said}");
    for file in ["intent.json", "changed"] {
        assert_absent(job, &format!("{CASE}/{file}"))?;
    }
    let path = job
        .machine
        .exec_ok(&format!("ls {CASE}/runs/*/report.json"))?;
    let report: Report = serde_json::from_slice(&job.machine.pull(path.trim())?)?;
    match &report.outcome {
        Verdict::Refused(refusal) if refusal.name() == name => Ok(()),
        other => anyhow::bail!("the report says {other:?}"),
    }
}

/// The same sealed bytes a second time, with the run's records there: spent.
fn assert_spent(job: &Job, armed: &Intent) -> Result<()> {
    let mut intent = armed.clone();
    earlier_boot(&mut intent);
    let sealed = seal(&intent)?;
    let (first, _) = run_case(job, &sealed, true)?;
    let (second, said) = run_case(job, &sealed, false)?;
    ensure!(
        first == i32::from(EXIT_REFUSED) && second == first,
        "{first}, then {second}"
    );
    ensure!(said.contains("refused (already-run)"), "{said}");
    assert_absent(job, &format!("{CASE}/intent.json"))
}

/// What never becomes an intent: an unknown key, another digest.
fn refused_by_the_agent(job: &Job) -> Result<()> {
    job.write_policy(&format!("{POLICY}\n[limits]\natempts = 3\n"))?;
    let unknown = job.machine.exec("repave-agent plan")?;
    ensure!(
        unknown.rc == i32::from(EXIT_USAGE) && unknown.stderr.contains("atempts"),
        "an unknown key ended with {}: {}",
        unknown.rc,
        unknown.stderr
    );
    job.write_policy(POLICY)?;
    let digest = Digest::of(b"another plan");
    let other = job
        .machine
        .exec(&format!("repave-agent arm --approve {digest}"))?;
    ensure!(
        other.rc == i32::from(EXIT_REFUSED),
        "another digest ended with {}: {}",
        other.rc,
        other.stderr
    );
    assert_absent(job, "/var/lib/repave/intent.json")
}

/// Waits on the console after the run and before the import units, so that the writes
/// up to then can be counted.
const PAUSE: &str = "\
cat > /etc/systemd/system/lab-pause.service <<'S'
[Unit]
DefaultDependencies=no
After=repave-boot.service
Before=zfs-load-module.service zfs-import-cache.service zfs-import.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'echo LAB-PAUSED > /dev/console; until [ -e /run/go ]; do sleep 0.2; done'
[Install]
WantedBy=sysinit.target
S
systemctl daemon-reload && systemctl enable lab-pause";

/// The table is changed after arming; the next boot refuses, and up to the import units
/// QEMU sees no write outside the root partition.
pub(super) fn at_a_real_boot() -> Result<()> {
    let job = start_worker(Order::TankFirst, "refused-boot", |_| {})?;
    let guid = job.machine.exec_ok("zpool get -Hp -o value guid tank")?;
    job.arm()?;
    let sealed = job.machine.pull("/var/lib/repave/intent.json")?;
    let armed = open(&sealed)?;
    job.machine.exec_ok(PAUSE)?;
    job.machine
        .exec_ok("sgdisk -c 1:EFI-renamed /dev/vda && sync")?;
    job.machine.power_off(Deadline::secs(BOOT))?;
    let machine = job
        .machine
        .start_again(|options| options.log_writes = true)?;
    let job = Job { machine };
    job.machine
        .wait_serial("LAB-PAUSED", Deadline::secs(BOOT))?;
    assert_only_root(&job, &read_write_log(&job.machine.write_log())?)?;
    // The unit's own refusal is done, and no pool is imported yet. With the table as it
    // was again, every other refusal is tried in this moment too; the last of the list
    // needs an imported pool.
    job.machine.exec_ok("sgdisk -c 1:EFI /dev/vda && sync")?;
    let before = read_write_log(&job.machine.write_log())?.len();
    let (_, cases) = CHANGED.split_last().context("an empty list")?;
    refuse_all(&job, &armed, &sealed, cases)?;
    job.machine.exec_ok("sync")?;
    let log = read_write_log(&job.machine.write_log())?;
    let tried = log.get(before..).context("the log became shorter")?;
    assert_only_root(&job, tried)?;
    job.machine.exec_ok("touch /run/go")?;
    job.machine.wait_boot(Deadline::secs(BOOT))?;
    job.assert_unit(
        "repave-boot.service",
        "ExecMainStatus",
        &EXIT_REFUSED.to_string(),
    )?;
    let report = job.report()?;
    let Verdict::Refused(refusal) = &report.outcome else {
        anyhow::bail!("the verdict is {:?}", report.outcome);
    };
    ensure!(refusal.name() == "fact-changed", "it is {refusal}");
    ensure!(
        job.machine.exec_ok("zpool get -Hp -o value guid tank")? == guid,
        "the pool is another one"
    );
    job.machine
        .wait_active("k3s-agent.service", Deadline::secs(120))?;
    job.assert_prints(
        "k run --rm --snapshotter zfs docker.io/library/lab:1 kept",
        "hello from layer 2",
    )?;
    job.throw_away()
}

fn assert_only_root(job: &Job, log: &[crate::vm::LoggedWrite]) -> Result<()> {
    let read = |what: &str| -> Result<u64> {
        let text = job
            .machine
            .exec_ok(&format!("cat /sys/block/vda/vda3/{what}"))?;
        Ok(text.trim().parse()?)
    };
    let (start, size) = (read("start")?, read("size")?);
    let writes: Vec<_> = log.iter().filter(|entry| entry.count > 0).collect();
    ensure!(
        !writes.is_empty(),
        "no write was logged at all, not even of the journal"
    );
    for entry in writes {
        ensure!(
            entry.sector >= start && entry.sector + entry.count <= start + size,
            "sectors {} to {} were written; the root partition is {start} to {}",
            entry.sector,
            entry.sector + entry.count - 1,
            start + size - 1
        );
    }
    Ok(())
}
