//! How a command that did not do its work ends: one line with all causes, one with the
//! way out, and the exit code.

use std::io;
use std::process::ExitCode;

use repave_plan::policy::PolicyError;
use repave_plan::refusal::Refusal;
use repave_plan::report::{EXIT_REFUSED, EXIT_USAGE};
use repave_systemd::{ArmError, ArmFault, DisarmError};

use crate::host::HostFault;

/// Prints the error and gives the exit code.
pub fn tell(error: &anyhow::Error) -> ExitCode {
    let (code, way_out) = judge(error);
    let word = match code {
        EXIT_REFUSED => "refused",
        _ => "error",
    };
    eprintln!("{word}: {error:#}");
    if let Some(way_out) = way_out {
        eprintln!("way out: {way_out}");
    }
    ExitCode::from(code)
}

/// The exit code and the way out of the first cause that has one.
fn judge(error: &anyhow::Error) -> (u8, Option<String>) {
    for cause in error.chain() {
        if let Some(refusal) = cause.downcast_ref::<Refusal>() {
            return (EXIT_REFUSED, Some(refusal.way_out()));
        }
        if let Some(armed) = cause.downcast_ref::<ArmError>() {
            return judge_arm(armed);
        }
        if let Some(DisarmError::Changed) = cause.downcast_ref() {
            return (EXIT_REFUSED, Some("run `repave-boot status`".to_owned()));
        }
        let way_out = if cause.is::<PolicyError>() {
            Some("correct the policy, or name another with --policy".to_owned())
        } else if let Some(fault) = cause.downcast_ref::<HostFault>() {
            Some(fault.way_out())
        } else {
            cause.downcast_ref::<io::Error>().and_then(of_io)
        };
        if way_out.is_some() {
            return (EXIT_USAGE, way_out);
        }
    }
    (EXIT_USAGE, None)
}

fn judge_arm(error: &ArmError) -> (u8, Option<String>) {
    let way_out = match error.fault.as_ref() {
        ArmFault::Changed => "run `repave-boot status`",
        ArmFault::AlreadyArmed => "run `repave-agent disarm`, then arm again",
        ArmFault::SpentRun { .. } | ArmFault::Busy => "arm again",
        ArmFault::Masked { .. } => "unmask the unit, then arm again",
        ArmFault::SelfTest { .. } => {
            "use the boot program that was built for this machine, with --boot-binary"
        }
        ArmFault::Order(_) | ArmFault::OrderCheck { .. } => {
            "look at the units with `systemd-analyze verify`, then arm again"
        }
        ArmFault::Inhibited { .. } => "end what forbids the reboot, or arm without --reboot",
        other => {
            let mut source = std::error::Error::source(other);
            while let Some(cause) = source {
                let known = cause.downcast_ref::<io::Error>().and_then(of_io);
                if known.is_some() {
                    return (EXIT_USAGE, known);
                }
                source = cause.source();
            }
            return (EXIT_USAGE, None);
        }
    };
    (EXIT_REFUSED, Some(way_out.to_owned()))
}

fn of_io(error: &io::Error) -> Option<String> {
    let way_out = match error.kind() {
        io::ErrorKind::PermissionDenied => "run it as root",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room in the file system of /var, then do it again"
        }
        io::ErrorKind::ReadOnlyFilesystem => "make the file system writable, then do it again",
        io::ErrorKind::NotFound => "check the path",
        _ => return None,
    };
    Some(way_out.to_owned())
}
