//! Makes the healthy worker: boots the base, creates pool, datasets and volumes,
//! imports the images, runs a container and a pod, shuts down cleanly. Then boots
//! the worker once more, and saves it while it runs.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use super::bed::{Bed, Image, StartOptions};
use super::cache;
use super::deadline::Deadline;
use super::progress::Progress;

/// A worker saved while it ran.
pub struct Saved {
    /// Its disk, on top of the worker's image.
    pub disk: PathBuf,
    /// Its memory.
    pub memory: PathBuf,
    clock: PathBuf,
}

impl Saved {
    /// What its clock showed.
    pub fn time(&self) -> Result<SystemTime> {
        let text = fs::read_to_string(&self.clock)
            .with_context(|| format!("read {}", self.clock.display()))?;
        Ok(UNIX_EPOCH + Duration::from_secs(text.trim().parse()?))
    }
}

/// Where the bed's saved worker is.
pub fn saved(bed: &Bed) -> Saved {
    let folder = bed.folder().join(format!("running-{}", bed.order().name()));
    Saved {
        disk: folder.join("disk.qcow2"),
        memory: folder.join("memory.zst"),
        clock: folder.join("clock"),
    }
}

/// Makes what is missing.
pub fn ensure(bed: &Bed, progress: &Progress) -> Result<()> {
    if !bed.worker().exists() {
        progress.step("booting the base to make a worker of it", 2.0);
        make(bed).context("make the worker")?;
    }
    if !saved(bed).disk.exists() {
        progress.step("booting the worker to save it while it runs", 1.0);
        save(bed).context("save the running worker")?;
        progress.done(&format!("the {} worker is ready", bed.order().name()));
    }
    Ok(())
}

fn make(bed: &Bed) -> Result<()> {
    let label = format!("make-{}", bed.order().name());
    let mut machine = bed.start(StartOptions::new(&label).image(Image::Base))?;
    machine.keep_disk();
    machine.wait_boot(Deadline::secs(900))?;
    let done = machine.exec_for(900, include_str!("guest/make-worker.sh"))?;
    if done.rc != 0 {
        bail!("exit {}\n{}\n{}", done.rc, done.stdout, done.stderr);
    }
    machine.power_off(Deadline::secs(600))?;
    let part = cache::part(&bed.worker())?;
    fs::copy(machine.overlay(), &part)?;
    fs::remove_file(machine.overlay())?;
    fs::set_permissions(&part, std::os::unix::fs::PermissionsExt::from_mode(0o444))?;
    cache::publish(&part, &bed.worker())
}

fn save(bed: &Bed) -> Result<()> {
    let label = format!("save-{}", bed.order().name());
    let mut machine = bed.start(StartOptions::new(&label))?;
    machine.keep_disk();
    machine.wait_boot(Deadline::secs(900))?;
    machine.wait_active("k3s-agent.service", Deadline::secs(600))?;
    machine.exec_ok(
        "cri up svc2 docker.io/library/lab:1 /bin/sh -c 'trap \"exit 0\" TERM; sleep 1000000 & wait' \
         && cri ps | grep 'svc2 Running' && sync",
    )?;
    let seconds = machine.exec_ok("date +%s")?;
    let saved = saved(bed);
    let folder = saved.disk.parent().context("the saved worker's folder")?;
    let part = cache::part(folder)?;
    fs::create_dir(&part)?;
    machine.save(&part.join("memory.zst"))?;
    fs::copy(machine.overlay(), part.join("disk.qcow2"))?;
    fs::remove_file(machine.overlay())?;
    fs::write(part.join("clock"), seconds)?;
    cache::publish(&part, folder)
}
