//! The lab's agent in the guest: answers requests from the virtio-serial port.
//!
//! It starts before sysinit.target and outlives emergency.target, so that a boot
//! that was stopped can still be looked at. One request at a time; it never
//! exits by itself, because a test that lost its guest agent learns nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use repave_guest_agent::{Frame, FrameReader, PORT_NAME, WireError};

const PORTS: &str = "/sys/class/virtio-ports";
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

fn main() -> ExitCode {
    match serve() {
        Ok(never) => match never {},
        Err(err) => {
            eprintln!("repave-guest-agent: {err}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<std::convert::Infallible> {
    let path = wait_for_port()?;
    let mut port = OpenOptions::new().read(true).write(true).open(path)?;
    let mut requests = FrameReader::new(port.try_clone()?);
    loop {
        match requests.next_frame() {
            Ok(request) => answer(&request).write(&mut port)?,
            // The kernel answers a read with end of file for as long as nobody is
            // connected at the host's end, and has no event for "connected now".
            Err(WireError::Closed) => pause(Duration::from_millis(20)),
            Err(WireError::Field { .. }) => {}
            Err(WireError::Io(err)) => return Err(err),
        }
    }
}

fn wait_for_port() -> io::Result<PathBuf> {
    for _ in 0..600 {
        if let Ok(ports) = fs::read_dir(PORTS) {
            for port in ports {
                let port = port?.path();
                if fs::read_to_string(port.join("name"))?.trim() == PORT_NAME
                    && let Some(name) = port.file_name()
                {
                    return Ok(Path::new("/dev").join(name));
                }
            }
        }
        pause(Duration::from_millis(50));
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        format!("no port named {PORT_NAME}"),
    ))
}

#[expect(
    clippy::disallowed_methods,
    reason = "sysfs and a closed port give no event to wait for"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

fn answer(request: &Frame) -> Frame {
    let result = match request.kind.as_str() {
        "hello" => hello(),
        "exec" => exec(request),
        "push" => push(request),
        "pull" => fs::read(request.text(0)).map(|bytes| vec![bytes]),
        other => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("no request {other}"),
        )),
    };
    let (kind, fields) = match result {
        Ok(fields) => ("ok", fields),
        Err(err) => ("err", vec![err.to_string().into_bytes()]),
    };
    Frame {
        nonce: request.nonce,
        kind: kind.to_owned(),
        fields,
    }
}

/// Gives the boot id and the uptime in seconds.
fn hello() -> io::Result<Vec<Vec<u8>>> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let uptime = fs::read_to_string("/proc/uptime")?;
    let seconds = uptime.split(' ').next().unwrap_or_default();
    Ok(vec![
        boot.trim().as_bytes().to_vec(),
        seconds.as_bytes().to_vec(),
    ])
}

/// Takes a time limit in ms and the arguments; gives exit code, "1" when the time
/// was up, stdout and stderr. The outputs go to memory files, not pipes: a pipe
/// stays open for as long as any daemon started by the command lives.
fn exec(request: &Frame) -> io::Result<Vec<Vec<u8>>> {
    let limit: u64 = request.text(0).parse().map_err(io::Error::other)?;
    let mut out = memory_file()?;
    let mut err = memory_file()?;
    let mut child = Command::new(request.text(1))
        .args(
            request
                .fields
                .iter()
                .skip(2)
                .map(|arg| String::from_utf8_lossy(arg).into_owned()),
        )
        .env_clear()
        .envs([
            ("PATH", PATH),
            ("HOME", "/root"),
            ("LANG", "C.UTF-8"),
            ("TERM", "dumb"),
        ])
        .current_dir("/root")
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(err.try_clone()?)
        .process_group(0)
        .spawn()?;
    let group = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    let (ended, wait) = mpsc::channel();
    std::thread::spawn(move || ended.send(child.wait()));
    let mut late = false;
    let status = match wait.recv_timeout(Duration::from_millis(limit)) {
        Ok(status) => status?,
        Err(_) => {
            late = true;
            killpg(group, Signal::SIGKILL)?;
            wait.recv().map_err(io::Error::other)??
        }
    };
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    Ok(vec![
        code.to_string().into_bytes(),
        if late { b"1".to_vec() } else { b"0".to_vec() },
        contents(&mut out)?,
        contents(&mut err)?,
    ])
}

fn memory_file() -> io::Result<File> {
    Ok(File::from(memfd_create(c"output", MFdFlags::MFD_CLOEXEC)?))
}

fn contents(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Takes a path, a mode in octal and the bytes. The file is replaced by rename,
/// so that a running program can be replaced too.
fn push(request: &Frame) -> io::Result<Vec<Vec<u8>>> {
    let path = PathBuf::from(request.text(0));
    let mode = u32::from_str_radix(&request.text(1), 8).map_err(io::Error::other)?;
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut fresh = path.clone().into_os_string();
    fresh.push(".pushed");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&fresh)?;
    file.write_all(request.field(2))?;
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))?;
    file.sync_all()?;
    fs::rename(fresh, path)?;
    Ok(Vec::new())
}
