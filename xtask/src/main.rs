//! The project's own commands: `cargo xtask …`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod build;
mod check;
mod cuts;
mod demo;
mod suite;
mod test;
mod vm;

#[derive(Parser)]
#[command(about = "The project's own commands")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set up this machine and do the main job in a VM, with everything shown.
    Demo,
    /// Set up this machine and run all tests.
    Test {
        /// Leave out the VM.
        #[arg(long)]
        fast: bool,
    },
    /// Format, lints, unit tests, documents, licences, walls and sizes.
    Check,
    /// Cut the power after every write of the table's commit, on model disks.
    Cuts {
        /// Where sampling begins.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many subsets are drawn where there are too many to try them all.
        #[arg(long, default_value_t = 512)]
        samples: usize,
    },
    /// Build the products into target/dist.
    Build,
    /// The lab: a virtual worker to try things on.
    #[command(subcommand)]
    Vm(vm::Vm),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Demo => demo::run().map(|()| ExitCode::SUCCESS),
        Command::Test { fast } => {
            let depth = if fast {
                test::Depth::Fast
            } else {
                test::Depth::Whole
            };
            test::run(depth).map(|()| ExitCode::SUCCESS)
        }
        Command::Cuts { seed, samples } => cuts::run(seed, samples).map(|()| ExitCode::SUCCESS),
        Command::Check => check::run().map(|()| ExitCode::SUCCESS),
        Command::Build => build::run().map(|()| ExitCode::SUCCESS),
        Command::Vm(vm) => vm::run(vm),
    };
    match done {
        Ok(code) => code,
        Err(err) => {
            eprintln!("xtask: {err:#}");
            ExitCode::FAILURE
        }
    }
}
