//! Runs host programs: the only `std::process::Command` of the bed besides QEMU's.
//!
//! A failure carries the whole command line and the end of what it printed; long
//! builds print into a log file, which the error names.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// A host command in the making.
pub struct Run {
    line: String,
    command: Command,
    log: Option<PathBuf>,
}

impl Run {
    /// A program found by PATH, run in the C locale without questions asked.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(&program);
        command
            .stdin(Stdio::null())
            .env("LC_ALL", "C")
            .env("DEBIAN_FRONTEND", "noninteractive");
        Run {
            line: program.as_ref().to_string_lossy().into_owned(),
            command,
            log: None,
        }
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        for arg in args {
            self.line.push(' ');
            self.line.push_str(&arg.as_ref().to_string_lossy());
            self.command.arg(arg);
        }
        self
    }

    /// Adds one argument.
    pub fn arg(self, arg: impl Into<OsString>) -> Self {
        self.args([arg.into()])
    }

    /// Sets a variable of the program's environment.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Takes a variable out of the program's environment.
    pub fn without_env(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Sends both outputs to a file.
    pub fn log(mut self, path: &Path) -> Self {
        self.log = Some(path.to_owned());
        self
    }

    /// Runs to the end; gives stdout (empty when logged to a file).
    pub fn output(mut self) -> Result<Vec<u8>> {
        if let Some(path) = &self.log {
            let log = File::create(path).with_context(|| format!("create {}", path.display()))?;
            self.command.stdout(log.try_clone()?).stderr(log);
        }
        let done = self
            .command
            .output()
            .with_context(|| format!("start `{}`", self.line))?;
        if done.status.success() {
            return Ok(done.stdout);
        }
        let said = match &self.log {
            Some(path) => {
                let log = std::fs::read(path).unwrap_or_default();
                format!("{}\n(all of it in {})", tail(&log), path.display())
            }
            None => format!("{}{}", tail(&done.stdout), tail(&done.stderr)),
        };
        bail!("`{}` ended with {}:\n{said}", self.line, done.status)
    }

    /// Runs to the end and forgets what it printed.
    pub fn run(self) -> Result<()> {
        self.output().map(drop)
    }

    /// Runs to the end; gives stdout as text.
    pub fn text(self) -> Result<String> {
        Ok(String::from_utf8(self.output()?)?)
    }
}

fn tail(bytes: &[u8]) -> String {
    let start = bytes.len().saturating_sub(3000);
    String::from_utf8_lossy(&bytes[start..]).into_owned()
}

/// Whether a program is somewhere in PATH or in the system folders that root's
/// PATH may lack.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .any(|folder| folder.join(program).is_file())
}
