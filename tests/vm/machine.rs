//! A guest under QEMU: run commands in it, move files, reboot, cut its power.
//!
//! QEMU dies with the `Machine`, unless it was detached. The overlay goes too when
//! the test succeeded; the logs stay.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Mutex;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use repave_guest_agent::Frame;
use serde_json::json;

use super::bed::{Bed, Image, StartOptions};
use super::control;
use super::deadline::Deadline;
use super::qemu;
use super::qmp::Qmp;

/// What a command in the guest gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Its exit code, 128 and the signal's number when it was killed.
    pub rc: i32,
    /// What it printed.
    pub stdout: String,
    /// What it complained.
    pub stderr: String,
}

/// A running (or cut) guest.
pub struct Machine {
    pub(super) bed: Bed,
    pub(super) options: StartOptions,
    pub(super) overlay: PathBuf,
    pub(super) logs: PathBuf,
    pub(super) sockets: PathBuf,
    pub(super) ssh_port: u16,
    pub(super) pid: Pid,
    /// `None` when somebody else started QEMU.
    pub(super) child: Mutex<Option<Child>>,
    pub(super) qmp: Qmp,
    pub(super) last_boot: Mutex<Option<String>>,
    /// What the guest's clock showed, and when.
    pub(super) clock: (SystemTime, Instant),
    pub(super) keep: bool,
}

impl Machine {
    /// Runs a bash script as root; 2 minutes at most.
    pub fn exec(&self, script: &str) -> Result<Output> {
        self.exec_for(120, script)
    }

    /// Runs a bash script as root; killed after `seconds`, which is an error.
    pub fn exec_for(&self, seconds: u64, script: &str) -> Result<Output> {
        self.exec_argv(seconds, &["/bin/bash", "-c", script])
    }

    /// Runs a program without a shell.
    pub fn exec_argv(&self, seconds: u64, argv: &[&str]) -> Result<Output> {
        let mut fields = vec![(seconds * 1000).to_string().into_bytes()];
        fields.extend(argv.iter().map(|arg| arg.as_bytes().to_vec()));
        let answer = self.request("exec", fields, Deadline::secs(seconds + 30))?;
        if answer.field(1) == b"1" {
            bail!(
                "still running after {seconds} s: {argv:?}\nstdout: {}\nstderr: {}",
                answer.text(2),
                answer.text(3)
            );
        }
        Ok(Output {
            rc: answer.text(0).parse()?,
            stdout: answer.text(2),
            stderr: answer.text(3),
        })
    }

    /// Runs a bash script that must exit 0; gives its stdout.
    pub fn exec_ok(&self, script: &str) -> Result<String> {
        let done = self.exec(script)?;
        if done.rc != 0 {
            bail!(
                "exit {} of: {script}\nstdout: {}\nstderr: {}",
                done.rc,
                done.stdout,
                done.stderr
            );
        }
        Ok(done.stdout)
    }

    /// Writes a file in the guest, by rename; missing folders are made.
    pub fn push(&self, path: &str, mode: u32, data: &[u8]) -> Result<()> {
        let fields = vec![path.into(), format!("{mode:o}").into(), data.to_vec()];
        self.request("push", fields, Deadline::secs(120)).map(drop)
    }

    /// Copies a file of the host into the guest.
    pub fn push_file(&self, from: &Path, path: &str, mode: u32) -> Result<()> {
        let data = fs::read(from).with_context(|| format!("read {}", from.display()))?;
        self.push(path, mode, &data)
    }

    /// Reads a file of the guest.
    pub fn pull(&self, path: &str) -> Result<Vec<u8>> {
        let mut answer = self
            .request("pull", vec![path.into()], Deadline::secs(120))
            .with_context(|| format!("pull {path}"))?;
        Ok(answer.fields.swap_remove(0))
    }

    /// The id of the boot that answers now, and its uptime in seconds.
    pub fn hello(&self) -> Result<(String, f64)> {
        let answer = self.request("hello", Vec::new(), Deadline::secs(10))?;
        Ok((answer.text(0), answer.text(1).parse()?))
    }

    /// Shuts the guest down by systemd and waits for QEMU's end.
    pub fn power_off(&self, deadline: Deadline) -> Result<()> {
        self.exec_ok("systemctl poweroff --no-block")?;
        self.wait_end(deadline)
    }

    /// Waits for QEMU's end: a power-off, or a reboot with `no_reboot`.
    pub fn wait_end(&self, deadline: Deadline) -> Result<()> {
        deadline.poll("the guest's end", || Ok((!self.is_alive()?).then_some(())))
    }

    /// Kills QEMU. What the guest had not yet written is lost, what it had written
    /// is not, flushed or not: for lost writes see `StartOptions::log_writes`.
    pub fn power_cut(&self) -> Result<()> {
        if self.is_alive()? {
            kill(self.pid, Signal::SIGKILL).context("kill QEMU")?;
        }
        self.wait_end(Deadline::secs(30))
    }

    /// Whether QEMU runs.
    pub fn is_alive(&self) -> Result<bool> {
        let mut child = self
            .child
            .lock()
            .map_err(|_| anyhow!("a lock is poisoned"))?;
        match child.as_mut() {
            Some(child) => Ok(child.try_wait()?.is_none()),
            None => Ok(fs::read_to_string(format!("/proc/{}/comm", self.pid))
                .is_ok_and(|name| name.starts_with("qemu"))),
        }
    }

    /// Cuts the power if it is still on and starts the same disk again. The guest's
    /// clock goes on from where it is, unless `adjust` sets another.
    pub fn start_again(mut self, adjust: impl FnOnce(&mut StartOptions)) -> Result<Machine> {
        self.power_cut()?;
        let mut options = self.options.clone();
        options.image = Image::Existing(self.overlay.clone());
        options.rtc = Some(super::rtc_base(self.guest_time()));
        adjust(&mut options);
        self.keep = true;
        self.bed.start(options)
    }

    /// What the guest's clock should show, if nobody set it.
    pub fn guest_time(&self) -> SystemTime {
        self.clock.0 + self.clock.1.elapsed()
    }

    /// All that the serial console showed since this QEMU started.
    pub fn serial_text(&self) -> Result<String> {
        let bytes = fs::read(qemu::serial_file(&self.logs))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Waits for `text` on the serial console.
    pub fn wait_serial(&self, text: &str, deadline: Deadline) -> Result<()> {
        deadline.poll(&format!("`{text}` on the console"), || {
            let shown = self.serial_text()?;
            if !shown.contains(text) && !self.is_alive()? {
                bail!("QEMU ended before the console showed `{text}`:\n{shown}");
            }
            Ok(shown.contains(text).then_some(()))
        })
    }

    /// Waits until the unit is active.
    pub fn wait_active(&self, unit: &str, deadline: Deadline) -> Result<()> {
        let script = format!(
            "until systemctl is-active --quiet {unit}; do sleep 0.2; done; \
             systemctl show -P ActiveState {unit}"
        );
        self.exec_for(deadline.left().as_secs().max(1), &script)
            .with_context(|| format!("wait for {unit}"))
            .map(drop)
    }

    /// Attaches a second disk to a running guest.
    pub fn attach_second(&self, disk: &Path) -> Result<()> {
        self.qmp
            .execute("blockdev-add", qemu::second_backend(disk))?;
        self.qmp.execute(
            "device_add",
            json!({
                "driver": "virtio-blk-pci", "drive": "second", "bus": "second",
                "serial": super::SECOND_SERIAL,
            }),
        )?;
        let link = format!("/dev/disk/by-id/virtio-{}", super::SECOND_SERIAL);
        self.exec_ok(&format!(
            "timeout 20 sh -c 'until [ -e {link} ]; do sleep 0.1; done'"
        ))
        .map(drop)
    }

    /// The command line that logs in, for `std::process::Command`.
    pub fn ssh(&self, command: &[&str]) -> Vec<String> {
        let mut line: Vec<String> = ["ssh", "-q", "-p"].map(str::to_owned).to_vec();
        line.push(self.ssh_port.to_string());
        line.extend(["-i".to_owned(), self.bed.ssh_key().display().to_string()]);
        for option in [
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "BatchMode=yes",
        ] {
            line.extend(["-o".to_owned(), option.to_owned()]);
        }
        line.push("root@127.0.0.1".to_owned());
        line.extend(command.iter().map(|word| (*word).to_owned()));
        line
    }

    /// The system disk's overlay.
    pub fn overlay(&self) -> &Path {
        &self.overlay
    }

    /// The folder with serial.log, qemu.log and the write log.
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    /// The write log, when it was asked for.
    pub fn write_log(&self) -> PathBuf {
        self.logs.join("writes.log")
    }

    /// Ends a guest, detached ones too, and throws its disk away.
    pub fn discard(&self) -> Result<()> {
        self.end(true)
    }

    fn end(&self, with_disk: bool) -> Result<()> {
        self.power_cut()?;
        let mut files = vec![self.sockets.join("ctl"), self.sockets.join("qmp")];
        files.extend(with_disk.then(|| self.overlay.clone()));
        for file in files.iter().filter(|file| file.exists()) {
            fs::remove_file(file).with_context(|| format!("remove {}", file.display()))?;
        }
        fs::remove_dir(&self.sockets).with_context(|| format!("remove {}", self.sockets.display()))
    }

    /// Keeps the overlay when the machine is dropped.
    pub fn keep_disk(&mut self) {
        self.keep = true;
    }

    pub(super) fn end_of_serial(&self) -> String {
        let text = self.serial_text().unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    pub(super) fn request(
        &self,
        kind: &str,
        fields: Vec<Vec<u8>>,
        deadline: Deadline,
    ) -> Result<Frame> {
        let resets = self.qmp.resets();
        control::request(
            &qemu::control_socket(&self.sockets),
            kind,
            fields,
            deadline,
            || {
                if !self.is_alive()? {
                    bail!("QEMU ended; its log is in {}", self.logs.display());
                }
                if self.qmp.resets() != resets {
                    bail!("the guest was reset meanwhile");
                }
                Ok(())
            },
        )
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let ours = self.child.lock().is_ok_and(|child| child.is_some());
        if !ours {
            return;
        }
        // Of a failed test the disk is kept for whoever looks into it.
        let keep = self.keep || std::thread::panicking();
        if let Err(err) = self.end(!keep) {
            eprintln!("{err:#}");
        }
    }
}
