//! Guests that outlive the process that started them: detached, or saved to files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use nix::unistd::Pid;
use serde_json::json;

use super::bed::{Bed, StartOptions};
use super::deadline::Deadline;
use super::machine::Machine;
use super::qemu;
use super::qmp::Qmp;

/// How another process reaches a detached guest.
#[derive(serde::Serialize, serde::Deserialize)]
struct Reach {
    folder: PathBuf,
    order: String,
    overlay: PathBuf,
    logs: PathBuf,
    sockets: PathBuf,
    ssh_port: u16,
    pid: i32,
}

impl Machine {
    /// Leaves QEMU running and writes to `note` how to reach it.
    pub fn detach(self, note: &Path) -> Result<()> {
        let reach = Reach {
            folder: self.bed.folder().to_owned(),
            order: self.bed.order().name().to_owned(),
            overlay: self.overlay.clone(),
            logs: self.logs.clone(),
            sockets: self.sockets.clone(),
            ssh_port: self.ssh_port,
            pid: self.pid.as_raw(),
        };
        fs::write(note, serde_json::to_vec_pretty(&reach)?)?;
        self.child
            .lock()
            .map_err(|_| anyhow!("a lock is poisoned"))?
            .take();
        Ok(())
    }

    /// Reaches a detached guest. Dropping the machine leaves it running.
    pub fn attach(note: &Path) -> Result<Machine> {
        let bytes = fs::read(note).with_context(|| format!("read {}", note.display()))?;
        let reach: Reach = serde_json::from_slice(&bytes)?;
        let qmp = Qmp::connect(&qemu::qmp_socket(&reach.sockets), Deadline::secs(1))?;
        Ok(Machine {
            bed: Bed::known(reach.folder, reach.order.parse()?),
            options: StartOptions::new("attached"),
            overlay: reach.overlay,
            logs: reach.logs,
            sockets: reach.sockets,
            ssh_port: reach.ssh_port,
            pid: Pid::from_raw(reach.pid),
            child: Mutex::new(None),
            qmp,
            last_boot: Mutex::new(None),
            clock: (SystemTime::now(), Instant::now()),
            keep: true,
        })
    }

    /// Stops the guest between two instructions, writes its memory to `memory` and
    /// ends QEMU; the overlay and the memory together can be started from.
    pub(super) fn save(&self, memory: &Path) -> Result<()> {
        self.qmp.execute("stop", json!({}))?;
        let command = format!("exec:zstd -q -1 -T0 -f -o {}", memory.display());
        self.qmp.execute("migrate", json!({ "uri": command }))?;
        Deadline::secs(120).poll("the guest's memory to be written", || {
            let state = self.qmp.execute("query-migrate", json!({}))?;
            match state["status"].as_str() {
                Some("completed") => Ok(Some(())),
                Some("failed" | "cancelled") => bail!("QEMU could not save: {state}"),
                _ => Ok(None),
            }
        })?;
        self.qmp.execute("quit", json!({}))?;
        self.wait_end(Deadline::secs(30))
    }
}
