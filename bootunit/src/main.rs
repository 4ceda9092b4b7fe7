//! `repave-boot`: the program the units start, and the one a person starts by hand when
//! a node has stopped. It has no command-line library: it is small, static and starts
//! in milliseconds.

mod args;
mod log;

use std::path::Path;
use std::process::ExitCode;

use repave_boot::by_hand::{Resumed, resume};
use repave_boot::cleanup::cleanup;
use repave_boot::clear_labels::{ClearLabelsError, clear_labels};
use repave_boot::finish::{Finished, finish};
use repave_boot::host::Host;
use repave_boot::label_clear::hand::HandError;
use repave_boot::label_clear::verdict::Force;
use repave_boot::lock::lock_state;
use repave_boot::real_host::RealHost;
use repave_boot::run::{Ended, run};
use repave_boot::self_test::self_test;
use repave_boot::state_dir::StateDir;
use repave_boot::status::status;
use repave_boot::{Attempts, boot_id};
use repave_plan::chain::chain;
use repave_plan::report::{EXIT_DONE, EXIT_REFUSED, EXIT_STOPPED, EXIT_USAGE};
use repave_plan::step::Outcome;

use args::{Args, Verb};

fn main() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(error) => {
            eprintln!("repave-boot: {error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if args.verb == Verb::Help {
        print!("{}", args::HELP);
        return ExitCode::SUCCESS;
    }
    if args.verb == Verb::Version {
        println!("repave-boot {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    log::start();
    let state = StateDir::at(&args.state);
    let host = RealHost::new(state.clone());
    match act(&args, &host, &state) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            tracing::error!(err = %chain(error.as_ref()), "cannot go on");
            eprintln!("repave-boot: {}", chain(error.as_ref()));
            ExitCode::from(EXIT_USAGE)
        }
    }
}

type AnyError = Box<dyn std::error::Error>;

fn act(args: &Args, host: &RealHost, state: &StateDir) -> Result<u8, AnyError> {
    let _lock = match args.verb {
        Verb::Run | Verb::Finish | Verb::Resume => Some(lock_state(state)?),
        _ => None,
    };
    match args.verb {
        Verb::Run => {
            let ended = run(host, state, Attempts::Limited)?;
            if ended != Ended::NothingArmed {
                say_memory(host);
            }
            Ok(match ended {
                Ended::NothingArmed | Ended::StepsDone => EXIT_DONE,
                Ended::Refused(_) => EXIT_REFUSED,
                Ended::Stopped(_) => EXIT_STOPPED,
            })
        }
        Verb::Finish => Ok(match finish(host, state)? {
            Finished::NothingBegun | Finished::Done => EXIT_DONE,
            Finished::NotYet | Finished::Stopped(_) => EXIT_STOPPED,
        }),
        Verb::Resume => {
            let attempts = if args.once_more {
                Attempts::OnceMore
            } else {
                Attempts::Limited
            };
            Ok(resumed(host, resume(host, state, attempts)?))
        }
        Verb::Status => {
            let found = status(host, state, boot_id(host)?.as_ref())?;
            match args.json {
                true => println!("{}", serde_json::to_string_pretty(&found)?),
                false => print!("{}", found.lines()),
            }
            Ok(found.exit_code())
        }
        Verb::SelfTest => {
            let wrong = self_test(host, state);
            for line in &wrong {
                host.say(&format!("self-test: {line}"));
            }
            Ok(if wrong.is_empty() {
                EXIT_DONE
            } else {
                EXIT_USAGE
            })
        }
        Verb::Cleanup => {
            cleanup(host, state)?;
            Ok(EXIT_DONE)
        }
        Verb::Labels => args::labels(args),
        Verb::ClearLabels => clear(args, host),
        Verb::Help | Verb::Version => Ok(EXIT_DONE),
    }
}

fn clear(args: &Args, host: &RealHost) -> Result<u8, AnyError> {
    let (Some(path), Some(pool)) = (&args.path, args.pool_guid) else {
        return Ok(EXIT_USAGE);
    };
    let force = if args.force { Force::Yes } else { Force::No };
    match clear_labels(host, path, pool, force) {
        Ok(Outcome::Changed) => host.say(&format!("the labels of pool {pool} are cleared")),
        Ok(Outcome::AlreadyDone) => host.say(&format!("no label of pool {pool} is there")),
        // Found before the first write: nothing was changed.
        Err(ClearLabelsError::Hand(refused @ HandError::Verdict { .. })) => {
            host.say(&format!("refused: {}", chain(&refused)));
            return Ok(EXIT_REFUSED);
        }
        Err(error) => return Err(error.into()),
    }
    Ok(EXIT_DONE)
}

/// The most memory this program had at any time (Linux `proc_pid_status(5)`, VmHWM).
fn say_memory(host: &RealHost) {
    let status = host
        .read(Path::new("/proc/self/status"))
        .ok()
        .flatten()
        .unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    if let Some(peak) = status.lines().find_map(|line| line.strip_prefix("VmHWM:")) {
        host.say(&format!("peak memory: {}", peak.trim()));
    }
}

fn resumed(host: &RealHost, resumed: Resumed) -> u8 {
    match resumed {
        Resumed::NothingBegun => {
            host.say("nothing was begun on this node: there is nothing to resume");
            EXIT_DONE
        }
        Resumed::Stopped(_) => EXIT_STOPPED,
        Resumed::Done { started, failed } => {
            host.say(&format!("done; started: {}", started.join(" ")));
            for line in &failed {
                host.say(&format!("did not start: {line}"));
            }
            if failed.is_empty() {
                EXIT_DONE
            } else {
                EXIT_USAGE
            }
        }
    }
}
