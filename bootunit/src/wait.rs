//! Waiting for a condition, with a deadline: the one place that may sleep.

use std::time::{Duration, Instant};

/// How long between two looks: short against a udev event (0.2 s were measured), long
/// against a look.
const STEP: Duration = Duration::from_millis(20);

/// Looks again and again until the condition holds; whether it came to hold in time.
pub fn until<E>(limit: Duration, mut holds: impl FnMut() -> Result<bool, E>) -> Result<bool, E> {
    let deadline = Instant::now() + limit;
    loop {
        if holds()? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        #[expect(clippy::disallowed_methods, reason = "the one place that waits")]
        std::thread::sleep(STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_never_holds_ends_at_the_deadline() {
        let begun = Instant::now();
        assert_eq!(
            until(Duration::from_millis(50), || Ok::<_, ()>(false)),
            Ok(false)
        );
        assert!(begun.elapsed() >= Duration::from_millis(50));
    }

    #[test]
    fn a_condition_is_looked_at_before_the_deadline_counts() {
        assert_eq!(until(Duration::ZERO, || Ok::<_, ()>(true)), Ok(true));
        let mut looks = 0;
        let third = || {
            looks += 1;
            Ok::<_, ()>(looks == 3)
        };
        assert_eq!(until(Duration::from_secs(5), third), Ok(true));
    }
}
