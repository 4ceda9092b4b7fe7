//! Deadlines, and the one place where the bed waits by looking again.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// A moment after which waiting is a failure.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    start: Instant,
    end: Instant,
}

impl Deadline {
    /// A deadline `seconds` from now.
    pub fn secs(seconds: u64) -> Self {
        let start = Instant::now();
        Deadline {
            start,
            end: start + Duration::from_secs(seconds),
        }
    }

    /// What is left, zero when it has passed.
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    pub fn passed(&self) -> bool {
        self.left().is_zero()
    }

    /// Calls `look` until it gives something, and fails naming `what` when the
    /// deadline passes. For things without an event to wait for: a socket file
    /// that appears, a log that grows.
    pub fn poll<T>(&self, what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if self.passed() {
                bail!("waited {} s for {what}", (self.end - self.start).as_secs());
            }
            pause(Duration::from_millis(20).min(self.left()));
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the interval of poll, which has a deadline"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poll_gives_what_was_found() {
        let mut looks = 0;
        let found = Deadline::secs(5).poll("three looks", || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert_eq!(found.unwrap(), 3);
    }

    #[test]
    fn poll_fails_at_the_deadline_with_the_reason() {
        let err = Deadline::secs(0)
            .poll::<()>("nothing", || Ok(None))
            .unwrap_err();
        assert_eq!(err.to_string(), "waited 0 s for nothing");
    }
}
