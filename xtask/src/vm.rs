//! `cargo xtask vm`: prepare the machine, build the bed, and keep one guest at hand.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use repave_tests::vm::{Bed, Deadline, Image, Machine, Order, Progress, StartOptions, set_up};

/// What to do with the lab.
#[derive(Subcommand)]
pub enum Vm {
    /// Install what this machine lacks (Debian 12 or 13, as root).
    Setup,
    /// Build the bed, or find it in the cache (~/.cache/repave).
    Build(Build),
    /// Start a healthy worker and leave it running.
    Start(Start),
    /// Run a bash script in the running worker.
    Exec(Exec),
    /// Log in to the running worker, or run a command there.
    Ssh(Ssh),
    /// End the running worker; its disk is thrown away.
    Stop,
    /// Remove the beds of other recipes from the cache.
    Prune,
    /// Run the VM suite on the products in target/dist; all of it, or these cases.
    Test {
        /// Names of cases.
        names: Vec<String>,
    },
}

/// Which beds to build.
#[derive(Args)]
pub struct Build {
    /// tank-first or dead-first; both when left out.
    #[arg(long)]
    order: Option<Order>,
}

/// What to start.
#[derive(Args)]
pub struct Start {
    /// tank-first or dead-first.
    #[arg(long, default_value = "tank-first")]
    order: Order,
    /// Boot it instead of going on from the saved worker.
    #[arg(long)]
    cold: bool,
    /// Start the installed system without a pool.
    #[arg(long)]
    base: bool,
}

/// What to run.
#[derive(Args)]
pub struct Exec {
    /// Seconds after which it is killed.
    #[arg(long, default_value_t = 120)]
    timeout: u64,
    /// The words of a bash script.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    script: Vec<String>,
}

/// What to run after logging in.
#[derive(Args)]
pub struct Ssh {
    /// A command; a shell when left out.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Runs one of the commands.
pub fn run(vm: Vm) -> Result<ExitCode> {
    match vm {
        Vm::Test { names } => crate::suite::run(&names)?,
        Vm::Setup => set_up(&Progress::start())?,
        Vm::Build(build) => {
            set_up(&Progress::start())?;
            let orders = match build.order {
                Some(order) => vec![order],
                None => vec![Order::TankFirst, Order::DeadFirst],
            };
            for order in orders {
                println!("{}", Bed::ensure(order)?.worker().display());
            }
        }
        Vm::Start(start) => begin(&start)?,
        Vm::Prune => println!("{} removed", Bed::ensure(Order::TankFirst)?.prune()?),
        Vm::Exec(exec) => {
            let done = running()?.exec_for(exec.timeout, &exec.script.join(" "))?;
            std::io::stdout().write_all(done.stdout.as_bytes())?;
            std::io::stderr().write_all(done.stderr.as_bytes())?;
            return Ok(ExitCode::from(u8::try_from(done.rc).unwrap_or(u8::MAX)));
        }
        Vm::Ssh(ssh) => {
            let command: Vec<&str> = ssh.command.iter().map(String::as_str).collect();
            let line = running()?.ssh(&command);
            let (program, args) = line.split_first().context("an empty command line")?;
            return Err(Command::new(program).args(args).exec()).context("start ssh");
        }
        Vm::Stop => {
            let machine = running()?;
            machine.discard()?;
            fs::remove_file(note()?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn begin(start: &Start) -> Result<()> {
    if running().is_ok_and(|machine| machine.is_alive().unwrap_or(false)) {
        bail!("a worker is running already: cargo xtask vm stop");
    }
    set_up(&Progress::start())?;
    let bed = Bed::ensure(start.order)?;
    let mut options = StartOptions::new("manual");
    options.detached = true;
    let machine = if start.base || start.cold {
        if start.base {
            options.image = Image::Base;
        }
        let machine = bed.start(options)?;
        machine.wait_boot(Deadline::secs(300))?;
        machine
    } else {
        bed.start_running(options)?
    };
    println!("console and logs: {}", machine.logs().display());
    println!("log in:           cargo xtask vm ssh");
    println!("run a script:     cargo xtask vm exec 'zpool status'");
    println!("end:              cargo xtask vm stop");
    machine.detach(&note()?)
}

fn running() -> Result<Machine> {
    Machine::attach(&note()?).context("no worker is running here (cargo xtask vm start)")
}

/// The file that says how to reach the guest started last.
fn note() -> Result<PathBuf> {
    Ok(repave_tests::vm::target_folder().join("vm/manual.json"))
}
