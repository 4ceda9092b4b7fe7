//! Lines that tell a person what is being done and roughly how long is left.

use std::time::Instant;

/// Prints steps to stderr with the time passed since it was made.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    start: Instant,
}

impl Progress {
    /// Starts the clock.
    pub fn start() -> Self {
        Progress {
            start: Instant::now(),
        }
    }

    /// Announces a step that is rough `minutes` away from the end of the whole.
    pub fn step(&self, text: &str, minutes: f32) {
        let passed = self.start.elapsed().as_secs();
        if minutes < 1.0 {
            eprintln!("[{passed:4} s] {text} (less than a minute left)");
        } else {
            eprintln!("[{passed:4} s] {text} (about {minutes:.0} min left)");
        }
    }

    /// Says that something is done or was found.
    pub fn done(&self, text: &str) {
        eprintln!("[{:4} s] {text}", self.start.elapsed().as_secs());
    }
}
