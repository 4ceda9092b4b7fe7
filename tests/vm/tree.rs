//! Makes Debian trees from the registry, and keeps the guest's.
//!
//! A kept tree is named by its recipe; next to it stands the list of package
//! versions it got, which is part of each bed's key.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::unistd::Uid;

use super::command::Run;
use super::progress::Progress;
use super::{cache, host, recipe};

/// The guest's tree, as the packages left it. Never changed afterwards.
pub struct Tree {
    /// Its root.
    pub path: PathBuf,
    /// `name version` lines of all its packages.
    pub packages: String,
    /// The kernel's release, as `uname -r` will say it.
    pub kernel: String,
    /// The version of OpenZFS, Debian's revision included.
    pub zfs: String,
}

/// Where the guest's tree is or will be.
fn guest_path() -> Result<PathBuf> {
    let arch = recipe::debian_arch()?;
    let mut parts = vec![
        recipe::SUITE.to_owned(),
        recipe::COMPONENTS.to_owned(),
        arch.to_owned(),
    ];
    parts.extend(recipe::guest_packages(arch));
    parts.extend(recipe::DPKG_OPTIONS.map(str::to_owned));
    Ok(cache::folder()?
        .join("trees")
        .join(format!("guest-{}", cache::key(parts))))
}

/// Whether the guest's tree is kept already.
pub fn is_kept() -> Result<bool> {
    Ok(guest_path()?.is_dir())
}

/// Finds the guest's tree or makes it.
pub fn ensure(progress: &Progress) -> Result<Tree> {
    let path = guest_path()?;
    if !path.is_dir() {
        progress.step("making the guest's tree from the registry", 9.0);
        let part = cache::part(&path)?;
        make(&part, &recipe::guest_packages(recipe::debian_arch()?), None)?;
        cache::publish(&part, &path)?;
        progress.done("the guest's tree is made");
    }
    describe(path)
}

/// Makes a tree with `packages` at `target`; `last` is installed once the others
/// are configured.
pub fn make(target: &Path, packages: &[String], last: Option<&str>) -> Result<()> {
    if !Uid::effective().is_root() {
        bail!("making the guest's tree needs root (mount and chroot)");
    }
    let mut sources = target.to_owned().into_os_string();
    sources.push(".list");
    let mirror = host::mirror()?;
    let line = format!(
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {} {}\n",
        recipe::SUITE,
        recipe::COMPONENTS
    );
    fs::write(&sources, line)?;
    let mut log = target.to_owned().into_os_string();
    log.push(".log");
    let mut args = vec!["--mode=root".to_owned(), "--variant=minbase".to_owned()];
    args.push(format!("--include={}", packages.join(",")));
    args.push("--aptopt=APT::Install-Recommends \"false\"".to_owned());
    args.extend(
        acquire_options()?
            .into_iter()
            .map(|option| format!("--aptopt={option}")),
    );
    args.extend(recipe::DPKG_OPTIONS.map(|option| format!("--dpkgopt={option}")));
    if let Some(package) = last {
        args.push(format!(
            "--customize-hook=chroot \"$1\" apt-get install --yes --no-install-recommends {package}"
        ));
    }
    args.push(recipe::SUITE.to_owned());
    // No initramfs: the bed boots from its own, and making one takes 20 s.
    Run::new("mmdebstrap")
        .args(args)
        .args([target.as_os_str(), &sources])
        .env("INITRD", "No")
        .log(Path::new(&log))
        .run()?;
    fs::remove_file(sources)?;
    fs::remove_file(log)?;
    Ok(())
}

/// The machine's own settings for reaching the archive: mmdebstrap reads none.
fn acquire_options() -> Result<Vec<String>> {
    let dump = Run::new("apt-config").arg("dump").text()?;
    Ok(dump
        .lines()
        .filter(|line| is_acquire_option(line))
        .map(str::to_owned)
        .collect())
}

fn is_acquire_option(line: &str) -> bool {
    const KEPT: [&str; 6] = [
        "Acquire::http::Proxy ",
        "Acquire::https::Proxy ",
        "Acquire::https::CaInfo ",
        "Acquire::Check-Valid-Until ",
        "Acquire::Check-Date ",
        "Acquire::Retries ",
    ];
    KEPT.iter().any(|name| line.starts_with(name)) && !line.contains("\"\"")
}

fn describe(path: PathBuf) -> Result<Tree> {
    let status = fs::read_to_string(path.join("var/lib/dpkg/status"))?;
    let packages = parse_status(&status);
    let kernel = only_entry(&path.join("lib/modules"))?;
    let zfs = packages
        .lines()
        .find_map(|line| line.strip_prefix("zfsutils-linux "))
        .context("the guest's tree has no zfsutils-linux")?
        .to_owned();
    Ok(Tree {
        path,
        packages,
        kernel,
        zfs,
    })
}

fn only_entry(folder: &Path) -> Result<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    match names.as_slice() {
        [name] => Ok(name.clone()),
        _ => bail!(
            "{} should hold one kernel, found {names:?}",
            folder.display()
        ),
    }
}

/// `name version` lines, sorted, from dpkg's status file.
fn parse_status(status: &str) -> String {
    let mut lines: Vec<String> = status
        .split("\n\n")
        .filter_map(|paragraph| {
            let field = |name: &str| paragraph.lines().find_map(|line| line.strip_prefix(name));
            Some(format!("{} {}\n", field("Package: ")?, field("Version: ")?))
        })
        .collect();
    lines.sort();
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_dpkg_status() {
        let status = "Package: zfs-zed\nStatus: install ok installed\nVersion: 2.3.9-1\n\n\
                      Package: adduser\nVersion: 3.152\nDescription: x\n y\n";
        assert_eq!(parse_status(status), "adduser 3.152\nzfs-zed 2.3.9-1\n");
    }

    #[test]
    fn only_the_way_to_the_archive_is_taken_from_apt() {
        for (line, kept) in [
            ("Acquire::http::Proxy \"http://p:3128\";", true),
            ("Acquire::http::Proxy \"\";", false),
            ("Acquire::Check-Date \"false\";", true),
            ("Acquire::Languages \"none\";", false),
        ] {
            assert_eq!(is_acquire_option(line), kept, "{line}");
        }
    }
}
