//! The journal: what was done, one JSON line per record.
//!
//! Pure: makes a record's line and parses a journal's bytes. The boot program appends
//! and syncs each line before it acts on it. Only an unterminated last line may be
//! dropped, because only that can be the write the power cut tore.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::step::{Outcome, StepName};
use crate::units::{BootId, Digest, RunId, UnixTime};

/// The version of the journal format.
pub const VERSION: u32 = 1;

/// The largest journal that is read, in bytes: a run writes some kilobytes.
pub const MAX_SIZE: usize = 8 * 1024 * 1024;

/// One line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Record {
    /// An attempt begins. The number of these is the number of attempts.
    Attempt {
        /// The format's version.
        version: u32,
        /// The run.
        run_id: RunId,
        /// The digest of the sealed intent's bytes.
        intent: Digest,
        /// The boot in which this attempt runs.
        boot_id: BootId,
        /// The clock.
        at: UnixTime,
    },
    /// A step begins.
    Begin {
        /// The step.
        step: StepName,
        /// The clock.
        at: UnixTime,
    },
    /// What was read back after a step.
    Proof {
        /// The step.
        step: StepName,
        /// What was read, by name.
        facts: BTreeMap<String, String>,
    },
    /// A step is done and proved.
    Done {
        /// The step.
        step: StepName,
        /// Whether anything had to be done.
        outcome: Outcome,
        /// The boot in which it was done or found done.
        boot_id: BootId,
        /// How long it took, in milliseconds.
        millis: u64,
        /// The clock.
        at: UnixTime,
    },
    /// The attempt stopped.
    Stopped {
        /// The stop's name.
        name: String,
        /// The whole message.
        message: String,
        /// The clock.
        at: UnixTime,
    },
}

/// Why a journal cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// It is too large to be one.
    #[error("the journal has {size} bytes, {MAX_SIZE} at most")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
    },
    /// A complete line is no record.
    #[error("line {line} of the journal is not a record: {why}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// The parser's words.
        why: String,
    },
    /// It was written by a newer program.
    #[error("the journal has format version {found}, this program knows {VERSION}")]
    Newer {
        /// The version in it.
        found: u32,
    },
}

/// A record's line, terminated.
pub fn line(record: &Record) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = serde_json::to_vec(record)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// A journal's records, and how many bytes of it are whole lines: what follows them
/// is a torn line that the next append must cut off first.
pub fn parse_journal(bytes: &[u8]) -> Result<(Vec<Record>, usize), JournalError> {
    if bytes.len() > MAX_SIZE {
        return Err(JournalError::TooLarge { size: bytes.len() });
    }
    let whole = bytes
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |at| at + 1);
    let mut records = Vec::new();
    for (index, text) in bytes[..whole].split_inclusive(|b| *b == b'\n').enumerate() {
        let record: Record = serde_json::from_slice(text).map_err(|e| JournalError::Line {
            line: index + 1,
            why: e.to_string(),
        })?;
        if let Record::Attempt { version, .. } = &record
            && *version > VERSION
        {
            return Err(JournalError::Newer { found: *version });
        }
        records.push(record);
    }
    Ok((records, whole))
}

/// How many attempts a journal counts.
pub fn attempts(records: &[Record]) -> u32 {
    let count = records
        .iter()
        .filter(|r| matches!(r, Record::Attempt { .. }))
        .count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Whether every one of these steps was done, or found done, in this boot. The
/// finish unit asks it: a done of an earlier boot says nothing about the pool that
/// is imported now.
pub fn all_done_in(records: &[Record], steps: &[StepName], boot: &BootId) -> bool {
    steps.iter().all(|wanted| {
        records.iter().any(|record| {
            matches!(record, Record::Done { step, boot_id, .. } if step == wanted && boot_id == boot)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(step: StepName) -> Record {
        Record::Begin {
            step,
            at: UnixTime(7),
        }
    }

    fn done(step: StepName, boot: char) -> Record {
        Record::Done {
            step,
            outcome: Outcome::Changed,
            boot_id: boot_id(boot),
            millis: 3,
            at: UnixTime(8),
        }
    }

    fn boot_id(c: char) -> BootId {
        c.to_string().repeat(32).parse().unwrap()
    }

    fn text(records: &[Record]) -> Vec<u8> {
        records.iter().flat_map(|r| line(r).unwrap()).collect()
    }

    #[test]
    fn only_a_torn_last_line_is_dropped() {
        let records = [begin(StepName::LabelClear), done(StepName::LabelClear, 'a')];
        let whole = text(&records);
        let first = line(&records[0]).unwrap().len();
        for cut in 0..=whole.len() {
            let (parsed, kept) = parse_journal(&whole[..cut]).unwrap();
            let lines = usize::from(cut >= first) + usize::from(cut == whole.len());
            assert_eq!(parsed, records[..lines], "cut at {cut}");
            assert_eq!(kept, [0, first, whole.len()][lines], "cut at {cut}");
        }
    }

    #[test]
    fn a_damaged_whole_line_is_an_error() {
        let mut bytes = text(&[begin(StepName::LabelClear), begin(StepName::TableWrite)]);
        bytes[3] ^= 1;
        let Err(JournalError::Line { line: 1, .. }) = parse_journal(&bytes) else {
            panic!("a flipped byte in line 1 was taken")
        };
        let blank = b"\n";
        assert!(matches!(
            parse_journal(blank),
            Err(JournalError::Line { line: 1, .. })
        ));
        let unknown = b"{\"record\":\"begin\",\"step\":\"label-clear\",\"at\":1,\"x\":1}\n";
        assert!(matches!(
            parse_journal(unknown),
            Err(JournalError::Line { line: 1, .. })
        ));
    }

    #[test]
    fn a_done_of_another_boot_does_not_count() {
        let steps = [StepName::LabelClear, StepName::TableWrite];
        let records = [
            done(StepName::LabelClear, 'a'),
            done(StepName::TableWrite, 'b'),
        ];
        assert!(!all_done_in(&records, &steps, &boot_id('b')));
        let records = [
            done(StepName::LabelClear, 'b'),
            done(StepName::TableWrite, 'b'),
        ];
        assert!(all_done_in(&records, &steps, &boot_id('b')));
        assert!(!all_done_in(&records[..1], &steps, &boot_id('b')));
    }

    #[test]
    fn attempts_are_counted_and_a_newer_format_is_not_guessed_at() {
        let attempt = |version| Record::Attempt {
            version,
            run_id: "r1".parse().unwrap(),
            intent: Digest::of(b""),
            boot_id: boot_id('a'),
            at: UnixTime(1),
        };
        let (records, _) = parse_journal(&text(&[attempt(1), attempt(1)])).unwrap();
        assert_eq!(attempts(&records), 2);
        assert_eq!(
            parse_journal(&text(&[attempt(2)])),
            Err(JournalError::Newer { found: 2 })
        );
    }
}
