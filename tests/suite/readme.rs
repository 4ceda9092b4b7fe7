//! The README's commands for a node, taken from it and run as they stand there.
//!
//! `NODE` is a guest, by an ssh configuration; nothing else of a line is changed. The
//! two `cargo xtask` commands are what runs this suite.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::products::workspace;
use crate::vm::{Bed, Machine, Order, Run, StartOptions};

const README: &str = include_str!("../../README.md");

pub(super) fn commands_for_a_node() -> Result<()> {
    let commands = shell_lines(README);
    let of_cargo: Vec<&str> = commands
        .iter()
        .copied()
        .filter(|c| c.starts_with("cargo xtask "))
        .collect();
    ensure!(
        of_cargo == ["cargo xtask demo", "cargo xtask test", "cargo xtask build"],
        "the README's cargo commands are {of_cargo:?}"
    );
    let for_node: Vec<&str> = commands
        .iter()
        .copied()
        .filter(|c| !c.starts_with("cargo "))
        .collect();
    ensure!(
        for_node.len() >= 6,
        "the README has only {} commands for a node",
        for_node.len()
    );

    // A bare worker: nothing of the project is on it.
    let machine = Bed::ensure(Order::TankFirst)?.start_running(StartOptions::new("readme"))?;
    let bin = tempfile::tempdir()?;
    for program in ["ssh", "scp"] {
        put_wrapper(bin.path(), program, &machine)?;
    }
    let path = format!("{}:{}", bin.path().display(), std::env::var("PATH")?);
    for command in for_node {
        let script = format!("cd '{}' && {command}", workspace().display());
        let said = Run::new("sh")
            .args(["-c", &script])
            .env("PATH", &path)
            .text()
            .with_context(|| format!("the README's `{command}`"))?;
        if command.ends_with("repave-agent plan") {
            for words in ["tank", "mayastor", "sha256:"] {
                ensure!(
                    said.contains(words),
                    "the plan does not say {words:?}: {said}"
                );
            }
        }
        if command.ends_with("repave-boot status") {
            ensure!(said.contains("state: idle"), "the status is {said}");
        }
    }
    let written = machine.exec("find /var/lib/repave -type f 2>/dev/null | head")?;
    ensure!(
        written.stdout.is_empty(),
        "a dry run wrote {}",
        written.stdout
    );
    machine.power_cut()
}

/// The lines of all `sh` blocks, comments taken off.
fn shell_lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if inside => lines.push(line.split("  #").next().unwrap_or(line).trim()),
            _ => {}
        }
    }
    lines.retain(|line| !line.is_empty());
    lines
}

/// A program of the same name that knows where NODE is.
fn put_wrapper(bin: &Path, program: &str, machine: &Machine) -> Result<()> {
    let line = machine.ssh(&[]);
    let after = |flag: &str| {
        let at = line.iter().position(|word| word == flag);
        at.and_then(|at| line.get(at + 1))
            .with_context(|| format!("ssh has no {flag}"))
    };
    let (port, key) = (after("-p")?, after("-i")?);
    let path = bin.join(program);
    let text = format!(
        "#!/bin/sh\nexec /usr/bin/{program} -q -o HostName=127.0.0.1 -o Port={port} \
         -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes \
         -i '{key}' \"$@\"\n"
    );
    fs::write(&path, text)?;
    Ok(fs::set_permissions(
        &path,
        fs::Permissions::from_mode(0o755),
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_shell_blocks_are_found() {
        let text = "a\n```\nno\n```\n```sh\none   # why\ntwo\n```\n";
        assert_eq!(shell_lines(text), ["one", "two"]);
    }
}
