//! The project's own commands: `cargo xtask …`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod build;
mod suite;
mod vm;

#[derive(Parser)]
#[command(about = "The project's own commands")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build the products into target/dist.
    Build,
    /// The lab: a virtual worker to try things on.
    #[command(subcommand)]
    Vm(vm::Vm),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
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
