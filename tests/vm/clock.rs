//! The guest's clock. A guest restarted later goes on from its own time, not from
//! the host's: a saved guest may be days old, and a clock that jumps by itself
//! would make every armed intent stale.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// QEMU's `-rtc base=` value for a moment, in UTC.
pub fn rtc_base(moment: SystemTime) -> String {
    let seconds = moment
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs();
    let (year, month, day) = civil(seconds / 86_400);
    let rest = seconds % 86_400;
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// The date of a day counted from 1970-01-01, by counting from 0000-03-01, so that
/// the leap day is a year's last (Howard Hinnant, "chrono-compatible low-level date
/// algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_date_1() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (951_868_799, "2000-02-29T23:59:59"),
            (1_772_323_200, "2026-03-01T00:00:00"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            assert_eq!(rtc_base(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
