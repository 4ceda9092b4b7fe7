//! `repave-agent`: surveys a worker, plans its repartition and arms the next boot.
//!
//! By hand: `survey`, `plan`, `arm`, `disarm`, `status`. It never writes to a disk; what
//! it writes are files and units, and only when a digest was approved. The clock and
//! randomness are read here and handed down. Exit codes: `docs/formats.md`.

mod arm;
mod cli;
mod disarm;
mod failure;
mod host;
mod output;
mod plan;
mod policy_files;
mod preflight;
mod run_id;
mod status;
mod survey;
mod survey_text;

use std::io::Read as _;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use clap::Parser as _;
use repave_plan::units::UnixTime;

use crate::cli::{Cli, Command};

/// What only the program itself may ask the world for.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// The clock.
    pub time: UnixTime,
    /// Two random bytes: they keep two runs of one second apart.
    pub random: [u8; 2],
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    match run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) => failure::tell(&error),
    }
}

fn run(cli: &Cli) -> anyhow::Result<u8> {
    let now = now()?;
    match &cli.command {
        Command::Survey(args) => survey::run(args, now),
        Command::Plan(args) => plan::run(args, now),
        Command::Arm(args) => arm::run(args, now),
        Command::Disarm(args) => disarm::run(args, now),
        Command::Status(args) => status::run(args),
    }
}

fn now() -> anyhow::Result<Now> {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("the clock is set to a time before 1970")?;
    let mut random = [0u8; 2];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut random))
        .context("read /dev/urandom")?;
    Ok(Now {
        time: UnixTime(since.as_secs()),
        random,
    })
}
