//! The programs of the host that a survey asks, and the only place that starts one.
//!
//! Takes a program's absolute path and its arguments, gives what it printed. The
//! environment is empty, time and output are bounded, standard input is empty. The
//! survey itself speaks to the trait [`Tools`]: a pod asks the host by other means.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// The most a program may print before it is stopped, in bytes. `zfs list` of 10,000
/// datasets prints about one million.
pub const MAX_OUTPUT: u64 = 32 * 1024 * 1024;

/// The most of a program's complaint that is kept, in bytes.
const MAX_COMPLAINT: u64 = 64 * 1024;

/// What a program gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOutput {
    /// Its exit status; `None` when a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it complained, cut to 64 KiB; what is not UTF-8 is replaced.
    pub stderr: String,
}

/// Something that can run a program on the surveyed host.
pub trait Tools {
    /// Runs `program` (an absolute path on the host) and waits for its end, `limit` at
    /// most. A program that ran and failed is a value, not an error.
    fn run(&self, program: &str, args: &[&str], limit: Duration) -> Result<ToolOutput, ToolError>;
}

/// Why a program gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It could not be started.
    #[error("start {program}")]
    Start {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// It did not end in time and was killed.
    #[error("{command} did not end within {seconds} s")]
    Late {
        /// The program and its arguments.
        command: String,
        /// The limit in seconds.
        seconds: u64,
    },
    /// It printed more than a true answer can have.
    #[error("{command} printed more than {max} bytes")]
    TooMuch {
        /// The program and its arguments.
        command: String,
        /// The limit in bytes.
        max: u64,
    },
    /// Its output could not be read.
    #[error("read the output of {command}")]
    Output {
        /// The program and its arguments.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// It ended with another status than 0.
    #[error("{command} ended with status {status}: {complaint}")]
    Failed {
        /// The program and its arguments.
        command: String,
        /// Its exit status, or `signal`.
        status: String,
        /// What it complained, in one line.
        complaint: String,
    },
}

/// Runs a program that must succeed and gives what it printed.
pub fn ask(
    tools: &dyn Tools,
    program: &str,
    args: &[&str],
    limit: Duration,
) -> Result<String, ToolError> {
    let output = tools.run(program, args, limit)?;
    if output.code == Some(0) {
        return Ok(output.stdout);
    }
    Err(ToolError::Failed {
        command: command_line(program, args),
        status: output
            .code
            .map_or("signal".to_owned(), |code| code.to_string()),
        complaint: one_line(&output.stderr),
    })
}

/// The programs of the system this process runs on.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostTools;

impl Tools for HostTools {
    fn run(&self, program: &str, args: &[&str], limit: Duration) -> Result<ToolOutput, ToolError> {
        run_bounded(program, args, limit, MAX_OUTPUT)
    }
}

enum Event {
    Stdout(io::Result<Vec<u8>>),
    Stderr(Vec<u8>),
    Ended,
}

fn run_bounded(
    program: &str,
    args: &[&str],
    limit: Duration,
    max: u64,
) -> Result<ToolOutput, ToolError> {
    let deadline = Instant::now() + limit;
    let start = |source| ToolError::Start {
        program: program.to_owned(),
        source,
    };
    if !program.starts_with('/') {
        return Err(start(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not an absolute path",
        )));
    }
    let mut child = Command::new(program)
        .args(args)
        .env_clear()
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .current_dir("/")
        // Its own group: what it started is killed with it.
        .process_group(0)
        .spawn()
        .map_err(start)?;
    let events = watch(&mut child, max);
    let result = collect(&events, program, args, deadline, limit, max);
    if result.is_err() {
        // It may sit in the kernel where no signal reaches it (a suspended pool): it is
        // killed, and waited for elsewhere.
        let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
        thread::spawn(move || child.wait());
        return result.map(|(stdout, stderr)| ToolOutput {
            code: None,
            stdout,
            stderr,
        });
    }
    let (stdout, stderr) = result?;
    let status: ExitStatus = child.wait().map_err(|source| ToolError::Output {
        command: command_line(program, args),
        source,
    })?;
    Ok(ToolOutput {
        code: status.code(),
        stdout,
        stderr,
    })
}

/// Reads both pipes and waits for the end, each in its own thread, so that a full pipe
/// never blocks the program and a deadline can be kept without polling.
fn watch(child: &mut Child, max: u64) -> Receiver<Event> {
    let (send, receive) = channel();
    if let Some(stdout) = child.stdout.take() {
        reader(stdout, max, send.clone(), Event::Stdout);
    }
    if let Some(stderr) = child.stderr.take() {
        reader(stderr, MAX_COMPLAINT, send.clone(), |r| {
            Event::Stderr(r.unwrap_or_default())
        });
    }
    let pid = Pid::from_raw(child.id() as i32);
    thread::spawn(move || {
        // WNOWAIT leaves the zombie to `child.wait`, so the pid cannot be another
        // process's when the group is killed.
        let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        let _ = send.send(Event::Ended);
    });
    receive
}

fn reader(
    mut pipe: impl Read + Send + 'static,
    max: u64,
    send: Sender<Event>,
    event: impl Fn(io::Result<Vec<u8>>) -> Event + Send + 'static,
) {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let result = pipe.by_ref().take(max + 1).read_to_end(&mut bytes);
        let _ = send.send(event(result.map(|_| bytes)));
        // The rest is drained, so that a talkative program still ends.
        let _ = io::copy(&mut pipe, &mut io::sink());
    });
}

fn collect(
    events: &Receiver<Event>,
    program: &str,
    args: &[&str],
    deadline: Instant,
    limit: Duration,
    max: u64,
) -> Result<(String, String), ToolError> {
    let command = || command_line(program, args);
    let (mut stdout, mut stderr, mut ended) = (None, None, false);
    while stdout.is_none() || stderr.is_none() || !ended {
        let left = deadline.saturating_duration_since(Instant::now());
        match events.recv_timeout(left) {
            Ok(Event::Stdout(Ok(bytes))) if bytes.len() as u64 > max => {
                return Err(ToolError::TooMuch {
                    command: command(),
                    max,
                });
            }
            Ok(Event::Stdout(Ok(bytes))) => {
                let text = String::from_utf8(bytes).map_err(|e| ToolError::Output {
                    command: command(),
                    source: io::Error::new(io::ErrorKind::InvalidData, e.utf8_error()),
                })?;
                stdout = Some(text);
            }
            Ok(Event::Stdout(Err(source))) => {
                return Err(ToolError::Output {
                    command: command(),
                    source,
                });
            }
            Ok(Event::Stderr(bytes)) => {
                stderr = Some(String::from_utf8_lossy(&bytes).into_owned());
            }
            Ok(Event::Ended) => ended = true,
            Err(_) => {
                return Err(ToolError::Late {
                    command: command(),
                    seconds: limit.as_secs(),
                });
            }
        }
    }
    Ok((stdout.unwrap_or_default(), stderr.unwrap_or_default()))
}

/// A command as it is printed in messages: cut, because a call may name hundreds of
/// datasets.
fn command_line(program: &str, args: &[&str]) -> String {
    let full = [&[program], args].concat().join(" ");
    match full.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &full[..end]),
        None => full,
    }
}

fn one_line(text: &str) -> String {
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match joined.is_empty() {
        true => "it said nothing".to_owned(),
        false => joined.chars().take(500).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const PLENTY: Duration = Duration::from_secs(30);

    fn sh(script: &str, limit: Duration, max: u64) -> Result<ToolOutput, ToolError> {
        run_bounded("/bin/sh", &["-c", script], limit, max)
    }

    #[test]
    fn the_environment_is_empty_and_input_is_at_its_end() {
        let script = "/usr/bin/env | /usr/bin/sort; cat; pwd; echo bad >&2; exit 3";
        let output = sh(script, PLENTY, 4096).unwrap();
        assert_eq!(output.code, Some(3));
        // The shell itself adds PWD (and, as bash, SHLVL and _) to what it passes on.
        let own = |line: &&str| !["PWD=", "SHLVL=", "_="].iter().any(|p| line.starts_with(p));
        let lines: Vec<&str> = output.stdout.lines().filter(own).collect();
        assert_eq!(lines, ["LC_ALL=C", "/"]);
        assert_eq!(output.stderr, "bad\n");
    }

    #[test]
    fn a_late_program_and_its_children_are_killed() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", mark.display());
        let before = Instant::now();
        let error = sh(&script, SECOND, 4096).unwrap_err();
        assert!(
            matches!(error, ToolError::Late { seconds: 1, .. }),
            "{error}"
        );
        assert!(before.elapsed() < Duration::from_secs(20));
        let pid = std::fs::read_to_string(mark).unwrap().trim().to_owned();
        let gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        };
        while !gone() {
            assert!(before.elapsed() < Duration::from_secs(20), "{pid} lives on");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_program_that_closes_its_output_and_lives_on_is_late() {
        let error = sh("exec >&- 2>&-; exec sleep 600", SECOND, 4096).unwrap_err();
        assert!(matches!(error, ToolError::Late { .. }), "{error}");
    }

    #[test]
    fn too_much_output_and_bytes_that_are_not_text_are_errors() {
        assert_eq!(sh("printf 1234", PLENTY, 4).unwrap().stdout, "1234");
        let error = sh("printf 12345", PLENTY, 4).unwrap_err();
        assert!(
            matches!(error, ToolError::TooMuch { max: 4, .. }),
            "{error}"
        );
        let error = sh("cat /dev/zero", PLENTY, 4).unwrap_err();
        assert!(
            matches!(error, ToolError::TooMuch { max: 4, .. }),
            "{error}"
        );
        let error = sh("printf '\\377'", PLENTY, 4).unwrap_err();
        assert!(matches!(error, ToolError::Output { .. }), "{error}");
    }

    #[test]
    fn a_failure_is_told_with_its_complaint() {
        let error = ask(
            &HostTools,
            "/bin/sh",
            &["-c", "echo no pool >&2; exit 1"],
            PLENTY,
        );
        assert_eq!(
            error.unwrap_err().to_string(),
            "/bin/sh -c echo no pool >&2; exit 1 ended with status 1: no pool"
        );
        let error = ask(&HostTools, "/bin/sh", &["-c", "kill -9 $$"], PLENTY).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("status signal: it said nothing"),
            "{error}"
        );
        for bad in ["zpool", "/no/such/program"] {
            let error = HostTools.run(bad, &[], PLENTY).unwrap_err();
            assert!(matches!(error, ToolError::Start { .. }), "{error}");
        }
    }
}
