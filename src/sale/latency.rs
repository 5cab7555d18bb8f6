//! How long orders took in the last seconds.

use std::collections::VecDeque;
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The largest latency that is recorded exactly: a minute, in microseconds.
const LONGEST_US: u64 = 60_000_000;

/// Significant digits of a latency.
const DIGITS: u8 = 2;

/// How long an order counts.
pub const WINDOW: Duration = Duration::from_secs(5);

/// The times from the arrival of an order to its answer.
#[derive(Debug, Default)]
pub struct Latency {
    /// In microseconds: one histogram for each second that had orders, and when that second began.
    seconds: Mutex<VecDeque<(Instant, Histogram<u64>)>>,
}

impl Latency {
    /// The latencies of the last seconds, in microseconds.
    ///
    /// # Panics
    /// Never: all histograms have the same bounds.
    pub fn recent(&self) -> Histogram<u64> {
        let mut all = empty();
        for (began_at, times) in &*self.seconds.lock() {
            if began_at.elapsed() < WINDOW {
                all.add(times).expect("all have the same bounds");
            }
        }
        all
    }

    pub(super) fn note(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(LONGEST_US);
        let mut seconds = self.seconds.lock();
        if seconds.back().is_none_or(|(began_at, _)| began_at.elapsed() >= Duration::from_secs(1)) {
            seconds.retain(|(began_at, _)| began_at.elapsed() < WINDOW);
            seconds.push_back((Instant::now(), empty()));
        }
        if let Some((_, times)) = seconds.back_mut() {
            times.saturating_record(us);
        }
    }
}

fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_US, DIGITS).expect("the bounds are in order")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an order counts for some seconds.
    #[tokio::test(start_paused = true)]
    async fn the_orders_of_the_last_seconds_count() {
        let latency = Latency::default();
        latency.note(Duration::from_millis(5));
        tokio::time::advance(Duration::from_secs(3)).await;
        latency.note(Duration::from_millis(7));
        assert_eq!(latency.recent().len(), 2);
        tokio::time::advance(Duration::from_secs(3)).await;
        let left = latency.recent();
        assert_eq!(left.len(), 1);
        assert!((6_900..=7_100).contains(&left.max()), "{}", left.max());
    }
}
