//! The command line of `repave-boot`, and its help.

use std::path::{Path, PathBuf};

use repave_boot::state_dir::DEFAULT;
use repave_plan::report::EXIT_DONE;
use repave_plan::units::PoolGuid;
use repave_survey::block_io::BlockRead;
use repave_survey::device::FileDev;
use repave_survey::labels::{read_labels, render};

/// What `--help` prints.
pub const HELP: &str = "\
repave-boot: does, at early boot, what a node was armed with; goes on by hand when it stopped

  repave-boot run                 what repave-boot.service starts
  repave-boot finish              what repave-finish.service starts
  repave-boot status [--json]     armed or not, which run, which step, what to do next
  repave-boot resume              go on with a run that stopped, then start k3s
             [--once-more]        even though it was tried as often as it may be
  repave-boot labels PATH [--json] the ZFS labels on a device or image
  repave-boot clear-labels PATH --pool-guid GUID [--force]   clear a dead pool's labels
  repave-boot cleanup             what repave-cleanup.service starts
  repave-boot self-test           prove that this program can run here
  repave-boot --version

  --state DIR                     the state directory (default /var/lib/repave)

exit codes: 0 done, or nothing to do   2 wrong call or environment
           10 refused, nothing was changed   11 not run   20 stopped, something was changed

after a stop:   ssh NODE repave-boot status;  ssh NODE repave-boot resume
";

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Run,
    Finish,
    Status,
    Resume,
    SelfTest,
    Labels,
    ClearLabels,
    Cleanup,
    Help,
    Version,
}

/// The parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Args {
    pub verb: Verb,
    pub state: PathBuf,
    pub json: bool,
    pub once_more: bool,
    pub force: bool,
    pub pool_guid: Option<PoolGuid>,
    pub path: Option<PathBuf>,
}

impl Args {
    /// Parses the words after the program's name.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Args, String> {
        let mut args = Args {
            verb: Verb::Help,
            state: PathBuf::from(DEFAULT),
            json: false,
            once_more: false,
            force: false,
            pool_guid: None,
            path: None,
        };
        let mut verb = None;
        let mut words = words.peekable();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--help" | "-h" | "help" => {
                    return Ok(Args {
                        verb: Verb::Help,
                        ..args
                    });
                }
                "--version" => {
                    return Ok(Args {
                        verb: Verb::Version,
                        ..args
                    });
                }
                "--state" => {
                    let dir = words.next().ok_or("--state takes a directory")?;
                    args.state = PathBuf::from(dir);
                }
                "--json" => args.json = true,
                "--once-more" => args.once_more = true,
                "--force" => args.force = true,
                "--pool-guid" => {
                    let guid = words.next().ok_or("--pool-guid takes a pool's guid")?;
                    let guid = guid.parse().map_err(|e| format!("--pool-guid: {e}"))?;
                    args.pool_guid = Some(guid);
                }
                flag if flag.starts_with('-') => {
                    return Err(format!("{flag} is no option; see repave-boot --help"));
                }
                name if verb.is_none() => verb = Some(verb_of(name)?),
                path if matches!(verb, Some(Verb::Labels | Verb::ClearLabels))
                    && args.path.is_none() =>
                {
                    args.path = Some(PathBuf::from(path));
                }
                extra => return Err(format!("{extra:?} is one word too many")),
            }
        }
        args.verb = verb.ok_or("a verb is missing; see repave-boot --help")?;
        args.check()
    }

    fn check(self) -> Result<Args, String> {
        if self.json && !matches!(self.verb, Verb::Status | Verb::Labels) {
            return Err("--json goes with status and labels".to_owned());
        }
        if self.once_more && self.verb != Verb::Resume {
            return Err("--once-more goes with resume".to_owned());
        }
        if matches!(self.verb, Verb::Labels | Verb::ClearLabels) && self.path.is_none() {
            return Err("labels and clear-labels take a device or an image".to_owned());
        }
        if (self.verb == Verb::ClearLabels) != self.pool_guid.is_some() {
            return Err("clear-labels goes with --pool-guid, and only it".to_owned());
        }
        if self.force && self.verb != Verb::ClearLabels {
            return Err("--force goes with clear-labels".to_owned());
        }
        Ok(self)
    }
}

fn verb_of(name: &str) -> Result<Verb, String> {
    Ok(match name {
        "run" => Verb::Run,
        "finish" => Verb::Finish,
        "status" => Verb::Status,
        "resume" => Verb::Resume,
        "self-test" => Verb::SelfTest,
        "labels" => Verb::Labels,
        "clear-labels" => Verb::ClearLabels,
        "cleanup" => Verb::Cleanup,
        other => return Err(format!("{other:?} is no verb; see repave-boot --help")),
    })
}

/// Shows the labels of a device or image.
pub fn labels(args: &Args) -> Result<u8, Box<dyn std::error::Error>> {
    let path = args.path.as_deref().unwrap_or(Path::new(""));
    let dev = FileDev::open(path, None)?;
    let set = read_labels(&dev, 0..dev.len())?;
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&set)?),
        false => print!("{}", render(&set)),
    }
    Ok(EXIT_DONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Args, String> {
        Args::parse(words.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn verbs_and_options() {
        let args = parse("status --json --state /tmp/s").unwrap();
        assert_eq!((args.verb, args.json), (Verb::Status, true));
        assert_eq!(args.state, Path::new("/tmp/s"));
        assert!(parse("resume --once-more").unwrap().once_more);
        assert_eq!(
            parse("labels /dev/x").unwrap().path.unwrap(),
            Path::new("/dev/x")
        );
        assert_eq!(parse("run --help").unwrap().verb, Verb::Help);
    }

    #[test]
    fn wrong_calls_are_named() {
        for (words, part) in [
            ("", "a verb is missing"),
            ("wipe", "\"wipe\" is no verb"),
            ("run --force", "--force goes with"),
            ("run --now", "--now is no option"),
            ("clear-labels /dev/x", "goes with --pool-guid"),
            ("clear-labels /dev/x --pool-guid tank", "is not a ZFS guid"),
            ("run now", "one word too many"),
            ("run --json", "--json goes with"),
            ("run --once-more", "--once-more goes with"),
            ("labels", "take a device"),
            ("run --state", "--state takes"),
        ] {
            assert!(parse(words).unwrap_err().contains(part), "{words:?}");
        }
    }

    #[test]
    fn the_help_fits_a_screen() {
        assert!(HELP.lines().count() <= 24);
        assert!(HELP.lines().all(|line| line.chars().count() <= 100));
    }
}
