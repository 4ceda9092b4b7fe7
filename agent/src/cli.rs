//! The command line, as clap reads it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use repave_plan::units::Digest;

const EXIT_CODES: &str = "\
Exit codes: 0 done, or nothing to do; 2 wrong call, or the environment does not allow it;
10 refused, nothing was changed; 11 the intent did not run (status);
20 stopped after something was changed (status).";

/// Plans and arms the repartition of a worker's system disk.
#[derive(Debug, Parser)]
#[command(name = "repave-agent", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what is on this machine; reads only
    Survey(SurveyArgs),
    /// Show what would be done, with the digest to approve; reads only
    Plan(PlanArgs),
    /// Arm the next boot with an approved plan; without --approve nothing is written
    Arm(ArmArgs),
    /// Take back what arm did
    Disarm(RootArgs),
    /// Say what is armed and what became of the last run
    Status(StatusArgs),
}

/// Where the host is.
#[derive(Debug, Args)]
pub struct RootArgs {
    /// The host's root directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
}

/// Where the policy is.
#[derive(Debug, Args)]
pub struct PolicyArgs {
    /// A policy file, may be given several times, later ones win; otherwise the drop-ins
    /// *.toml of /usr/lib/repave/policy.d, /run/repave/policy.d and /etc/repave/policy.d
    #[arg(long, value_name = "FILE")]
    pub policy: Vec<PathBuf>,
}

/// `survey`
#[derive(Debug, Args)]
pub struct SurveyArgs {
    #[command(flatten)]
    pub host: RootArgs,
    /// Print the survey as JSON
    #[arg(long)]
    pub json: bool,
}

/// `plan`
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub host: RootArgs,
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// Print the plan as JSON
    #[arg(long)]
    pub json: bool,
    /// Look at this image of a disk instead of this machine
    #[arg(long, value_name = "FILE", requires = "block", conflicts_with = "root")]
    pub image: Option<PathBuf>,
    /// The logical block size of the disk the image is of
    #[arg(long, value_name = "BYTES", value_parser = block_size, requires = "image")]
    pub block: Option<u32>,
}

/// `arm`
#[derive(Debug, Args)]
pub struct ArmArgs {
    #[command(flatten)]
    pub host: RootArgs,
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// The digest that `plan` shows; without it the plan is shown and nothing is written
    #[arg(long, value_name = "DIGEST")]
    pub approve: Option<Digest>,
    /// Reboot as soon as it is armed
    #[arg(long, requires = "approve")]
    pub reboot: bool,
    /// The boot program, when it is not next to this one
    #[arg(long, value_name = "FILE")]
    pub boot_binary: Option<PathBuf>,
}

/// `status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub host: RootArgs,
    /// Print the status as JSON
    #[arg(long)]
    pub json: bool,
}

fn block_size(text: &str) -> Result<u32, String> {
    match text {
        "512" => Ok(512),
        "4096" => Ok(4096),
        _ => Err("a disk has logical blocks of 512 or 4096 bytes".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }
}
