//! The times of a message.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Converts instants of the monotonic clock to the wall clock. The wall clock is read once, so that a change of it
/// does not distort the times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    anchor: Instant,
    /// The same on the wall clock, in milliseconds since 1970.
    anchor_ms: f64,
}

impl Clock {
    pub(super) fn start() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { anchor: Instant::now(), anchor_ms: since_1970.as_secs_f64() * 1000.0 }
    }

    /// Milliseconds since 1970, with one decimal.
    pub(super) fn ms(&self, at: Instant) -> f64 {
        let after = at.saturating_duration_since(self.anchor).as_secs_f64();
        let before = self.anchor.saturating_duration_since(at).as_secs_f64();
        round(self.anchor_ms + (after - before) * 1000.0)
    }

    pub(super) fn now_ms(&self) -> f64 {
        self.ms(Instant::now())
    }
}

/// Rounds to one decimal.
pub(super) fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
