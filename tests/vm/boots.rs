//! Waiting for a guest's boots: the first, the next, the one after a reboot.

use anyhow::{Context, Result, anyhow, bail};

use super::control;
use super::deadline::Deadline;
use super::machine::Machine;
use super::qemu;

/// A boot that has come to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boot {
    /// The kernel's boot id.
    pub id: String,
    /// `systemctl is-system-running`: running, degraded, maintenance.
    pub state: String,
}

impl Machine {
    /// Waits until the guest answers, then until systemd has no start job left.
    pub fn wait_boot(&self, deadline: Deadline) -> Result<Boot> {
        let last = self.wait_answer(None, deadline)?;
        self.wait_started(last, deadline)
    }

    /// The same for the boot after the last one seen: for a guest that reboots itself.
    pub fn wait_next_boot(&self, deadline: Deadline) -> Result<Boot> {
        let last = self.known_boot()?;
        let next = self.wait_answer(last, deadline)?;
        self.wait_started(next, deadline)
    }

    /// Waits only until the agent answers, early in the boot.
    pub fn wait_early(&self, deadline: Deadline) -> Result<()> {
        self.wait_answer(None, deadline).map(drop)
    }

    /// Reboots by systemd and waits for the next boot.
    pub fn reboot(&self, deadline: Deadline) -> Result<Boot> {
        if self.known_boot()?.is_none() {
            self.wait_answer(None, deadline)?;
        }
        self.exec_ok("systemctl reboot --no-block")?;
        self.wait_next_boot(deadline)
    }

    fn known_boot(&self) -> Result<Option<String>> {
        Ok(self
            .last_boot
            .lock()
            .map_err(|_| anyhow!("a lock is poisoned"))?
            .clone())
    }

    /// Waits for an answer of a boot other than `not`, remembers and gives its id.
    fn wait_answer(&self, not: Option<String>, deadline: Deadline) -> Result<Option<String>> {
        let id = deadline.poll("the guest's agent to answer", || {
            if !self.is_alive()? {
                bail!("QEMU ended; its log is in {}", self.logs.display());
            }
            // A request can be lost in a reset: then ask again. Patience otherwise: a
            // busy guest may need seconds to answer, and asking anew starts over.
            let resets = self.qmp.resets();
            let alive = || match self.is_alive()? && self.qmp.resets() == resets {
                true => Ok(()),
                false => bail!("the guest was reset or ended"),
            };
            let socket = qemu::control_socket(&self.sockets);
            let patience = Deadline::secs(deadline.left().as_secs().clamp(1, 20));
            match control::request(&socket, "hello", Vec::new(), patience, alive) {
                Ok(answer) if not.as_deref() != Some(&answer.text(0)) => Ok(Some(answer.text(0))),
                _ => Ok(None),
            }
        });
        let id = id.with_context(|| format!("the console showed:\n{}", self.end_of_serial()))?;
        *self
            .last_boot
            .lock()
            .map_err(|_| anyhow!("a lock is poisoned"))? = Some(id.clone());
        Ok(Some(id))
    }

    fn wait_started(&self, id: Option<String>, deadline: Deadline) -> Result<Boot> {
        let mut id = id.unwrap_or_default();
        loop {
            let seconds = deadline.left().as_secs().max(1);
            let resets = self.qmp.resets();
            match self.exec_for(seconds, "systemctl is-system-running --wait") {
                Ok(done)
                    if matches!(done.stdout.trim(), "running" | "degraded" | "maintenance") =>
                {
                    return Ok(Boot {
                        id,
                        state: done.stdout.trim().to_owned(),
                    });
                }
                Ok(done) if deadline.passed() => bail!("the boot did not end: {done:?}"),
                // Not reachable yet, or the guest went into its next boot meanwhile.
                Ok(_) => {}
                Err(_) if self.qmp.resets() != resets && self.is_alive()? => {}
                Err(err) => {
                    return Err(
                        err.context(format!("the console showed:\n{}", self.end_of_serial()))
                    );
                }
            }
            id = self.wait_answer(None, deadline)?.unwrap_or_default();
        }
    }
}
