//! Builds the guest's `spl.ko` and `zfs.ko` with dkms, once per kernel and ZFS version.
//!
//! This is the longest part of a bed (8 CPU-minutes), so the two files are kept by
//! those two versions and outlive every change of the recipe.

use std::fs;
use std::path::PathBuf;
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, bail};

use super::command::Run;
use super::progress::Progress;
use super::tree::{self, Tree};
use super::{cache, recipe};

const MODULES: [&str; 2] = ["spl", "zfs"];

/// A module build that goes on beside the making of the guest's tree.
pub struct Early(JoinHandle<Result<PathBuf>>);

/// Starts the build when no modules are kept at all. Later it is known for
/// certain which are needed.
pub fn start_early(progress: &Progress) -> Result<Option<Early>> {
    if tree::is_kept()? || folder()?.is_dir() {
        return Ok(None);
    }
    progress.step("building the ZFS module beside it", 9.0);
    Ok(Some(Early(std::thread::spawn(build))))
}

/// The folder with the modules for `tree`, if they are kept.
pub fn kept(tree: &Tree) -> Result<Option<PathBuf>> {
    let path = path(tree)?;
    Ok(path.is_dir().then_some(path))
}

/// The folder with the modules for `tree`: kept, finished early, or built now.
pub fn ensure(tree: &Tree, early: Option<Early>, progress: &Progress) -> Result<PathBuf> {
    if let Some(path) = kept(tree)? {
        return Ok(path);
    }
    let builder = match early {
        Some(early) => {
            progress.step("waiting for the ZFS module", 6.0);
            early
                .0
                .join()
                .map_err(|_| anyhow!("the module build panicked"))??
        }
        None => {
            progress.step("building the ZFS module (8 CPU-minutes)", 8.0);
            build()?
        }
    };
    let path = path(tree)?;
    let part = cache::part(&path)?;
    fs::create_dir(&part)?;
    for module in MODULES {
        let built = builder
            .join("lib/modules")
            .join(&tree.kernel)
            .join("updates/dkms");
        let packed = built.join(format!("{module}.ko.xz"));
        let bytes = if packed.is_file() {
            Run::new("xz").arg("-dc").arg(packed).output()?
        } else {
            let plain = built.join(format!("{module}.ko"));
            fs::read(&plain).with_context(|| {
                format!(
                    "dkms left no {}: did the archive change while the trees were made? \
                     run the build again",
                    plain.display()
                )
            })?
        };
        fs::write(part.join(format!("{module}.ko")), bytes)?;
    }
    let status = fs::read_to_string(builder.join("var/lib/dpkg/status"))?;
    if !status.contains(&format!("\nVersion: {}\n", tree.zfs)) {
        bail!(
            "the module was built from another ZFS than the guest's {}",
            tree.zfs
        );
    }
    cache::publish(&part, &path)?;
    cache::remove(&builder)?;
    progress.done("the ZFS module is built");
    Ok(path)
}

fn path(tree: &Tree) -> Result<PathBuf> {
    Ok(folder()?.join(format!("{}_{}", tree.kernel, tree.zfs)))
}

fn folder() -> Result<PathBuf> {
    Ok(cache::folder()?.join("modules"))
}

fn build() -> Result<PathBuf> {
    let builder = cache::part(&cache::folder()?.join("trees/builder"))?;
    tree::make(
        &builder,
        &recipe::builder_packages(recipe::debian_arch()?),
        Some("zfs-dkms"),
    )?;
    Ok(builder)
}
