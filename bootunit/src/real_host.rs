//! The real world behind [`Host`]: files, programs, devices and clocks of this machine.
//!
//! No decision is made here. Every write is durable when it returns, every program has
//! a deadline, and every path is taken as it is given.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::fcntl::{Flock, FlockArg};
use nix::libc::O_CLOEXEC;
use repave_containerd_clear::{ClearReport, ClearRequest};
use repave_plan::report::Cleared;
use repave_plan::step::StepState;
use repave_plan::survey::{PathFacts, Survey};
use repave_plan::units::{Bytes, UnixTime};
use repave_survey::block_io::BlockRead;
use repave_survey::containerd::Fate;
use repave_survey::host_tools::{HostTools, ToolOutput, Tools};
use repave_survey::mounts::{path_facts, read_mounts};
use repave_survey::read::{Detail, SurveyRequest, read_survey};
use repave_survey::root::Root;

use crate::block_io::BlockWrite;
use crate::device::DiskDev;
use crate::host::{Host, HostError, LockedDisk};
use crate::kernel_table::{KernelView, SysfsKernel};
use crate::state_dir::StateDir;
use crate::wait;

/// The largest file that is read whole: containerd's database is not read through here.
const MAX_READ: u64 = 32 * 1024 * 1024;

/// How long udev may hold the disk's lock.
pub const LOCK_LIMIT: Duration = Duration::from_secs(60);

/// How long a partition that something has open is waited for, from the moment the disk
/// was locked: udev and blkid let go within a second, a person's tool may take longer.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// This machine.
pub struct RealHost {
    state: StateDir,
    begun: Instant,
}

impl RealHost {
    /// This machine, with its state directory.
    pub fn new(state: StateDir) -> Self {
        Self {
            state,
            begun: Instant::now(),
        }
    }
}

fn root() -> Result<Root, HostError> {
    let path = Path::new("/");
    Root::at(path).map_err(file_error("open", path))
}

fn file_error<'p>(what: &'static str, path: &'p Path) -> impl FnOnce(io::Error) -> HostError + 'p {
    move |source| HostError::File {
        what,
        path: path.display().to_string(),
        source,
    }
}

/// `None` when the error only says that there is no such thing.
fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Makes the missing folders above a file, each durable in its own parent.
fn make_parents(path: &Path) -> io::Result<()> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    if parent.is_dir() {
        return Ok(());
    }
    make_parents(parent)?;
    match fs::create_dir(parent) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => sync_parent(parent),
    }
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    make_parents(path)?;
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(O_CLOEXEC)
        .open(&aside)?;
    if let Some(old) = if_there(fs::metadata(path))? {
        file.set_permissions(old.permissions())?;
    }
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&aside, path)?;
    sync_parent(path)
}

fn append_at(path: &Path, keep: u64, bytes: &[u8]) -> io::Result<()> {
    make_parents(path)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(O_CLOEXEC)
        .open(path)?;
    file.set_len(keep)?;
    file.seek(SeekFrom::Start(keep))?;
    file.write_all(bytes)?;
    file.sync_all()?;
    match keep {
        0 => sync_parent(path),
        _ => Ok(()),
    }
}

impl Host for RealHost {
    fn now(&self) -> UnixTime {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        UnixTime(since.map_or(0, |since| since.as_secs()))
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn survey(&self) -> Result<Survey, HostError> {
        let root = root()?;
        let state_dir = self.state.path().to_string_lossy();
        let request = SurveyRequest {
            root: &root,
            tools: &HostTools,
            now: self.now(),
            state_dir: &state_dir,
            policy: None,
            detail: Detail::Bound,
        };
        read_survey(&request).map_err(|source| HostError::Survey { source })
    }

    fn path_facts(&self, path: &str) -> Result<PathFacts, HostError> {
        let root = root()?;
        let survey_error = |source: repave_survey::mounts::MountError| HostError::Survey {
            source: source.into(),
        };
        let mounts = read_mounts(&root).map_err(survey_error)?;
        path_facts(&root, &mounts, path).map_err(survey_error)
    }

    fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, HostError> {
        let read = || -> io::Result<Option<Vec<u8>>> {
            let Some(file) = if_there(File::open(path))? else {
                return Ok(None);
            };
            let mut bytes = Vec::new();
            file.take(MAX_READ + 1).read_to_end(&mut bytes)?;
            Ok(Some(bytes))
        };
        match read().map_err(file_error("read", path))? {
            Some(bytes) if bytes.len() as u64 > MAX_READ => Err(HostError::TooLarge {
                path: path.display().to_string(),
                max: MAX_READ,
            }),
            found => Ok(found),
        }
    }

    fn list(&self, path: &Path) -> Result<Option<Vec<String>>, HostError> {
        let list = || -> io::Result<Option<Vec<String>>> {
            let Some(entries) = if_there(fs::read_dir(path))? else {
                return Ok(None);
            };
            let mut names = Vec::new();
            for entry in entries {
                names.push(entry?.file_name().to_string_lossy().into_owned());
            }
            names.sort();
            Ok(Some(names))
        };
        list().map_err(file_error("list", path))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), HostError> {
        replace(path, bytes).map_err(file_error("write", path))
    }

    fn append(&self, path: &Path, keep: u64, bytes: &[u8]) -> Result<(), HostError> {
        append_at(path, keep, bytes).map_err(file_error("append to", path))
    }

    fn remove(&self, path: &Path) -> Result<bool, HostError> {
        let remove = || -> io::Result<bool> {
            match if_there(fs::remove_file(path))? {
                Some(()) => sync_parent(path).map(|()| true),
                None => Ok(false),
            }
        };
        remove().map_err(file_error("remove", path))
    }

    fn open_disk(&self, node: &str) -> Result<Box<dyn LockedDisk>, HostError> {
        let failed = |source| HostError::Disk {
            node: node.to_owned(),
            source,
        };
        let lock = lock_disk(node).map_err(failed)?;
        let lock = lock.ok_or_else(|| HostError::Late {
            what: format!("the lock of {node}"),
            seconds: LOCK_LIMIT.as_secs(),
        })?;
        let kernel = SysfsKernel::new(&*lock, Path::new("/"), PATIENCE).map_err(failed)?;
        let dev = DiskDev::open(Path::new(node), None).map_err(|e| failed(io::Error::other(e)))?;
        Ok(Box::new(RealDisk {
            dev,
            kernel,
            _lock: lock,
        }))
    }

    fn run(&self, program: &str, args: &[&str], limit: Duration) -> Result<ToolOutput, HostError> {
        Ok(HostTools.run(program, args, limit)?)
    }

    fn wait_for(&self, path: &Path, limit: Duration) -> Result<(), HostError> {
        let there =
            wait::until(limit, || path.try_exists()).map_err(file_error("look for", path))?;
        match there {
            true => Ok(()),
            false => Err(HostError::Late {
                what: path.display().to_string(),
                seconds: limit.as_secs(),
            }),
        }
    }

    fn containerd_state(&self, request: &ClearRequest) -> Result<StepState, HostError> {
        repave_containerd_clear::state(request).map_err(|error| HostError::Containerd {
            source: Box::new(error),
        })
    }

    fn containerd_clear(&self, request: &ClearRequest) -> Result<Cleared, HostError> {
        repave_containerd_clear::clear(request)
            .map(summary)
            .map_err(|error| HostError::Containerd {
                source: Box::new(error),
            })
    }

    fn say(&self, line: &str) {
        // A console that cannot be written to must not stop a run.
        let _ = writeln!(io::stdout(), "repave: {line}");
    }
}

/// Takes the disk's lock as udev and systemd-repart do, so that neither looks at a
/// table that is being written.
fn lock_disk(node: &str) -> io::Result<Option<Flock<File>>> {
    let mut waiting = Some(
        OpenOptions::new()
            .read(true)
            .custom_flags(O_CLOEXEC)
            .open(node)?,
    );
    let mut lock = None;
    wait::until(LOCK_LIMIT, || {
        let Some(file) = waiting.take() else {
            return Ok(true);
        };
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(taken) => lock = Some(taken),
            Err((file, nix::errno::Errno::EWOULDBLOCK)) => waiting = Some(file),
            Err((_, errno)) => return Err(io::Error::from(errno)),
        }
        Ok(lock.is_some())
    })?;
    Ok(lock)
}

/// What clearing did, for the run's report.
fn summary(report: ClearReport) -> Cleared {
    let mut cleared = Cleared {
        bytes_to_pull: Bytes(report.bytes_to_pull),
        ..Cleared::default()
    };
    for image in report.images {
        let name = format!("{}/{}", image.namespace, image.name);
        match image.fate {
            Fate::Kept => {
                cleared.images_kept.insert(name, Bytes(image.bytes));
            }
            Fate::Dropped { why } => {
                cleared.images_dropped.insert(name, why.to_string());
            }
        }
    }
    if let Some(damaged) = report.damaged {
        cleared.notes.push(format!(
            "the database could not be read, images are lost: {damaged}"
        ));
    }
    for moved in report.moved {
        cleared
            .notes
            .push(format!("moved aside: {}", moved.from.display()));
    }
    cleared
}

/// A disk of this machine. The device is closed before the lock is given up.
struct RealDisk {
    dev: DiskDev,
    kernel: SysfsKernel,
    _lock: Flock<File>,
}

impl BlockRead for RealDisk {
    fn len(&self) -> u64 {
        self.dev.len()
    }

    fn block(&self) -> u32 {
        self.dev.block()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.dev.read_at(offset, buf)
    }
}

impl BlockWrite for RealDisk {
    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.dev.write_at(offset, buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.dev.flush()
    }
}

impl LockedDisk for RealDisk {
    fn kernel(&self) -> &dyn KernelView {
        &self.kernel
    }
}
