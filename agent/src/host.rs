//! The host that is looked at and armed: its root, its programs, its systemd.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use repave_survey::host_tools::{HostTools, ToolError, ToolOutput, Tools};
use repave_survey::root::Root;
use repave_systemd::bus::SYSTEM_BUS;
use repave_systemd::{BusSystemd, OfflineSystemd, RootFiles, Systemd};

/// The bus's socket below a root.
const SOCKET: &str = "run/dbus/system_bus_socket";

/// Why a command cannot be done here.
#[derive(Debug, thiserror::Error)]
pub enum HostFault {
    /// Not root.
    #[error("{what} needs root")]
    NotRoot {
        /// What was asked for.
        what: &'static str,
    },
    /// There is no such root directory.
    #[error("open the root directory {path}")]
    Root {
        /// The path given.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The boot program is not where it should be.
    #[error("read the boot program {path}")]
    BootBinary {
        /// The path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl HostFault {
    /// What a person does about it.
    pub fn way_out(&self) -> String {
        match self {
            HostFault::NotRoot { .. } => "run it as root".to_owned(),
            HostFault::Root { .. } => "name the host's root directory with --root".to_owned(),
            HostFault::BootBinary { .. } => {
                "put repave-boot next to repave-agent, or name it with --boot-binary".to_owned()
            }
        }
    }
}

/// Opens the root; the running system's own only as root, because disks, unit files and
/// what the state directory holds are root's.
pub fn open_root(path: &Path, what: &'static str) -> Result<Root, HostFault> {
    let root = Root::at(path).map_err(|source| HostFault::Root {
        path: path.to_owned(),
        source,
    })?;
    match root.path() == Path::new("/") && !nix::unistd::geteuid().is_root() {
        true => Err(HostFault::NotRoot { what }),
        false => Ok(root),
    }
}

/// The programs below a root, started by the path they have from here.
#[derive(Debug)]
pub struct RootTools {
    prefix: String,
}

impl RootTools {
    /// The programs of this root.
    pub fn of(root: &Root) -> Self {
        let path = root.path().display().to_string();
        Self {
            prefix: path.trim_end_matches('/').to_owned(),
        }
    }
}

impl Tools for RootTools {
    fn run(&self, program: &str, args: &[&str], limit: Duration) -> Result<ToolOutput, ToolError> {
        HostTools.run(&format!("{}{program}", self.prefix), args, limit)
    }
}

/// The files and the systemd of this root. The running system's is asked over its bus; a
/// root whose bus has a socket is a running host seen from a pod; any other is a tree
/// that will be booted later.
pub fn open_host(root: &Root) -> anyhow::Result<(RootFiles, Box<dyn Systemd>)> {
    let path = root.path();
    let files = RootFiles::open(path)?;
    if path == Path::new("/") {
        return Ok((files, Box::new(BusSystemd::connect(SYSTEM_BUS)?)));
    }
    let socket = path.join(SOCKET);
    let systemd: Box<dyn Systemd> = match socket.exists() {
        true => Box::new(BusSystemd::connect(&format!(
            "unix:path={}",
            socket.display()
        ))?),
        false => Box::new(OfflineSystemd::open(path).context("open the root for its units")?),
    };
    Ok((files, systemd))
}
