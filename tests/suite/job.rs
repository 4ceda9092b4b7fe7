//! What a person does with the products on a worker, as functions of a guest.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use repave_plan::report::Report;

use crate::products::dist;
use crate::vm::{Bed, Boot, Deadline, Machine, Order, StartOptions};

/// The policy of the lab's workers, as the README shows it.
pub const POLICY: &str = include_str!("policy.toml");

/// Where the products are put in the guest.
const BIN: &str = "/usr/local/bin";

/// How long a boot may take: 25 to 35 s were measured, 124 s under load.
pub const BOOT: u64 = 420;

/// A worker with the products on it.
pub struct Job {
    /// The guest.
    pub machine: Machine,
}

/// Starts a healthy worker, puts the products on it and the policy in its place.
pub fn start_worker(
    order: Order,
    label: &str,
    adjust: impl FnOnce(&mut StartOptions),
) -> Result<Job> {
    let bed = Bed::ensure(order)?;
    let mut options = StartOptions::new(label);
    adjust(&mut options);
    let machine = bed.start_running(options)?;
    let job = Job { machine };
    for name in ["repave-agent", "repave-boot"] {
        job.machine
            .push_file(&dist().join(name), &format!("{BIN}/{name}"), 0o755)?;
    }
    job.write_policy(POLICY)?;
    Ok(job)
}

impl Job {
    /// Writes the policy's only drop-in.
    pub fn write_policy(&self, text: &str) -> Result<()> {
        self.machine.exec_ok("mkdir -p /etc/repave/policy.d")?;
        self.machine
            .push("/etc/repave/policy.d/50-lab.toml", 0o644, text.as_bytes())
    }

    /// The digest of the plan as it is now.
    pub fn digest(&self) -> Result<String> {
        let json = self.machine.exec_ok("repave-agent plan --json")?;
        let plan: serde_json::Value = serde_json::from_str(&json).context("parse plan --json")?;
        let digest = plan["approval_digest"].as_str().or(plan["digest"].as_str());
        Ok(digest.context("plan --json has no digest")?.to_owned())
    }

    /// Arms without a reboot; gives what was printed.
    pub fn arm(&self) -> Result<String> {
        let digest = self.digest()?;
        self.machine
            .exec_ok(&format!("repave-agent arm --approve {digest}"))
    }

    /// Arms with a reboot and waits for the end of the boot it makes.
    pub fn arm_and_reboot(&self) -> Result<Boot> {
        let digest = self.digest()?;
        // The guest may be gone before the answer comes.
        let _ = self
            .machine
            .exec(&format!("repave-agent arm --approve {digest} --reboot"));
        self.machine.wait_next_boot(Deadline::secs(BOOT))
    }

    /// The report of the newest run.
    pub fn report(&self) -> Result<Report> {
        let path = self
            .machine
            .exec_ok("ls -1d /var/lib/repave/runs/*/ | tail -1")?;
        let path = format!("{}report.json", path.trim());
        let bytes = self.machine.pull(&path)?;
        serde_json::from_slice(&bytes).with_context(|| format!("parse {path}"))
    }

    /// Asserts that containers start, each a new one whose output is read, with the
    /// network down.
    pub fn assert_containers_start(&self, tag: &str) -> Result<()> {
        self.machine
            .exec_ok("ip link set dev $(ls /sys/class/net | grep -v lo | head -1) down")?;
        self.assert_prints(
            &format!("k run --rm --snapshotter zfs docker.io/library/lab:1 {tag}"),
            "hello from layer 2",
        )?;
        self.assert_prints(
            &format!("cri run {tag}-pod docker.io/library/lab:1"),
            "hello from layer 2",
        )
    }

    /// Asserts that a script succeeds and prints something.
    pub fn assert_prints(&self, script: &str, wanted: &str) -> Result<()> {
        let output = self.machine.exec(script)?;
        let said = format!("{}{}", output.stdout, output.stderr);
        ensure!(
            output.rc == 0 && said.contains(wanted),
            "`{script}` ended with {} and printed {said:?}, not {wanted:?}",
            output.rc
        );
        Ok(())
    }

    /// Asserts the exact output of a script, white space at its end left out.
    pub fn assert_is(&self, script: &str, wanted: &str) -> Result<()> {
        let output = self.machine.exec(script)?;
        let found = output.stdout.trim_end();
        ensure!(
            found == wanted,
            "`{script}` printed {found:?}, not {wanted:?}"
        );
        Ok(())
    }

    /// The value of one property of a unit.
    pub fn unit(&self, unit: &str, property: &str) -> Result<String> {
        let text = self
            .machine
            .exec_ok(&format!("systemctl show -P {property} {unit}"))?;
        Ok(text.trim_end().to_owned())
    }

    /// Asserts the value of one property of a unit.
    pub fn assert_unit(&self, unit: &str, property: &str, wanted: &str) -> Result<()> {
        let found = self.unit(unit, property)?;
        ensure!(
            found == wanted,
            "{property} of {unit} is {found:?}, not {wanted:?}"
        );
        Ok(())
    }

    /// A moment of a unit in microseconds since the start of the boot.
    pub fn moment(&self, unit: &str, property: &str) -> Result<u64> {
        let text = self.unit(unit, property)?;
        text.parse()
            .with_context(|| format!("{property} of {unit} is {text:?}"))
    }

    /// Ends the guest without ado; its disk is thrown away.
    pub fn throw_away(self) -> Result<()> {
        self.machine.power_cut()
    }

    /// The last of the console, for a message.
    pub fn console_tail(&self) -> String {
        let text = self.machine.serial_text().unwrap_or_default();
        let tail: Vec<&str> = text.lines().rev().take(40).collect();
        tail.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

/// Fails when a file of the guest exists.
pub fn assert_absent(job: &Job, path: &str) -> Result<()> {
    match job.machine.exec(&format!("test -e {path}"))?.rc {
        0 => bail!("{} exists", Path::new(path).display()),
        _ => Ok(()),
    }
}
