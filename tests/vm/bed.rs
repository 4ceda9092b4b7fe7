//! Finds or builds the images of a bed, and starts guests from them.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use nix::unistd::Pid;

use super::accel::{self, Accel};
use super::command::Run;
use super::deadline::Deadline;
use super::disk::{self, Layout, Order};
use super::guest::{self, Programs};
use super::initrd;
use super::machine::Machine;
pub use super::options::{Image, StartOptions};
use super::progress::Progress;
use super::qmp::Qmp;
use super::tree::Tree;
use super::{cache, host, modules, oci, programs, qemu, recipe, rtc_base, tree, worker};

/// The images of one order, ready to be started.
#[derive(Debug, Clone)]
pub struct Bed {
    folder: PathBuf,
    order: Order,
    accel: Accel,
}

impl Bed {
    /// Finds the bed of this recipe in the cache, or builds what is missing of it
    /// (from nothing about 10 minutes on 2 cores).
    pub fn ensure(order: Order) -> Result<Bed> {
        let progress = Progress::start();
        host::check()?;
        if tree::is_kept()? {
            // Without the lock, so that a finished bed need not wait for another's build.
            let tree = tree::ensure(&progress)?;
            if let Some(modules) = modules::kept(&tree)? {
                let mut bed = Bed::of(&tree, &modules, order)?;
                if worker::saved(&bed).disk.exists() {
                    bed.accel = accel::choose(&bed.kernel(), &bed.initrd(), &progress)?;
                    return Ok(bed);
                }
            }
        }
        let _lock = cache::lock()?;
        let early = modules::start_early(&progress)?;
        let tree = tree::ensure(&progress)?;
        let modules = modules::ensure(&tree, early, &progress)?;
        let mut bed = Bed::of(&tree, &modules, order)?;
        fs::create_dir_all(&bed.folder)?;
        bed.make_boot_files(&tree)?;
        bed.accel = accel::choose(&bed.kernel(), &bed.initrd(), &progress)?;
        bed.make_base(&tree, &modules, &progress)?;
        worker::ensure(&bed, &progress)?;
        Ok(bed)
    }

    fn of(tree: &Tree, modules: &Path, order: Order) -> Result<Bed> {
        let name = modules
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let key = cache::key(
            recipe::SOURCES
                .iter()
                .copied()
                .chain([&*tree.packages, &name]),
        );
        Ok(Bed {
            folder: cache::folder()?.join("beds").join(key),
            order,
            accel: Accel::Tcg,
        })
    }

    /// Removes the beds of other recipes from the cache; gives how many there were.
    pub fn prune(&self) -> Result<usize> {
        let _lock = cache::lock()?;
        let mut count = 0;
        for entry in fs::read_dir(cache::folder()?.join("beds"))? {
            let path = entry?.path();
            if path != self.folder {
                cache::remove(&path)?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// The order of the two last partitions.
    pub fn order(&self) -> Order {
        self.order
    }

    /// The system without a pool, a raw disk. Read only.
    pub fn base(&self) -> PathBuf {
        self.folder.join(format!("base-{}.raw", self.order.name()))
    }

    /// The healthy worker's disk, shut down cleanly. Read only.
    pub fn worker(&self) -> PathBuf {
        self.folder
            .join(format!("worker-{}.qcow2", self.order.name()))
    }

    /// The private key that logs in as root.
    pub fn ssh_key(&self) -> PathBuf {
        self.folder.join("id_ed25519")
    }

    /// The name of the accelerator in use: `Kvm` or `Tcg`.
    pub fn accel(&self) -> String {
        format!("{:?}", self.accel)
    }

    /// Starts a guest; it is not waited for.
    pub fn start(&self, options: StartOptions) -> Result<Machine> {
        self.launch(options, None)
    }

    /// Goes on from the saved, healthy, running worker: it answers within seconds.
    /// The image must be `Worker` and the clock the saved one; injected files and
    /// kernel words take effect at its next boot.
    pub fn start_running(&self, mut options: StartOptions) -> Result<Machine> {
        if !matches!(options.image, Image::Worker) || options.rtc.is_some() {
            bail!("a saved worker has its own disk and clock");
        }
        let saved = worker::saved(self);
        let second = options.second_disk.take();
        options.image = Image::Over(saved.disk.clone());
        options.rtc = Some(rtc_base(saved.time()?));
        let mut machine = self.launch(options, Some(&saved.memory))?;
        Deadline::secs(120).poll("the saved guest to go on", || {
            if !machine.is_alive()? {
                bail!(
                    "QEMU could not load the saved guest; see {}",
                    machine.logs.display()
                );
            }
            let status = machine.qmp.execute("query-status", serde_json::json!({}))?;
            // It was stopped to be saved, and QEMU remembers that.
            if status["status"] == "paused" {
                machine.qmp.execute("cont", serde_json::json!({}))?;
            }
            Ok((status["status"] == "running").then_some(()))
        })?;
        machine.clock.1 = Instant::now();
        machine.wait_early(Deadline::secs(30))?;
        if let Some(second) = second {
            machine.attach_second(&second)?;
            machine.options.second_disk = Some(second);
        }
        Ok(machine)
    }

    fn launch(&self, options: StartOptions, incoming: Option<&Path>) -> Result<Machine> {
        let logs = new_log_folder(&options.label)?;
        let overlay = match &options.image {
            Image::Existing(overlay) => overlay.clone(),
            fresh => {
                let overlay = logs.join("disk.qcow2");
                let backing = match fresh {
                    Image::Worker => self.worker(),
                    Image::Base => self.base(),
                    Image::Over(image) | Image::Existing(image) => image.clone(),
                };
                qemu::make_overlay(&backing, &overlay)?;
                overlay
            }
        };
        let mut initrd = self.initrd();
        if !options.inject.is_empty() || options.inject_script.is_some() {
            let mut bytes = fs::read(&initrd)?;
            bytes.extend(initrd::injection(
                &options.inject,
                options.inject_script.as_deref(),
            ));
            initrd = logs.join("initrd");
            fs::write(&initrd, bytes)?;
        }
        let rtc = options
            .rtc
            .clone()
            .unwrap_or_else(|| rtc_base(SystemTime::now()));
        let log_writes = options.log_writes.then(|| logs.join("writes.log"));
        // Short, whatever the clone's path is.
        let sockets = tempfile::Builder::new()
            .prefix("repave-vm-")
            .tempdir()?
            .keep();
        let ssh_port = free_port()?;
        let child = qemu::start(&qemu::Start {
            accel: self.accel,
            kernel: &self.kernel(),
            initrd: &initrd,
            append: &options.append,
            overlay: &overlay,
            second: options.second_disk.as_deref(),
            log_writes: log_writes.as_deref(),
            rtc: &rtc,
            no_reboot: options.no_reboot,
            detached: options.detached,
            isolated: options.isolated,
            ssh_port,
            incoming,
            sockets: &sockets,
            logs: &logs,
        })?;
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        let qmp =
            Qmp::connect(&qemu::qmp_socket(&sockets), Deadline::secs(30)).with_context(|| {
                format!(
                    "QEMU said: {}",
                    fs::read_to_string(logs.join("qemu.log")).unwrap_or_default()
                )
            })?;
        let clock = (parse_rtc(&rtc)?, Instant::now());
        Ok(Machine {
            bed: self.clone(),
            options,
            overlay,
            logs,
            sockets,
            ssh_port,
            pid,
            child: Mutex::new(Some(child)),
            qmp,
            last_boot: Mutex::new(None),
            clock,
            keep: false,
        })
    }

    /// A bed known to be built, for a guest that runs already.
    pub(super) fn known(folder: PathBuf, order: Order) -> Bed {
        Bed {
            folder,
            order,
            accel: Accel::Tcg,
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn kernel(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    fn initrd(&self) -> PathBuf {
        self.folder.join("initrd")
    }

    fn make_boot_files(&self, tree: &Tree) -> Result<()> {
        if !self.ssh_key().exists() {
            let part = cache::part(&self.ssh_key())?;
            Run::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f"])
                .arg(&part)
                .run()?;
            let mut public = part.clone().into_os_string();
            public.push(".pub");
            fs::rename(public, self.folder.join("id_ed25519.pub"))?;
            cache::publish(&part, &self.ssh_key())?;
        }
        if !self.kernel().exists() {
            let part = cache::part(&self.kernel())?;
            fs::copy(
                tree.path
                    .join("boot")
                    .join(format!("vmlinuz-{}", tree.kernel)),
                &part,
            )?;
            cache::publish(&part, &self.kernel())?;
        }
        if !self.initrd().exists() {
            let part = cache::part(&self.initrd())?;
            fs::write(&part, initrd::build(tree)?)?;
            cache::publish(&part, &self.initrd())?;
        }
        Ok(())
    }

    fn make_base(&self, tree: &Tree, modules: &Path, progress: &Progress) -> Result<()> {
        if self.base().exists() {
            return Ok(());
        }
        progress.step("building the guest's own programs", 4.0);
        let (agent, cri) = programs::build()?;
        progress.step(&format!("making the {} disk", self.order.name()), 3.0);
        let root = cache::part(&self.folder.join("root"))?;
        let key = fs::read_to_string(self.folder.join("id_ed25519.pub"))?;
        guest::configure(
            tree,
            modules,
            &Programs {
                agent: &agent,
                cri: &cri,
            },
            &key,
            &root,
        )?;
        let part = cache::part(&self.base())?;
        disk::make_disk(&part, &Layout::worker(self.order))?;
        disk::fill_worker(&part, self.order, &root)?;
        cache::remove(&root)?;
        fs::set_permissions(&part, std::os::unix::fs::PermissionsExt::from_mode(0o444))?;
        cache::publish(&part, &self.base())
    }
}

fn new_log_folder(label: &str) -> Result<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("{label}-{}-{count}", std::process::id());
    let folder = std::path::absolute(programs::target_folder().join("vm").join(name))?;
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder)
}

/// A port that was free a moment ago; QEMU fails to start if somebody takes it.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn parse_rtc(text: &str) -> Result<SystemTime> {
    let seconds = Run::new("date")
        .args(["-u", "+%s", "-d"])
        .arg(text)
        .text()?;
    Ok(UNIX_EPOCH + Duration::from_secs(seconds.trim().parse()?))
}

/// The images' names, for those who import them again after a complete clear.
pub const IMAGES: [(&str, &str); 2] = [
    (oci::APP, "/opt/lab/lab.tar"),
    (oci::PAUSE, "/opt/lab/pause.tar"),
];
