//! Pauses between attempts.

use std::time::Duration;

use crate::process::random_byte;

pub(crate) const FIRST: Duration = Duration::from_millis(10);
pub(crate) const LONGEST: Duration = Duration::from_millis(500);

/// Pauses that double up to a bound, less a random part, so that instances do not all try again at once.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// Whether at most one pause was taken.
    pub(crate) fn is_first(&self) -> bool {
        self.attempts <= 1
    }

    /// The pause before the next attempt.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = FIRST.saturating_mul(1 << self.attempts.min(16)).min(LONGEST);
        self.attempts += 1;
        // 50 to 100 percent
        let random = u32::from(random_byte()) * 50 / 255;
        pause * (50 + random) / 100
    }
}
