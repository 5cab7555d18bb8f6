//! What an operator wants to know of a sale, counted as it happens. Counting is a few additions in
//! memory for a batch, and one for an order.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::SaleError;
use super::latency::Latency;
use crate::inventory::{InventoryError, Outcome};

/// A number that only goes up.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}

/// How long something took, by classes.
#[derive(Debug, Default)]
pub struct Histogram {
    /// How many took at most the time at the same place of [`BOUNDS`](Self::BOUNDS) and more than the
    /// one before; the last are those that took longer.
    classes: [Counter; Self::BOUNDS.len() + 1],
    sum_us: Counter,
}

impl Histogram {
    /// The upper ends of its classes: from a lock that is free to one whose holder died.
    pub const BOUNDS: [Duration; 14] = [
        Duration::from_micros(500),
        Duration::from_millis(1),
        Duration::from_micros(2500),
        Duration::from_millis(5),
        Duration::from_millis(10),
        Duration::from_millis(25),
        Duration::from_millis(50),
        Duration::from_millis(100),
        Duration::from_millis(250),
        Duration::from_millis(500),
        Duration::from_secs(1),
        Duration::from_millis(2500),
        Duration::from_secs(10),
        Duration::from_secs(30),
    ];

    fn note(&self, time: Duration) {
        let class = Self::BOUNDS.iter().position(|bound| time <= *bound);
        self.classes[class.unwrap_or(Self::BOUNDS.len())].add(1);
        self.sum_us.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// How many took at most each of [`BOUNDS`](Self::BOUNDS), and last how many there were.
    pub fn cumulated(&self) -> [u64; Self::BOUNDS.len() + 1] {
        let mut total = 0;
        self.classes.each_ref().map(|class| {
            total += class.get();
            total
        })
    }

    /// All times together.
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_us.get())
    }
}

/// How an order can end: the values of the label `outcome`.
pub const OUTCOMES: [&str; 18] = [
    "reserved",
    "sold-out",
    "conflict",
    ABANDONED,
    "queue-full",
    "wait-too-long",
    "lock-unavailable",
    "lock-refused",
    "store-unavailable",
    "store-refused",
    "store-misconfigured",
    "unknown",
    "store-rolled-back",
    "stale-token",
    "foreign-fence",
    "unknown-item",
    "damaged",
    "stopping",
];

/// The client went away before.
const ABANDONED: &str = "abandoned";

/// The numbers of one instance since its start.
#[derive(Debug, Default)]
pub struct Metrics {
    orders: [Counter; OUTCOMES.len()],
    /// Batches that the store carried out.
    pub batches: Counter,
    /// The orders in them.
    pub batch_orders: Counter,
    /// Batches that the store refused, since a later holder had written.
    pub stale_batches: Counter,
    /// Batches that failed in any other way. One that is sent again counts each time.
    pub store_errors: Counter,
    /// Tenures that ended because the lock was lost.
    pub lost_tenures: Counter,
    /// Tenures that ended by handing the lock over to the next in the queue.
    pub handovers: Counter,
    /// How long each batch took in the store.
    pub batch_time: Histogram,
    /// How long each grant of the lock was waited for.
    pub lock_wait: Histogram,
    /// How long each tenure lasted, once it has ended.
    pub tenure_time: Histogram,
    /// How long orders take, while the sale is watched.
    pub latency: Latency,
}

impl Metrics {
    /// How many orders ended in which way, in the order of [`OUTCOMES`].
    pub fn orders(&self) -> impl Iterator<Item = (&'static str, u64)> {
        OUTCOMES.into_iter().zip(self.orders.iter().map(Counter::get))
    }

    /// An order has come.
    pub(super) fn order(&self) -> OrderCount<'_> {
        OrderCount { metrics: self, outcome: ABANDONED, began_at: self.latency.begin() }
    }

    /// The store has answered a batch of so many orders, or has not.
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

    /// The lock was granted after a wait since `asked_at`. The tenure ends when the answer is dropped.
    pub(super) fn granted(&self, asked_at: Instant) -> TenureCount<'_> {
        let granted_at = Instant::now();
        self.lock_wait.note(granted_at - asked_at);
        TenureCount { metrics: self, granted_at }
    }

    /// The lock is about to be handed over.
    pub(super) fn handed_over(&self) {
        self.handovers.add(1);
    }

    /// The lock was lost.
    pub(super) fn lost(&self) {
        self.lost_tenures.add(1);
    }
}

/// An order that has come; its drop counts it, as abandoned if nothing else was said.
pub(super) struct OrderCount<'a> {
    metrics: &'a Metrics,
    outcome: &'static str,
    began_at: Option<Instant>,
}

impl OrderCount<'_> {
    pub(super) fn end(mut self, answer: &Result<Outcome, SaleError>) {
        self.outcome = match answer {
            Ok(Outcome::Reserved(_)) => "reserved",
            Ok(Outcome::SoldOut { .. }) => "sold-out",
            Ok(Outcome::Conflict) => "conflict",
            Ok(Outcome::Damaged { .. }) => "damaged",
            Err(error) => error.outcome(),
        };
        self.metrics.latency.note(self.began_at);
    }
}

impl Drop for OrderCount<'_> {
    fn drop(&mut self) {
        // `reserved` and `sold-out` come first, so the search is short where it matters
        if let Some(index) = OUTCOMES.iter().position(|outcome| *outcome == self.outcome) {
            self.metrics.orders[index].add(1);
        }
    }
}

/// A tenure that has begun; its drop counts it.
pub(super) struct TenureCount<'a> {
    metrics: &'a Metrics,
    granted_at: Instant,
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
    async fn times_are_put_into_classes() {
        let histogram = Histogram::default();
        for millis in [0, 1, 3, 30_000, 30_001] {
            histogram.note(Duration::from_millis(millis));
        }
        let cumulated = histogram.cumulated();
        assert_eq!(cumulated[..4], [1, 2, 2, 3]);
        assert_eq!(cumulated[12..], [3, 4, 5]);
        assert_eq!(histogram.sum(), Duration::from_millis(60_005));
    }

    /// Goal: each order is counted once, also one that nobody waits for any more.
    #[test]
    fn each_order_is_counted_once() {
        let metrics = Metrics::default();
        metrics.order().end(&Ok(Outcome::Conflict));
        metrics.order().end(&Err(SaleError::Stopping));
        drop(metrics.order());
        let counted: Vec<_> = metrics.orders().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("conflict", 1), ("abandoned", 1), ("stopping", 1)]);
    }
}
