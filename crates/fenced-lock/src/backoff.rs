//! Pauses between attempts.

use std::time::Duration;

/// Pauses that double from 20 ms up to a second.
#[derive(Default)]
pub(crate) struct Backoff {
    attempts: u32,
}

impl Backoff {
    pub(crate) fn next(&mut self) -> Duration {
        let doublings = self.attempts.min(6);
        self.attempts += 1;
        Duration::from_millis(20 << doublings).min(Duration::from_secs(1))
    }
}
