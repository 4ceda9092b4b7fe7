//! What the bed is made of, as data: packages, suite, and the sources whose change
//! makes a cached bed stale. Versions are not written here: they are what the
//! mirror gives, recorded when a tree is made, and part of the bed's key.

use anyhow::{Result, bail};

/// The guest's Debian release.
pub const SUITE: &str = "trixie";
/// ZFS is in contrib.
pub const COMPONENTS: &str = "main contrib";
/// Keeps the guest small; nobody reads its manual pages.
pub const DPKG_OPTIONS: [&str; 4] = [
    "force-unsafe-io",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
];

/// The guest's packages, without their recommendations.
pub fn guest_packages(arch: &str) -> Vec<String> {
    let kernel = format!("linux-image-cloud-{arch}");
    let mut packages = vec!["systemd", "systemd-sysv", "udev", "dbus", "kmod", &kernel];
    packages.extend([
        "zfsutils-linux",
        "zfs-zed",
        "containerd",
        "runc",
        "gdisk",
        "util-linux",
    ]);
    packages.extend([
        "fdisk",
        "parted",
        "e2fsprogs",
        "dosfstools",
        "dmsetup",
        "iproute2",
    ]);
    packages.extend([
        "openssh-server",
        "strace",
        "jq",
        "procps",
        "psmisc",
        "lsof",
        "less",
    ]);
    packages.extend(["mount", "bsdextrautils", "busybox-static"]);
    packages.into_iter().map(str::to_owned).collect()
}

/// What the module build needs besides the `zfs-dkms` it installs last.
pub fn builder_packages(arch: &str) -> Vec<String> {
    let headers = format!("linux-headers-cloud-{arch}");
    ["dkms", &headers, "build-essential", "xz-utils", "zstd"]
        .map(str::to_owned)
        .to_vec()
}

/// Debian's name of the host's architecture, which is the guest's.
pub fn debian_arch() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        other => bail!("the VM bed knows no QEMU machine for {other} yet: run it on x86_64"),
    }
}

/// The files whose text decides what a bed is. A change of any makes a new bed.
pub const SOURCES: [&str; 14] = [
    include_str!("recipe.rs"),
    include_str!("guest.rs"),
    include_str!("oci.rs"),
    include_str!("disk.rs"),
    include_str!("initrd.rs"),
    include_str!("worker.rs"),
    include_str!("qemu.rs"),
    include_str!("guest/init"),
    include_str!("guest/make-worker.sh"),
    include_str!("guest/k3s-agent.service"),
    include_str!("guest/containerd.toml"),
    include_str!("../guest-agent/src/main.rs"),
    include_str!("../guest-agent/src/lib.rs"),
    include_str!("../cri-client/src/main.rs"),
];
