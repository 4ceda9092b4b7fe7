//! Builds the guest's own programs, and says where the workspace keeps what it builds.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::command::Run;

/// Builds the agent and the CRI client so that they run in any guest: static, and
/// away from the workspace's own target folder, whose flags differ.
pub fn build() -> Result<(PathBuf, PathBuf)> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let folder = target_folder().join("bed");
    Run::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--locked", "--target", &target])
        .args([
            "-p",
            "repave-guest-agent",
            "-p",
            "repave-cri-client",
            "--target-dir",
        ])
        .arg(&folder)
        .args([
            "--config",
            "profile.dev.debug=false",
            "--config",
            "profile.dev.strip=true",
        ])
        // It runs under emulation, and moves files of megabytes.
        .args([
            "--config",
            "profile.dev.package.repave-guest-agent.opt-level=2",
        ])
        .arg("--manifest-path")
        .arg(workspace().join("Cargo.toml"))
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .without_env("CARGO_ENCODED_RUSTFLAGS")
        .run()?;
    let built = folder.join(target).join("debug");
    Ok((
        built.join("repave-guest-agent"),
        built.join("repave-cri-client"),
    ))
}

fn workspace() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// The workspace's target folder.
pub fn target_folder() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => workspace().join("target"),
    }
}
