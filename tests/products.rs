//! Builds the products as they are shipped, and finds them.
//!
//! Every product is linked statically, so that it runs on any host and from an empty
//! image. The target is the host's own: nothing here fixes an architecture.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::vm::Run;

/// What `cargo xtask build` leaves in `target/dist/`.
pub const PRODUCTS: [(&str, &str); 3] = [
    ("repave-boot", "repave-boot"),
    ("repave-agent", "repave-agent"),
    ("repave-containerd-clear", "containerd-clear"),
];

/// The workspace's folder.
pub fn workspace() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Where the products are left.
pub fn dist() -> PathBuf {
    workspace().join("target/dist")
}

/// The host's target triple, as rustc names it.
pub fn host_triple() -> Result<String> {
    let text = Run::new("rustc").arg("-vV").text()?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

/// Builds the products and copies them to `target/dist/`.
pub fn build() -> Result<()> {
    let triple = host_triple()?;
    let flags = format!("target.{triple}.rustflags=['-C','target-feature=+crt-static']");
    // A build folder of its own: other flags in the same one would rebuild everything
    // each time.
    let folder = workspace().join("target/products");
    let mut cargo = Run::new("cargo")
        .args([
            "build",
            "--profile",
            "dist",
            "--locked",
            "--target",
            &triple,
            "--config",
            &flags,
        ])
        .env("CARGO_TARGET_DIR", &folder);
    for (package, _) in PRODUCTS {
        cargo = cargo.args(["--package", package]);
    }
    cargo.run()?;
    fs::create_dir_all(dist()).context("make target/dist")?;
    for (_, name) in PRODUCTS {
        let built = folder.join(&triple).join("dist").join(name);
        let place = dist().join(name);
        fs::copy(&built, &place)
            .with_context(|| format!("copy {} to {}", built.display(), place.display()))?;
        check_static(&place)?;
    }
    Ok(())
}

/// `ldd` must find nothing to load: a program that needs the host's libraries may meet
/// others at the boot that needs it.
fn check_static(program: &Path) -> Result<()> {
    let shown = program.display();
    let script = format!("ldd '{shown}' 2>&1 || true");
    let text = Run::new("sh").args(["-c", &script]).text()?;
    let is_static = ["statically linked", "not a dynamic executable"];
    match is_static.iter().any(|words| text.contains(words)) {
        true => Ok(()),
        false => bail!("{shown} is not static: {}", text.trim()),
    }
}
