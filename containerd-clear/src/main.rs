//! containerd-clear: for the node that is already broken, by hand.
//!
//! Parses its words, calls the library, prints what came of it. Exit codes: 0 done, 2 usage or
//! environment, 10 refused (nothing was changed), 20 stopped (something was).

#![forbid(unsafe_code)]

mod args;
mod text;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use args::{Args, USAGE, Verb};
use repave_containerd_clear::{ASIDE_PREFIX, ClearError, ClearRequest, clear, remove_aside};
use repave_survey::containerd::{Checks, InspectError, Platform, inspect};
use serde::Serialize;

const USAGE_OR_ENVIRONMENT: u8 = 2;
const REFUSED: u8 = 10;
const STOPPED: u8 = 20;

/// Where containerd usually is: k3s's own, and the distribution's.
const ROOTS: [&str; 2] = [
    "/var/lib/rancher/k3s/agent/containerd",
    "/var/lib/containerd",
];

fn main() -> ExitCode {
    let args = match args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(err) => return failed(USAGE_OR_ENVIRONMENT, &err),
    };
    if args.verb == Verb::Help {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let found = || ROOTS.iter().map(PathBuf::from).find(|root| root.is_dir());
    let Some(root) = args.root.clone().or_else(found) else {
        eprintln!("containerd-clear: no containerd root is there; name it with --root");
        return ExitCode::from(USAGE_OR_ENVIRONMENT);
    };
    match args.verb {
        Verb::RemoveAside => run_remove_aside(&root, &args),
        Verb::Clear if !args.dry_run => run_clear(root, &args),
        _ => run_inspect(&root, &args),
    }
}

fn run_inspect(root: &Path, args: &Args) -> ExitCode {
    let checks = Checks {
        pinned: args.pinned.clone(),
        verify: args.verify,
        platform: Platform::here(),
    };
    match inspect(root, &args.snapshotter, &checks) {
        Ok(preview) => {
            print(args, &preview, text::preview(&preview));
            ExitCode::SUCCESS
        }
        Err(err @ InspectError::Load(_)) => failed(USAGE_OR_ENVIRONMENT, &err),
        Err(err) => failed(REFUSED, &err),
    }
}

fn run_clear(root: PathBuf, args: &Args) -> ExitCode {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let request = ClearRequest {
        root,
        snapshotter: args.snapshotter.clone(),
        mode: args.mode,
        keep_dir: args.keep.clone(),
        aside_name: format!("{ASIDE_PREFIX}{}", now.map_or(0, |now| now.as_secs())),
        pinned: args.pinned.clone(),
        verify: args.verify,
    };
    match clear(&request) {
        Ok(report) => {
            print(args, &report, text::report(&report));
            ExitCode::SUCCESS
        }
        Err(err @ ClearError::BadRequest { .. }) => failed(USAGE_OR_ENVIRONMENT, &err),
        Err(err) if err.changed() => failed(STOPPED, &err),
        Err(err) => failed(REFUSED, &err),
    }
}

fn run_remove_aside(root: &Path, args: &Args) -> ExitCode {
    match remove_aside(root) {
        Ok(report) => {
            print(args, &report, text::removed(&report));
            match report.left_count {
                0 => ExitCode::SUCCESS,
                _ => ExitCode::from(STOPPED),
            }
        }
        Err(err) => failed(USAGE_OR_ENVIRONMENT, &err),
    }
}

fn print(args: &Args, value: &impl Serialize, text: String) {
    match serde_json::to_string_pretty(value) {
        Ok(json) if args.json => println!("{json}"),
        _ => print!("{text}"),
    }
}

/// Says what failed, with the whole chain of reasons.
fn failed(code: u8, err: &dyn Error) -> ExitCode {
    let mut line = format!("containerd-clear: failed to {err}");
    let mut next = err.source();
    while let Some(err) = next {
        line.push_str(": ");
        line.push_str(&err.to_string());
        next = err.source();
    }
    eprintln!("{line}");
    if code == USAGE_OR_ENVIRONMENT {
        eprintln!("see containerd-clear --help");
    }
    ExitCode::from(code)
}
