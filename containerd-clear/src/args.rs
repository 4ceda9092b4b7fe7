//! The command line of the small binary: a handful of options, parsed by hand, because the
//! boot program links this crate and is to stay small. Pure.

use std::path::PathBuf;

use repave_plan::policy::ClearMode;
use thiserror::Error;

/// How to use the program.
pub const USAGE: &str = "\
containerd-clear inspect      [OPTIONS]  show what clearing would take and which images would stay
containerd-clear clear        [OPTIONS]  clear; containerd must not run
containerd-clear remove-aside [OPTIONS]  remove the trees that clearing moved aside

  --root DIR          containerd's root (default: the first of /var/lib/rancher/k3s/agent/containerd
                      and /var/lib/containerd that is there)
  --snapshotter NAME  the snapshotter whose snapshots are lost (default: zfs)
  --mode MODE         snapshots (default), all or none
  --keep DIR          where the old database is kept (default: /var/lib/repave/by-hand)
  --pinned IMAGE      an image whose layers are read and hashed; may be repeated
  --verify            read and hash the layers of every image
  --dry-run           clear: only say what would be done
  --json              print JSON

Exit codes: 0 done; 2 usage or environment; 10 refused, nothing was changed; 20 stopped halfway,
run it again.";

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Show.
    Inspect,
    /// Clear.
    Clear,
    /// Remove what was moved aside.
    RemoveAside,
    /// Print the usage.
    Help,
}

/// A parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Args {
    /// What is to be done.
    pub verb: Verb,
    /// containerd's root, if it was given.
    pub root: Option<PathBuf>,
    /// The snapshotter.
    pub snapshotter: String,
    /// How much is cleared.
    pub mode: ClearMode,
    /// Where the old database is kept.
    pub keep: PathBuf,
    /// Images whose layers are hashed.
    pub pinned: Vec<String>,
    /// Whether all are.
    pub verify: bool,
    /// Whether nothing is to be changed.
    pub dry_run: bool,
    /// Whether JSON is printed.
    pub json: bool,
}

/// Why a command line makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ArgsError {
    /// No verb.
    #[error("find what to do: inspect, clear or remove-aside")]
    NoVerb,
    /// A word that is not known.
    #[error("understand {word:?}")]
    Unknown {
        /// The word.
        word: String,
    },
    /// An option without its value.
    #[error("find the value of {option}")]
    NoValue {
        /// The option.
        option: String,
    },
}

/// Parses the words after the program's name.
pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Args, ArgsError> {
    let mut words = words.into_iter();
    let verb = words.next().ok_or(ArgsError::NoVerb)?;
    let verb = match verb.as_str() {
        "inspect" => Verb::Inspect,
        "clear" => Verb::Clear,
        "remove-aside" => Verb::RemoveAside,
        "help" | "--help" | "-h" => Verb::Help,
        _ => return Err(ArgsError::Unknown { word: verb }),
    };
    let mut args = Args {
        verb,
        root: None,
        snapshotter: "zfs".to_owned(),
        mode: ClearMode::Snapshots,
        keep: "/var/lib/repave/by-hand".into(),
        pinned: Vec::new(),
        verify: false,
        dry_run: false,
        json: false,
    };
    while let Some(word) = words.next() {
        let (option, mut inline) = match word.split_once('=') {
            Some((option, value)) => (option.to_owned(), Some(value.to_owned())),
            None => (word.clone(), None),
        };
        let mut value = || {
            let value = inline.take().or_else(|| words.next());
            let option = option.clone();
            value
                .filter(|value| !value.is_empty())
                .ok_or(ArgsError::NoValue { option })
        };
        match option.as_str() {
            "--root" => args.root = Some(value()?.into()),
            "--snapshotter" => args.snapshotter = value()?,
            "--mode" => args.mode = parse_mode(value()?)?,
            "--keep" => args.keep = value()?.into(),
            "--pinned" => args.pinned.push(value()?),
            "--verify" => args.verify = true,
            "--dry-run" => args.dry_run = true,
            "--json" => args.json = true,
            "--help" | "-h" => args.verb = Verb::Help,
            _ => return Err(ArgsError::Unknown { word }),
        }
        // A flag takes no value: "--verify=no" must not verify.
        if inline.is_some() {
            return Err(ArgsError::Unknown { word });
        }
    }
    Ok(args)
}

fn parse_mode(word: String) -> Result<ClearMode, ArgsError> {
    match word.as_str() {
        "snapshots" => Ok(ClearMode::Snapshots),
        "all" => Ok(ClearMode::All),
        "none" => Ok(ClearMode::None),
        _ => Err(ArgsError::Unknown { word }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Args, ArgsError> {
        parse(line.split_ascii_whitespace().map(str::to_owned))
    }

    #[test]
    fn every_option_reaches_its_field() {
        let line = "clear --root /r --snapshotter=overlayfs --mode all --keep /k --pinned a \
                    --pinned b --verify --dry-run --json";
        let expected = Args {
            verb: Verb::Clear,
            root: Some("/r".into()),
            snapshotter: "overlayfs".to_owned(),
            mode: ClearMode::All,
            keep: "/k".into(),
            pinned: vec!["a".to_owned(), "b".to_owned()],
            verify: true,
            dry_run: true,
            json: true,
        };
        assert_eq!(parsed(line), Ok(expected));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let unknown = |word: &str| ArgsError::Unknown {
            word: word.to_owned(),
        };
        let cases = [
            ("", ArgsError::NoVerb),
            ("wipe", unknown("wipe")),
            ("clear --force", unknown("--force")),
            ("clear --verify=no", unknown("--verify=no")),
            ("clear --mode some", unknown("some")),
            ("clear extra", unknown("extra")),
            (
                "clear --root",
                ArgsError::NoValue {
                    option: "--root".to_owned(),
                },
            ),
        ];
        for (line, error) in cases {
            assert_eq!(parsed(line), Err(error), "{line}");
        }
    }
}
