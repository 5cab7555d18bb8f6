//! The metrics of a sale. A batch or an order costs a few additions in memory.
//!
//! A new metric is a field of [`Metrics`], a line in `http/metrics.rs`, and a row in docs/operations.md.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::Span;

use super::SaleError;
use crate::inventory::{InventoryError, Outcome};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}

/// How many orders that were sent to another instance, or that others sent here, became final, not done and unknown.
#[derive(Debug, Default)]
pub struct Fates([Counter; 3]);

impl Fates {
    /// Each fate and its number.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ["final", "not-done", "unknown"].into_iter().zip(self.0.iter().map(Counter::get))
    }

    pub(super) fn note(&self, known: Known) {
        self.0[known as usize].add(1);
    }
}

/// The fate of an order that went to another instance.
#[derive(Clone, Copy)]
pub(super) enum Known {
    Final,
    NotDone,
    Unknown,
}

/// The batches on their way, by the times at which they began.
#[derive(Debug, Default)]
pub struct OnTheirWay(Mutex<Vec<Instant>>);

impl OnTheirWay {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// How long the oldest batch has been on its way; zero without one.
    pub fn oldest(&self) -> Duration {
        self.0.lock().iter().min().map(Instant::elapsed).unwrap_or_default()
    }

    /// One more batch is on its way until the returned value is dropped.
    pub(super) fn begins(&self) -> OnItsWay<'_> {
        let began_at = Instant::now();
        self.0.lock().push(began_at);
        OnItsWay(self, began_at)
    }
}

pub(super) struct OnItsWay<'a>(&'a OnTheirWay, Instant);

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        let mut all = self.0.0.lock();
        if let Some(place) = all.iter().position(|began_at| *began_at == self.1) {
            all.swap_remove(place);
        }
    }
}

/// Counts durations in buckets.
#[derive(Debug, Default)]
pub struct Histogram {
    /// The count of each bucket of [`BOUNDS`](Self::BOUNDS); the last bucket has no bound.
    buckets: [Counter; Self::BOUNDS.len() + 1],
    sum_us: Counter,
}

impl Histogram {
    /// The upper bounds of the buckets, in seconds: the smallest suit a free lock, the largest a lock whose holder died.
    pub const BOUNDS: [f64; 14] =
        [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

    fn note(&self, time: Duration) {
        let bucket = Self::BOUNDS.iter().position(|bound| time.as_secs_f64() <= *bound);
        self.buckets[bucket.unwrap_or(Self::BOUNDS.len())].add(1);
        self.sum_us.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// For each of [`BOUNDS`](Self::BOUNDS), how many durations were at most that long; last, the count of all.
    pub fn cumulative(&self) -> [u64; Self::BOUNDS.len() + 1] {
        let mut total = 0;
        self.buckets.each_ref().map(|bucket| {
            total += bucket.get();
            total
        })
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.cumulative()[Self::BOUNDS.len()]
    }

    /// The sum of all durations.
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_us.get())
    }
}

/// How an order can end: the values of the label `outcome`. Those of faults and refusals are types of problems.
pub const OUTCOMES: [&str; 32] = [
    "reserved",
    "sold-out",
    "all-held",
    "order-conflict",
    "sale-replaced",
    "confirmed",
    "cancelled",
    "expired",
    "returned",
    "order-final",
    "not-confirmed",
    "unknown-order",
    "limit-reached",
    "user-required",
    "not-started",
    "paused",
    "ended",
    ABANDONED,
    "queue-full",
    "wait-too-long",
    "lock-unavailable",
    "lock-refused",
    "store-unavailable",
    "store-misconfigured",
    "outcome-unknown",
    "store-rolled-back",
    "stale-token",
    "foreign-fence",
    "unknown-item",
    "item-required",
    "damaged",
    "stopping",
];

/// The client disconnected first.
const ABANDONED: &str = "abandoned";

/// The numbers of one instance since its start.
#[derive(Debug, Default)]
pub struct Metrics {
    orders: [Histogram; OUTCOMES.len()],
    /// Batches that the store executed.
    pub batches: Counter,
    /// The orders in these batches.
    pub batch_orders: Counter,
    /// Batches that the fence refused.
    pub stale_batches: Counter,
    /// Attempts at batches that failed in another way.
    pub store_errors: Counter,
    /// Tenures that ended because the lock was lost.
    pub lost_tenures: Counter,
    /// Tenures that ended with a handover.
    pub handovers: Counter,
    /// Durations of the batches.
    pub batch_time: Histogram,
    /// Orders that were sent to the holder of the lock.
    pub forwarded: Fates,
    /// Orders that others have sent to this instance as the holder.
    pub received: Fates,
    /// Batches on their way to the holder.
    pub forwarding: OnTheirWay,
    /// Turns that were asked for because orders could not go to the holder.
    pub turns_asked: Counter,
    /// Waits for a grant.
    pub lock_wait: Histogram,
    /// Durations of the tenures that ended.
    pub tenure_time: Histogram,
}

impl Metrics {
    /// The times from the arrival of an order to its end, in the order of [`OUTCOMES`].
    pub fn order_times(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        OUTCOMES.into_iter().zip(&self.orders)
    }

    /// How many orders ended in which way, in the order of [`OUTCOMES`].
    pub fn orders(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.order_times().map(|(outcome, times)| (outcome, times.count()))
    }

    pub(super) fn order(&self) -> OrderCount<'_> {
        OrderCount { metrics: self, outcome: ABANDONED, began_at: Instant::now() }
    }

    /// A batch of this many orders has ended.
    pub(super) fn batch<T>(
        &self,
        orders: usize,
        began_at: Instant,
        result: &Result<T, InventoryError>,
    ) {
        match result {
            Ok(_) => {
                self.batches.add(1);
                self.batch_orders.add(u64::try_from(orders).unwrap_or(u64::MAX));
                self.batch_time.note(began_at.elapsed());
            }
            Err(InventoryError::StaleToken { .. }) => self.stale_batches.add(1),
            Err(_) => self.store_errors.add(1),
        }
    }

    /// The lock, requested at `asked_at`, was granted under this token. Dropping the returned value ends the tenure.
    pub(super) fn granted(&self, asked_at: Instant, token: i64) -> TenureCount<'_> {
        let granted_at = Instant::now();
        self.lock_wait.note(granted_at - asked_at);
        TenureCount { metrics: self, granted_at, span: tracing::debug_span!("tenure", token) }
    }
}

/// An order that has come. Dropping it counts the order, as abandoned unless it has [ended](Self::end).
pub(super) struct OrderCount<'a> {
    metrics: &'a Metrics,
    outcome: &'static str,
    began_at: Instant,
}

impl OrderCount<'_> {
    pub(super) fn end(mut self, answer: &Result<Outcome, SaleError>) {
        self.outcome = answer.as_ref().map_or_else(SaleError::word, Outcome::word);
    }
}

impl Drop for OrderCount<'_> {
    fn drop(&mut self) {
        // `reserved` and `sold-out` are the most frequent, and come first
        if let Some(index) = OUTCOMES.iter().position(|outcome| *outcome == self.outcome) {
            self.metrics.orders[index].note(self.began_at.elapsed());
        }
    }
}

/// A tenure that has begun. Dropping it notes its duration.
pub(super) struct TenureCount<'a> {
    metrics: &'a Metrics,
    granted_at: Instant,
    pub(super) span: Span,
}

impl Drop for TenureCount<'_> {
    fn drop(&mut self) {
        self.metrics.tenure_time.note(self.granted_at.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn durations_are_put_into_buckets() {
        let histogram = Histogram::default();
        for millis in [0, 1, 3, 30_000, 30_001] {
            histogram.note(Duration::from_millis(millis));
        }
        let cumulative = histogram.cumulative();
        assert_eq!(cumulative[..4], [1, 2, 2, 3]);
        assert_eq!(cumulative[12..], [3, 4, 5]);
        assert_eq!(histogram.sum(), Duration::from_millis(60_005));
    }
}
