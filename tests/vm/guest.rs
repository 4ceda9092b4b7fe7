//! Turns the packages' tree into the guest: kernel modules, units, network, login,
//! containerd the way k3s runs it, the control agent.
//!
//! The set of units stays that of a real worker (ZFS's import, mount and event
//! units, networkd, sshd); only what costs boot time and touches no disk is masked.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use anyhow::{Context, Result};

use super::cache;
use super::command::Run;
use super::oci;
use super::tree::Tree;

const MASKED: [&str; 31] = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "systemd-tmpfiles-clean.timer",
    "getty@tty1.service",
    "serial-getty@ttyS0.service",
    "systemd-binfmt.service",
    "ldconfig.service",
    "systemd-journal-catalog-update.service",
    "systemd-hwdb-update.service",
    "systemd-firstboot.service",
    "systemd-update-done.service",
    "systemd-sysusers.service",
    "systemd-pstore.service",
    "systemd-networkd-persistent-storage.service",
    "systemd-nsresourced.socket",
    "systemd-mountfsd.socket",
    "systemd-udev-load-credentials.service",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "sys-kernel-config.mount",
    "sys-fs-fuse-connections.mount",
    "modprobe@configfs.service",
    "modprobe@drm.service",
    "modprobe@efi_pstore.service",
    "modprobe@fuse.service",
];

const AGENT_UNIT: &str = "\
[Unit]
Description=Lab control agent
# Answers from the first second on, and still when a boot was stopped.
DefaultDependencies=no
IgnoreOnIsolate=yes
StartLimitIntervalSec=0

[Service]
ExecStart=/usr/local/sbin/repave-guest-agent
Restart=always
KillMode=process
TasksMax=infinity
OOMScoreAdjust=-900

[Install]
WantedBy=sysinit.target
";

const NETWORK: &str = "\
[Match]
Driver=virtio_net

[Network]
DHCP=ipv4
LinkLocalAddressing=no
IPv6AcceptRA=no
";

/// Small files: path, mode, text.
const FILES: [(&str, u32, &str); 14] = [
    ("etc/hostname", 0o644, "worker1\n"),
    (
        "etc/hosts",
        0o644,
        "127.0.0.1 localhost\n127.0.1.1 worker1\n",
    ),
    ("etc/resolv.conf", 0o644, "nameserver 10.0.2.3\n"),
    (
        "etc/machine-id",
        0o444,
        "0123456789abcdef0123456789abcdef\n",
    ),
    ("etc/hostid", 0o644, "\x78\x56\x34\x12"),
    (
        "etc/fstab",
        0o644,
        "LABEL=root / ext4 defaults 0 1\nLABEL=boot /boot ext4 ro 0 0\n",
    ),
    ("etc/systemd/network/10-lab.network", 0o644, NETWORK),
    (
        "etc/systemd/system/repave-guest-agent.service",
        0o644,
        AGENT_UNIT,
    ),
    (
        "etc/systemd/system/k3s-agent.service",
        0o644,
        include_str!("guest/k3s-agent.service"),
    ),
    // What happened in the last seconds before a power cut must be readable after it.
    (
        "etc/systemd/journald.conf.d/lab.conf",
        0o644,
        "[Journal]\nStorage=persistent\nSyncIntervalSec=2s\nRateLimitIntervalSec=0\n",
    ),
    // Containers whose first process ignores SIGTERM would hold a power-off for 90 s.
    (
        "etc/systemd/system.conf.d/lab.conf",
        0o644,
        "[Manager]\nDefaultTimeoutStopSec=15s\n",
    ),
    (
        "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        0o644,
        include_str!("guest/containerd.toml"),
    ),
    (
        "usr/local/bin/k",
        0o755,
        "#!/bin/sh\nexec ctr -a /run/k3s/containerd/containerd.sock -n \"${NS:-k8s.io}\" \"$@\"\n",
    ),
    ("etc/ssh/sshd_config.d/lab.conf", 0o644, "UseDNS no\n"),
];

/// Programs built for the guest.
pub struct Programs<'a> {
    /// The control agent.
    pub agent: &'a Path,
    /// The CRI client.
    pub cri: &'a Path,
}

/// Copies `tree` to `target` and configures it there.
pub fn configure(
    tree: &Tree,
    modules: &Path,
    programs: &Programs,
    public_key: &str,
    target: &Path,
) -> Result<()> {
    Run::new("cp")
        .args(["-a", "--reflink=auto", "--"])
        .args([&tree.path, target])
        .run()?;
    let updates = format!("lib/modules/{}/updates/dkms", tree.kernel);
    for module in ["spl.ko", "zfs.ko"] {
        copy(
            &modules.join(module),
            target,
            &format!("{updates}/{module}"),
            0o644,
        )?;
    }
    Run::new("depmod")
        .arg("--basedir")
        .arg(target)
        .arg(&tree.kernel)
        .run()?;

    for (path, mode, text) in FILES {
        put(target, path, mode, text.as_bytes())?;
    }
    put(
        target,
        "root/.ssh/authorized_keys",
        0o600,
        public_key.as_bytes(),
    )?;
    fs::set_permissions(target.join("root/.ssh"), PermissionsExt::from_mode(0o700))?;
    copy(
        programs.agent,
        target,
        "usr/local/sbin/repave-guest-agent",
        0o755,
    )?;
    copy(programs.cri, target, "usr/local/bin/cri", 0o755)?;
    let busybox = fs::read(busybox(tree))?;
    put(target, "opt/lab/lab.tar", 0o644, &oci::app(&busybox)?)?;
    put(target, "opt/lab/pause.tar", 0o644, &oci::pause(&busybox)?)?;
    for folder in [
        "var/log/journal",
        "etc/cni/net.d",
        "var/lib/rancher/k3s/agent/containerd",
    ] {
        fs::create_dir_all(target.join(folder))?;
    }

    for unit in MASKED {
        let link = target.join("etc/systemd/system").join(unit);
        cache::remove(&link)?;
        symlink("/dev/null", link)?;
    }
    let systemctl = |verb: &str, unit: &str| {
        Run::new("chroot")
            .arg(target)
            .args(["systemctl", verb, unit])
            .run()
    };
    systemctl("disable", "containerd.service")?;
    systemctl("enable", "systemd-networkd.service")?;
    systemctl("enable", "repave-guest-agent.service")?;
    Run::new("chroot")
        .arg(target)
        .args(["passwd", "--quiet", "--delete", "root"])
        .run()
}

/// The static busybox of a tree.
pub fn busybox(tree: &Tree) -> std::path::PathBuf {
    tree.path.join("usr/bin/busybox")
}

/// Writes a file under `root`; never through a link that the tree has there.
fn put(root: &Path, path: &str, mode: u32, data: &[u8]) -> Result<()> {
    let path = root.join(path);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    cache::remove(&path)?;
    fs::write(&path, data).with_context(|| format!("write {}", path.display()))?;
    fs::set_permissions(&path, PermissionsExt::from_mode(mode))?;
    Ok(())
}

fn copy(from: &Path, root: &Path, path: &str, mode: u32) -> Result<()> {
    let data = fs::read(from).with_context(|| format!("read {}", from.display()))?;
    put(root, path, mode, &data)
}
