//! `cargo xtask check`: format, lints, unit tests, documents, licences, walls, size.
//!
//! What a person runs before a commit; `cargo xtask test` runs it first.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use repave_tests::products::workspace;

/// The version of cargo-deny that is installed when there is none.
const DENY_VERSION: &str = "0.20.2";

/// What a package must never be linked with, and why.
const WALLS: [(&str, &[&str], &str); 3] = [
    (
        "repave-boot",
        &[
            "tokio",
            "zbus",
            "kube",
            "clap",
            "repave-systemd",
            "repave-agent",
        ],
        "the boot program is small, static and starts in milliseconds",
    ),
    (
        "repave-agent",
        &["repave-boot", "repave-containerd-clear"],
        "the armed process holds no code that writes to a disk",
    ),
    (
        "repave-plan",
        &["nix", "tokio", "tracing", "repave-survey"],
        "plan is pure: it has no file system, process or clock to reach for",
    ),
];

/// Runs everything but the VM.
pub fn run() -> Result<()> {
    step("format", || cargo(&["fmt", "--all", "--check"]))?;
    step("lints", || {
        cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ])
    })?;
    step("unit tests", || {
        cargo(&["test", "--workspace", "--locked", "--quiet"])
    })?;
    step("tests that need root, loop devices and mkfs", || {
        // `--ignored`: a plain `cargo test` by a person without root must not fail.
        cargo(&[
            "test",
            "-p",
            "repave-boot",
            "--lib",
            "--locked",
            "--",
            "--ignored",
            "loop_tests",
        ])?;
        cargo(&[
            "test",
            "-p",
            "repave-survey",
            "--lib",
            "--locked",
            "--",
            "--ignored",
            "signature",
        ])
    })?;
    step("documents", documents)?;
    step("walls between crates", walls)?;
    step("licences, bans and sources", deny)?;
    step("products and their size", crate::build::run)
}

fn step(name: &str, run: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("== {name}");
    let begun = Instant::now();
    run().with_context(|| format!("check: {name}"))?;
    println!("== {name}: ok ({} s)", begun.elapsed().as_secs());
    Ok(())
}

fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(workspace());
    command
}

fn finish(mut command: Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("start {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

fn cargo(args: &[&str]) -> Result<()> {
    let mut cargo = command("cargo");
    cargo.args(args);
    finish(cargo)
}

fn documents() -> Result<()> {
    let mut cargo = command("cargo");
    cargo.args(["doc", "--workspace", "--no-deps", "--locked", "--quiet"]);
    cargo.env("RUSTDOCFLAGS", "-D warnings");
    finish(cargo)
}

/// Asks cargo what each program is really made of.
fn walls() -> Result<()> {
    for (package, forbidden, why) in WALLS {
        let output = command("cargo")
            .args([
                "tree",
                "--package",
                package,
                "--edges",
                "normal",
                "--prefix",
                "none",
            ])
            .args(["--format", "{p}", "--locked"])
            .output()
            .context("start cargo tree")?;
        ensure!(
            output.status.success(),
            "cargo tree: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8(output.stdout)?;
        let names: Vec<&str> = text.lines().filter_map(|l| l.split(' ').next()).collect();
        ensure!(
            names.contains(&package),
            "cargo tree does not list {package} itself"
        );
        for name in forbidden {
            ensure!(!names.contains(name), "{package} links {name}; {why}");
        }
    }
    Ok(())
}

fn deny() -> Result<()> {
    let tool = tool("cargo-deny", DENY_VERSION)?;
    let mut deny = command(&tool.to_string_lossy());
    // Advisories need a database from the network; they are looked at where it is.
    deny.args(["check", "licenses", "bans", "sources"]);
    finish(deny)
}

/// A cargo tool, installed once into the project's cache.
fn tool(name: &str, version: &str) -> Result<PathBuf> {
    let root = repave_tests::vm::cache_folder()?
        .join("tools")
        .join(format!("{name}-{version}"));
    let program = root.join("bin").join(name);
    if !program.exists() {
        println!("installing {name} {version} (some minutes, once)");
        let mut cargo = command("cargo");
        cargo.args([
            "install",
            "--locked",
            "--quiet",
            "--version",
            version,
            "--root",
        ]);
        cargo.arg(&root).arg(name);
        finish(cargo)?;
    }
    Ok(program)
}
