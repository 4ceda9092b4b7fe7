//! How a guest is to be started.

use std::path::PathBuf;

use super::initrd::Inject;

/// What a guest starts from.
#[derive(Debug, Clone)]
pub enum Image {
    /// The healthy worker: pool, datasets, volumes, images, a pod's leftovers.
    Worker,
    /// The installed system without a pool.
    Base,
    /// A new overlay over any image.
    Over(PathBuf),
    /// An overlay as an earlier guest left it; the new guest takes it over.
    Existing(PathBuf),
}

/// How a guest is started. `StartOptions::new("name-of-the-test")` is a worker.
#[derive(Debug, Clone)]
pub struct StartOptions {
    /// Names the folder of the logs.
    pub label: String,
    /// What to start from.
    pub image: Image,
    /// The clock at the start, `2026-01-31T12:00:00`; the host's time when `None`.
    pub rtc: Option<String>,
    /// A second disk's image, raw or .qcow2; it is written to.
    pub second_disk: Option<PathBuf>,
    /// Log each write and flush of the system disk (`Machine::write_log`).
    pub log_writes: bool,
    /// End QEMU where the guest would reboot.
    pub no_reboot: bool,
    /// Cut the guest's network off from all but its host.
    pub isolated: bool,
    /// Files put into the root before systemd starts.
    pub inject: Vec<Inject>,
    /// A shell script for the initrd, run with the root at /newroot.
    pub inject_script: Option<String>,
    /// Words for the kernel's command line.
    pub append: String,
    /// Let QEMU outlive the thread that started it.
    pub detached: bool,
}

impl StartOptions {
    /// A healthy worker with the host's time and one disk.
    pub fn new(label: &str) -> Self {
        StartOptions {
            label: label.to_owned(),
            image: Image::Worker,
            rtc: None,
            second_disk: None,
            log_writes: false,
            no_reboot: false,
            isolated: false,
            inject: Vec::new(),
            inject_script: None,
            append: String::new(),
            detached: false,
        }
    }

    /// The same from another image.
    pub fn image(mut self, image: Image) -> Self {
        self.image = image;
        self
    }
}
