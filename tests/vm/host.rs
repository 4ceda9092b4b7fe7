//! Prepares a fresh Debian 12 or 13 machine: installs what the bed needs and lacks.
//!
//! It says what it installs and why, and where it cannot (not root, no apt) it
//! fails once with the whole list.

use anyhow::{Context, Result, bail};
use nix::unistd::Uid;

use super::command::{Run, is_installed};
use super::progress::Progress;

/// A program (or file), the package that brings it, and what it is for.
const TOOLS: [(&str, &str, &str); 24] = [
    ("qemu-system-x86_64", "qemu-system-x86", "runs the guests"),
    ("qemu-img", "qemu-utils", "makes their copy-on-write disks"),
    (
        "mmdebstrap",
        "mmdebstrap",
        "makes the guest's tree from the registry",
    ),
    ("sgdisk", "gdisk", "partitions the guest's disk"),
    ("mkfs.vfat", "dosfstools", "makes its EFI partition"),
    ("mcopy", "mtools", "fills its EFI partition"),
    (
        "mkfs.ext4",
        "e2fsprogs",
        "makes its boot and root file systems",
    ),
    ("xz", "xz-utils", "unpacks kernel modules"),
    ("zstd", "zstd", "packs the memory of a saved guest"),
    ("depmod", "kmod", "indexes the guest's kernel modules"),
    (
        "ssh-keygen",
        "openssh-client",
        "makes the key to log in with",
    ),
    (
        "dbus-daemon",
        "dbus",
        "carries the private bus of the systemd suite",
    ),
    ("cc", "gcc", "links the Rust programs"),
    ("parted", "parted", "judges the tables that the tests write"),
    ("sfdisk", "fdisk", "judges the tables that the tests write"),
    (
        "systemd-analyze",
        "systemd",
        "judges the order of the units",
    ),
    (
        "mkfs.xfs",
        "xfsprogs",
        "makes signatures for the tests to find",
    ),
    (
        "mkfs.btrfs",
        "btrfs-progs",
        "makes signatures for the tests to find",
    ),
    (
        "mkfs.f2fs",
        "f2fs-tools",
        "makes signatures for the tests to find",
    ),
    (
        "mkfs.ntfs",
        "ntfs-3g",
        "makes signatures for the tests to find",
    ),
    (
        "mkfs.exfat",
        "exfatprogs",
        "makes signatures for the tests to find",
    ),
    (
        "cryptsetup",
        "cryptsetup-bin",
        "makes signatures for the tests to find",
    ),
    (
        "make-bcache",
        "bcache-tools",
        "makes signatures for the tests to find",
    ),
    // Debian 12's first releases came without it.
    (
        "/usr/share/keyrings/debian-archive-trixie-stable.gpg",
        "debian-archive-keyring",
        "proves the guest's packages",
    ),
];

const APT: [&str; 4] = ["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"];

/// Installs what is missing. Does nothing, and needs no root, when all is there.
pub fn set_up(progress: &Progress) -> Result<()> {
    let missing: Vec<_> = TOOLS.iter().filter(|tool| !is_installed(tool.0)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for (program, package, purpose) in &missing {
        progress.done(&format!(
            "missing: {program} ({purpose}); package {package}"
        ));
    }
    let packages: Vec<&str> = missing.iter().map(|tool| tool.1).collect();
    let by_hand = format!(
        "apt-get install --no-install-recommends {}",
        packages.join(" ")
    );
    if !Uid::effective().is_root() {
        bail!("not root, so nothing can be installed; as root run: {by_hand}");
    }
    if !is_installed("apt-get") {
        bail!(
            "no apt-get here; install these with your own package tool: {}",
            packages.join(" ")
        );
    }
    progress.step("reading the package lists", 2.0);
    Run::new("apt-get").args(APT).arg("update").run()?;
    progress.step(&format!("installing {}", packages.join(" ")), 2.0);
    if let Err(first) = install(&packages) {
        // A machine whose qemu-utils came from another suite (backports) than the one
        // that offers qemu-system-x86: "held broken packages". They must be of one
        // version, and only a downgrade of the first makes them so.
        progress.done("apt found no way; again with qemu-utils of qemu-system-x86's version");
        let version = candidate("qemu-system-x86")?;
        let pinned = format!("qemu-utils={version}");
        let mut packages: Vec<&str> = packages
            .into_iter()
            .filter(|package| *package != "qemu-utils")
            .collect();
        packages.push(&pinned);
        packages.push("--allow-downgrades");
        install(&packages).map_err(|second| second.context(format!("{first:#}\nand then")))?;
    }
    match TOOLS.iter().find(|tool| !is_installed(tool.0)) {
        Some((program, package, _)) => bail!("{package} is installed but brought no {program}"),
        None => Ok(()),
    }
}

/// Fails with the one command when something is missing: for those who only run.
pub fn check() -> Result<()> {
    match TOOLS.iter().find(|tool| !is_installed(tool.0)) {
        Some((program, ..)) => bail!("{program} is missing; as root run: cargo xtask vm setup"),
        None => Ok(()),
    }
}

fn install(packages: &[&str]) -> Result<()> {
    Run::new("apt-get")
        .args(APT)
        .args(["install", "--yes", "--no-install-recommends"])
        .args(packages)
        .run()
}

fn candidate(package: &str) -> Result<String> {
    let policy = Run::new("apt-cache").args(["policy", package]).text()?;
    parse_candidate(&policy).with_context(|| format!("apt knows no version of {package}"))
}

fn parse_candidate(policy: &str) -> Option<String> {
    let version = policy
        .lines()
        .find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    (version != "(none)").then(|| version.to_owned())
}

/// The mirror of the machine's own Debian sources: the first `deb` line or `URIs:`
/// that is not the security archive.
pub fn mirror() -> Result<String> {
    let targets = Run::new("apt-get")
        .args([
            "indextargets",
            "--format",
            "$(ORIGIN) $(LABEL) $(REPO_URI)",
            "Created-By: Packages",
        ])
        .text()?;
    parse_mirror(&targets)
        .context("no Debian archive in this machine's apt sources (run apt-get update, or add one)")
}

fn parse_mirror(targets: &str) -> Option<String> {
    let uri = targets
        .lines()
        .find_map(|line| line.strip_prefix("Debian Debian "))?;
    Some(uri.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_candidate_is_read_from_apt_cache_policy() {
        let policy = "qemu-utils:\n  Installed: (none)\n  Candidate: 1:7.2+dfsg-7+deb12u18\n";
        assert_eq!(
            parse_candidate(policy).as_deref(),
            Some("1:7.2+dfsg-7+deb12u18")
        );
        assert_eq!(parse_candidate("x:\n  Candidate: (none)\n"), None);
    }

    #[test]
    fn the_mirror_is_not_the_security_archive() {
        let targets = "Debian Debian-Security http://m/debian-security/\n\
                       NodeSource NodeSource https://n/\nDebian Debian http://m/debian/\n";
        assert_eq!(parse_mirror(targets).as_deref(), Some("http://m/debian"));
        assert_eq!(parse_mirror("Ubuntu Ubuntu http://u/\n"), None);
    }
}
