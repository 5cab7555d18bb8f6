//! Times in the messages.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Converts instants of the monotonic clock to the wall clock. Anchored once, so that a change of the wall clock
/// does not distort the charts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    anchor: Instant,
    anchor_ms: f64,
}

impl Clock {
    pub(super) fn start() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { anchor: Instant::now(), anchor_ms: round(since_1970.as_secs_f64() * 1000.0) }
    }

    /// Milliseconds since 1970, with one decimal.
    pub(super) fn ms(&self, at: Instant) -> f64 {
        let after = at.saturating_duration_since(self.anchor).as_secs_f64();
        let before = self.anchor.saturating_duration_since(at).as_secs_f64();
        round(self.anchor_ms + (after - before) * 1000.0)
    }
}

/// Rounds to one decimal.
pub(super) fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
