//! Chooses QEMU's accelerator: KVM when a short trial boot works, else emulation.
//!
//! A `/dev/kvm` that opens proves nothing: there are machines where QEMU then hangs
//! without a word, so the trial has a deadline. The answer is kept per machine.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::command::Run;
use super::deadline::Deadline;
use super::progress::Progress;
use super::{cache, qemu};

/// How QEMU runs the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// The host's processor.
    Kvm,
    /// Emulation, one thread per guest processor.
    Tcg,
}

impl Accel {
    /// The `-accel` and `-cpu` values.
    pub fn arguments(self) -> [&'static str; 4] {
        match self {
            Accel::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Accel::Tcg => ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"],
        }
    }
}

/// The accelerator for this machine, tried once.
pub fn choose(kernel: &Path, initrd: &Path, progress: &Progress) -> Result<Accel> {
    if !Path::new("/dev/kvm").exists() {
        return Ok(Accel::Tcg);
    }
    let machine = [
        fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default(),
        fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
        Run::new(qemu::PROGRAM).arg("--version").text()?,
    ];
    let kept = cache::folder()?.join(format!("accel-{}", cache::key(machine)));
    match fs::read_to_string(&kept).as_deref() {
        Ok("kvm") => return Ok(Accel::Kvm),
        Ok("tcg") => return Ok(Accel::Tcg),
        _ => {}
    }
    progress.step("trying KVM with a short boot", 0.5);
    let works = trial(kernel, initrd)?;
    progress.done(if works {
        "KVM works"
    } else {
        "KVM does not work here: emulating"
    });
    fs::write(kept, if works { "kvm" } else { "tcg" })?;
    Ok(if works { Accel::Kvm } else { Accel::Tcg })
}

fn trial(kernel: &Path, initrd: &Path) -> Result<bool> {
    let folder = tempfile::tempdir()?;
    let serial = folder.path().join("serial");
    let mut child = qemu::probe(Accel::Kvm, kernel, initrd, &serial, folder.path())?;
    // The same boot takes 5 s when emulated.
    let ended = Deadline::secs(20).poll("the KVM trial", || {
        child.try_wait().context("wait for QEMU")
    });
    if ended.is_err() {
        child.kill()?;
        child.wait()?;
    }
    let text = fs::read(&serial).unwrap_or_default();
    Ok(String::from_utf8_lossy(&text).contains("repave-probe: alive"))
}
