//! The name of a run: when it was armed, and four digits that keep two runs apart.

use anyhow::Context as _;
use repave_plan::units::{RunId, UnixTime};

use crate::Now;

/// `20261130t163500-a1b2`: sorts by time, and is safe as a folder's and a unit's name.
pub fn run_id(now: Now) -> anyhow::Result<RunId> {
    let [a, b] = now.random;
    format!("{}-{a:02x}{b:02x}", compact(now.time))
        .parse()
        .context("make a run id of the clock")
}

/// `20261130t163500`, UTC.
fn compact(time: UnixTime) -> String {
    let (year, month, day) = date(time.0 / 86_400);
    let (hour, minute, second) = (time.0 / 3600 % 24, time.0 / 60 % 60, time.0 % 60);
    format!("{year:04}{month:02}{day:02}t{hour:02}{minute:02}{second:02}")
}

/// `2026-11-30 16:35:00 UTC`, for people.
pub fn shown(time: UnixTime) -> String {
    let (year, month, day) = date(time.0 / 86_400);
    let (hour, minute, second) = (time.0 / 3600 % 24, time.0 / 60 % 60, time.0 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Year, month and day of a count of days since 1970-01-01, in the Gregorian calendar:
/// an era is the 146,097 days of 400 years, and a year is counted from March, so that
/// the leap day is its last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, turn) = match month < 10 {
        true => (month + 3, 0),
        false => (month - 9, 1),
    };
    (era * 400 + year + turn, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // `date -u -d @N +%Y%m%dt%H%M%S`
        for (seconds, text) in [
            (0, "19700101t000000"),
            (951_782_399, "20000228t235959"),
            (951_782_400, "20000229t000000"),
            (951_868_800, "20000301t000000"),
            (1_709_164_800, "20240229t000000"),
            (1_735_689_599, "20241231t235959"),
            (1_796_056_500, "20261130t163500"),
            (4_107_542_400, "21000301t000000"),
        ] {
            assert_eq!(compact(UnixTime(seconds)), text);
        }
        assert_eq!(shown(UnixTime(1_796_056_500)), "2026-11-30 16:35:00 UTC");
    }

    #[test]
    fn a_run_id_is_time_and_four_digits() {
        let now = Now {
            time: UnixTime(1_796_056_500),
            random: [0xa1, 0x02],
        };
        assert_eq!(run_id(now).unwrap().as_str(), "20261130t163500-a102");
    }
}
