//! How long orders take, while the sale is watched.

use std::sync::atomic::{AtomicUsize, Ordering};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The longest time that is told apart: a minute, in microseconds.
const LONGEST_US: u64 = 60_000_000;

/// How many digits of a time count.
const DIGITS: u8 = 2;

/// How long orders take from their arrival to their answer. Nothing is measured while nobody watches.
#[derive(Debug, Default)]
pub struct Latency {
    watchers: AtomicUsize,
    /// In microseconds, since it was last taken.
    times: Mutex<Option<Histogram<u64>>>,
}

impl Latency {
    /// Has orders measured for as long as the answer lives.
    pub fn watch(&self) -> Watching<'_> {
        self.watchers.fetch_add(1, Ordering::Relaxed);
        Watching(self)
    }

    /// The times in microseconds since this was last asked; `None` if there are none.
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

    /// When an order has come, if the sale is watched.
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

/// A watcher; ends with its drop.
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

    /// Goal: nothing is measured unless the sale is watched, and each time is told once.
    #[tokio::test(start_paused = true)]
    async fn times_are_taken_while_somebody_watches() {
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
