//! `docs/recovery.md` has exactly one entry for every name a run can end with: whoever
//! stands before a stopped node finds what the console names, and nothing that is gone.

#![expect(
    clippy::unwrap_used,
    reason = "the helpers of tests fail as tests do; the lint knows only functions that are tests"
)]

use std::fmt;

use repave_plan::refusal::Refusal;
use repave_plan::stop::Stop;
use serde::Deserialize;
use serde::de::value::MapDeserializer;

const RECOVERY: &str = include_str!("../../docs/recovery.md");

#[test]
fn every_name_has_one_entry_and_no_entry_is_left_over() {
    let mut entries: Vec<&str> = RECOVERY
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .collect();
    entries.sort_unstable();
    let mut names = [Refusal::NAMES, Stop::NAMES].concat();
    names.sort_unstable();
    assert_eq!(entries, names);
}

#[test]
fn every_entry_says_what_to_type_and_how_to_know_that_it_worked() {
    let entries = RECOVERY.split("\n### ").skip(1);
    let mut seen = 0;
    for entry in entries {
        seen += 1;
        let entry = entry.split("\n## ").next().unwrap_or_default();
        let name = entry.lines().next().unwrap_or_default();
        for part in [
            "Meaning:",
            "Lost:",
            "Command:",
            "It does:",
            "It worked when:",
        ] {
            let found = entry.matches(&format!("\n- **{part}**")).count();
            assert_eq!(found, 1, "entry {name:?}, {part:?}");
        }
    }
    assert_eq!(seen, Refusal::NAMES.len() + Stop::NAMES.len());
}

/// Reports carry the tag that serde writes, messages the name: they are the same word.
#[test]
fn a_name_is_the_tag_in_a_report() {
    assert_eq!(tags::<Refusal>("refusal"), Refusal::NAMES);
    assert_eq!(tags::<Stop>("stop"), Stop::NAMES);
}

/// The variants that the derived reader of a tagged enum knows: it lists them in the
/// error for a tag it does not know.
fn tags<T: for<'de> Deserialize<'de> + fmt::Debug>(tag: &'static str) -> &'static [&'static str] {
    let unknown = MapDeserializer::<_, Unknown>::new([(tag, "no such name")].into_iter());
    T::deserialize(unknown).unwrap_err().known
}

#[derive(Debug)]
struct Unknown {
    known: &'static [&'static str],
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected one of {:?}", self.known)
    }
}

impl std::error::Error for Unknown {}

impl serde::de::Error for Unknown {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Unknown { known: &[] }
    }

    fn unknown_variant(_: &str, known: &'static [&'static str]) -> Self {
        Unknown { known }
    }
}
