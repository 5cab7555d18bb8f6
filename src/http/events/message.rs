//! What the parts of a message have in common: lists that grow, and times.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tokio::time::Instant;

/// The latest entries of a list that grows.
#[derive(Default)]
pub(super) struct Recent<const MAX: usize> {
    entries: VecDeque<Value>,
    /// Those that were in no message yet.
    new: Vec<Value>,
}

impl<const MAX: usize> Recent<MAX> {
    pub(super) fn push(&mut self, entry: Value) {
        if self.entries.len() == MAX {
            self.entries.pop_front();
        }
        self.entries.push_back(entry.clone());
        self.new.push(entry);
    }

    /// The entries since the last call, or all.
    pub(super) fn take(&mut self, all: bool) -> Vec<Value> {
        let new = std::mem::take(&mut self.new);
        if all { self.entries.iter().cloned().collect() } else { new }
    }
}

/// Converts instants of the monotonic clock to the wall clock. The wall clock is read once, so that a change of it
/// does not distort the charts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    anchor: Instant,
    /// The same on the wall clock, in milliseconds since 1970.
    pub(super) anchor_ms: f64,
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

    pub(super) fn now_ms(&self) -> f64 {
        self.ms(Instant::now())
    }
}

/// Rounds to one decimal.
pub(super) fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
