//! How long orders take, while the sale is watched.

use std::sync::atomic::{AtomicUsize, Ordering};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The largest latency that is recorded exactly: a minute, in microseconds.
const LONGEST_US: u64 = 60_000_000;

/// Significant digits of a latency.
const DIGITS: u8 = 2;

/// The time from the arrival of an order to its answer. Measured only while a client watches the sale.
#[derive(Debug, Default)]
pub struct Latency {
    watchers: AtomicUsize,
    /// In microseconds, since the last [`take`](Self::take).
    times: Mutex<Option<Histogram<u64>>>,
}

impl Latency {
    /// Measures orders until the returned value is dropped.
    pub fn watch(&self) -> Watching<'_> {
        self.watchers.fetch_add(1, Ordering::Relaxed);
        Watching(self)
    }

    /// The latencies in microseconds since the last call; `None` if there are none.
    pub fn take(&self) -> Option<Histogram<u64>> {
        self.times.lock().take()
    }

    /// A histogram of the kind that [`take`](Self::take) returns.
    ///
    /// # Panics
    /// Never: its bounds are constants that are in order.
    pub fn empty() -> Histogram<u64> {
        Histogram::new_with_bounds(1, LONGEST_US, DIGITS).expect("the bounds are in order")
    }

    /// The arrival of an order; `None` if the sale is not watched.
    pub(super) fn begin(&self) -> Option<Instant> {
        (self.watchers.load(Ordering::Relaxed) > 0).then(Instant::now)
    }

    pub(super) fn note(&self, began_at: Option<Instant>) {
        let Some(began_at) = began_at else { return };
        let us = u64::try_from(began_at.elapsed().as_micros()).unwrap_or(LONGEST_US);
        let mut times = self.times.lock();
        times.get_or_insert_with(Self::empty).saturating_record(us);
    }
}

/// A watcher. Its drop ends it.
#[derive(Debug)]
pub struct Watching<'a>(&'a Latency);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::Relaxed);
        drop(self.0.take());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Goal: nothing is measured unless the sale is watched, and each latency is returned once.
    #[tokio::test(start_paused = true)]
    async fn orders_are_measured_while_the_sale_is_watched() {
        let latency = Latency::default();
        latency.note(latency.begin());
        assert!(latency.take().is_none());
        let watching = latency.watch();
        let began_at = latency.begin();
        tokio::time::advance(Duration::from_millis(5)).await;
        latency.note(began_at);
        let times = latency.take().expect("one order");
        assert_eq!(times.len(), 1);
        assert!((4_900..=5_100).contains(&times.max()), "{}", times.max());
        assert!(latency.take().is_none());
        drop(watching);
        assert_eq!(latency.begin(), None);
    }
}
