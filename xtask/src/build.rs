//! `cargo xtask build`: the products, as they are shipped.

use std::fs;

use anyhow::{Context, Result, ensure};
use repave_tests::products::{PRODUCTS, build, dist};

/// The largest boot program that is let through, in bytes.
const BOOT_LIMIT: u64 = 4 * 1024 * 1024;

/// Builds the products and prints their sizes.
pub fn run() -> Result<()> {
    build()?;
    for (_, name) in PRODUCTS {
        let path = dist().join(name);
        let size = fs::metadata(&path)
            .with_context(|| format!("look at {name}"))?
            .len();
        println!("{:>10} bytes  {}", size, path.display());
        if name == "repave-boot" {
            ensure!(
                size < BOOT_LIMIT,
                "{name} has {size} bytes, {BOOT_LIMIT} at most"
            );
        }
    }
    Ok(())
}
