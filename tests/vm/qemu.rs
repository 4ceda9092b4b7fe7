//! QEMU's command line. The devices, their places and their names are the same for
//! each start of a bed, so that a saved guest can be loaded and `/dev/vda` is the
//! system disk.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use super::accel::Accel;
use super::command::Run;
use super::disk::{DISK_SERIAL, SECOND_SERIAL};

/// The emulator.
pub const PROGRAM: &str = "qemu-system-x86_64";

/// Everything that one start of QEMU depends on.
pub struct Start<'a> {
    /// How instructions are run.
    pub accel: Accel,
    /// The kernel's image.
    pub kernel: &'a Path,
    /// The initrd, injected files included.
    pub initrd: &'a Path,
    /// Words added to the kernel's command line.
    pub append: &'a str,
    /// The system disk's overlay.
    pub overlay: &'a Path,
    /// A second disk, raw or qcow2 by its name.
    pub second: Option<&'a Path>,
    /// A file that gets each write and flush of the system disk (dm-log-writes).
    pub log_writes: Option<&'a Path>,
    /// `-rtc base=` value.
    pub rtc: &'a str,
    /// End QEMU where the guest would reboot.
    pub no_reboot: bool,
    /// Outlive the thread that starts it.
    pub detached: bool,
    /// The guest reaches nothing but its host; the forwarded port still works.
    pub isolated: bool,
    /// The host's port that leads to the guest's port 22.
    pub ssh_port: u16,
    /// A saved guest's memory to go on from.
    pub incoming: Option<&'a Path>,
    /// Folder of the sockets; its path must be short (108 bytes for a socket).
    pub sockets: &'a Path,
    /// Folder of the logs.
    pub logs: &'a Path,
}

/// The control socket in the folder of sockets.
pub fn control_socket(sockets: &Path) -> PathBuf {
    sockets.join("ctl")
}

/// The QMP socket in the folder of sockets.
pub fn qmp_socket(sockets: &Path) -> PathBuf {
    sockets.join("qmp")
}

/// The serial console's file in the folder of logs.
pub fn serial_file(logs: &Path) -> PathBuf {
    logs.join("serial.log")
}

/// Starts QEMU. Its outputs go to files: a hung QEMU would hold a pipe open.
pub fn start(start: &Start) -> Result<Child> {
    let mut args = base(
        start.accel,
        start.kernel,
        start.initrd,
        &serial_file(start.logs),
    );
    let mut add = |text: String| args.push(text.into());
    add("-append".into());
    add(format!(
        "console=ttyS0 root=/dev/vda3 rw quiet loglevel=4 panic=-1 mitigations=off \
         systemd.ssh_auto=no {}",
        start.append
    ));
    if start.no_reboot {
        add("-no-reboot".into());
    }
    add("-rtc".into());
    // The virtual machine's clock: it stands still while a guest is being saved.
    add(format!("base={},clock=vm", start.rtc));
    add("-qmp".into());
    add(format!(
        "unix:{},server=on,wait=off",
        qmp_socket(start.sockets).display()
    ));

    add("-device".into());
    add("virtio-serial-pci,addr=0x3".into());
    add("-chardev".into());
    add(format!(
        "socket,id=ctl,path={},server=on,wait=off",
        control_socket(start.sockets).display()
    ));
    add("-device".into());
    add(format!(
        "virtserialport,chardev=ctl,name={}",
        repave_guest_agent::PORT_NAME
    ));

    // A test's disk need not survive the host: its flushes need not reach the host's.
    add("-blockdev".into());
    add(format!(
        "driver=qcow2,node-name=main,discard=unmap,cache.no-flush=on,\
         file.driver=file,file.cache.no-flush=on,file.filename={}",
        start.overlay.display()
    ));
    let mut main = "main";
    if let Some(log) = start.log_writes {
        File::create(log).with_context(|| format!("create {}", log.display()))?;
        add("-blockdev".into());
        add(format!(
            "driver=file,node-name=log,filename={}",
            log.display()
        ));
        add("-blockdev".into());
        add("driver=blklogwrites,node-name=logged,file=main,log=log,log-sector-size=512".into());
        main = "logged";
    }
    add("-device".into());
    add(format!(
        "virtio-blk-pci,drive={main},serial={DISK_SERIAL},write-cache=on,addr=0x4"
    ));
    // A second disk has a slot of its own, empty or not: it can come later, and the
    // machine of a saved guest stays the same.
    add("-device".into());
    add("pcie-root-port,id=second,chassis=1,addr=0x5".into());
    if let Some(second) = start.second.filter(|_| start.incoming.is_none()) {
        add("-blockdev".into());
        add(second_backend(second).to_string());
        add("-device".into());
        add(format!(
            "virtio-blk-pci,drive=second,serial={SECOND_SERIAL},bus=second"
        ));
    }

    let restrict = if start.isolated { "on" } else { "off" };
    add("-netdev".into());
    add(format!(
        "user,id=net,restrict={restrict},hostfwd=tcp:127.0.0.1:{}-:22",
        start.ssh_port
    ));
    add("-device".into());
    add("virtio-net-pci,netdev=net,addr=0x6,romfile=".into());
    add("-object".into());
    add("rng-random,id=rng,filename=/dev/urandom".into());
    add("-device".into());
    add("virtio-rng-pci,rng=rng,addr=0x7".into());
    if let Some(memory) = start.incoming {
        add("-incoming".into());
        add(format!("exec:zstd -dc {}", memory.display()));
    }
    spawn(args, start.logs, start.detached)
}

/// The block node of a second disk, for `-blockdev` and for QMP's `blockdev-add`.
pub fn second_backend(path: &Path) -> serde_json::Value {
    let format = if path.extension().is_some_and(|end| end == "qcow2") {
        "qcow2"
    } else {
        "raw"
    };
    serde_json::json!({
        "driver": format,
        "node-name": "second",
        "discard": "unmap",
        "file": { "driver": "file", "filename": path, "cache": { "no-flush": true } },
    })
}

/// Boots only the initrd, which says that it is alive and ends.
pub fn probe(
    accel: Accel,
    kernel: &Path,
    initrd: &Path,
    serial: &Path,
    logs: &Path,
) -> Result<Child> {
    let mut args = base(accel, kernel, initrd, serial);
    args.extend(
        [
            "-no-reboot",
            "-append",
            "console=ttyS0 quiet panic=-1 repave.probe",
        ]
        .map(Into::into),
    );
    spawn(args, logs, false)
}

fn base(accel: Accel, kernel: &Path, initrd: &Path, serial: &Path) -> Vec<OsString> {
    let mut args: Vec<OsString> = accel.arguments().map(Into::into).to_vec();
    args.extend(["-machine", "q35", "-m", "2048", "-smp", "2", "-nodefaults"].map(Into::into));
    args.extend(["-no-user-config", "-display", "none"].map(Into::into));
    args.extend([
        "-kernel".into(),
        kernel.into(),
        "-initrd".into(),
        initrd.into(),
    ]);
    args.extend([
        "-chardev".into(),
        format!("file,id=serial,path={}", serial.display()).into(),
    ]);
    args.extend(["-serial", "chardev:serial"].map(Into::into));
    args
}

fn spawn(args: Vec<OsString>, logs: &Path, detached: bool) -> Result<Child> {
    let path = logs.join("qemu.log");
    let log = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    // A test that is killed must not leave its guests behind.
    let mut command = match detached {
        true => Command::new(PROGRAM),
        false => {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", PROGRAM]);
            command
        }
    };
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("start {PROGRAM}"))
}

/// Makes a copy-on-write overlay over `backing`, which is only ever read.
pub fn make_overlay(backing: &Path, overlay: &Path) -> Result<()> {
    let format = if backing.extension().is_some_and(|end| end == "qcow2") {
        "qcow2"
    } else {
        "raw"
    };
    Run::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-F", format, "-b"])
        .args([backing, overlay])
        .run()
}
