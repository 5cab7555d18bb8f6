//! Pauses between attempts.

use std::time::Duration;

use super::random::jitter;

/// Pauses that double. A random part, at most half, is cut from each, so that callers that failed together do not try together.
#[derive(Default)]
pub(crate) struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// The next pause, from 20 ms up to a second.
    pub(crate) fn next(&mut self) -> Duration {
        self.doubled(Duration::from_millis(20), Duration::from_secs(1))
    }

    /// The next pause, from a second up to a minute, for attempts that are unlikely to help.
    pub(crate) fn next_rare(&mut self) -> Duration {
        self.doubled(Duration::from_secs(1), Duration::from_secs(60))
    }

    fn doubled(&mut self, first: Duration, longest: Duration) -> Duration {
        let doublings = self.attempts.min(6);
        self.attempts += 1;
        (first * (1 << doublings)).min(longest).mul_f64(jitter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: two callers that failed together try again at different times, and no pause is shorter than half of its maximum.
    #[test]
    fn pauses_differ() {
        let pauses = || {
            let mut backoff = Backoff::default();
            [(); 10].map(|()| backoff.next())
        };
        let (one, other) = (pauses(), pauses());
        assert_ne!(one, other);
        for (pause, longest_ms) in one.into_iter().zip([20, 40, 80, 160, 320, 640, 1000, 1000]) {
            let longest = Duration::from_millis(longest_ms);
            assert!(pause >= longest / 2 && pause <= longest, "{pause:?} of {longest:?}");
        }
    }
}
