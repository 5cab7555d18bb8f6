//! How long to hold the lock while another instance waits for it.
//!
//! During a handover nothing is sold. So the holder keeps the lock only as long as that raises its average throughput,
//! handover included: the marginal value theorem (Charnov, "Optimal foraging", 1976). All times are measured, those of a
//! handover and of a batch smoothed. The next batch is worth the time if
//!
//! ```text
//! orders that wait / (idle time + batch)  >=  orders of this tenure / (its time + handover)
//! ```
//!
//! A tenure ends after four handovers, or `--tenure` if that is shorter. So where orders keep coming, at most a
//! fifth of the time goes to handovers.

use std::time::Duration;

use tokio::time::Instant;

/// The longest tenure, in handovers.
const HANDOVERS_OF_A_TENURE: u32 = 4;

/// The tenures of one item, one after another.
#[derive(Debug)]
pub(super) struct HoldPolicy {
    longest: Duration,
    handover: Smoothed,
    batch: Smoothed,
    granted_at: Instant,
    /// Since when no batch runs.
    idle_since: Instant,
    /// The orders of this tenure.
    orders: u32,
}

impl HoldPolicy {
    /// `longest` bounds a tenure.
    pub(super) fn new(longest: Duration) -> Self {
        let now = Instant::now();
        Self {
            longest,
            handover: Smoothed::default(),
            batch: Smoothed::default(),
            granted_at: now,
            idle_since: now,
            orders: 0,
        }
    }

    /// A tenure begins. A handover costs about as much as to queue the claim: a request and a commit.
    pub(super) fn granted(&mut self, now: Instant, enqueued_in: Duration) {
        self.handover.add(enqueued_in);
        (self.granted_at, self.idle_since, self.orders) = (now, now, 0);
    }

    /// A batch of so many orders has ended.
    pub(super) fn ran(&mut self, now: Instant, took: Duration, orders: usize) {
        self.batch.add(took);
        self.idle_since = now;
        self.orders = self.orders.saturating_add(u32::try_from(orders).unwrap_or(u32::MAX));
    }

    /// Whether the tenure had an order.
    pub(super) fn has_sold(&self) -> bool {
        self.orders > 0
    }

    /// When the tenure ends at the latest.
    pub(super) fn ends_at(&self) -> Instant {
        self.granted_at + self.longest.min(self.handover.get() * HANDOVERS_OF_A_TENURE)
    }

    /// Whether to run another batch rather than hand the lock over, with so many orders in the queue.
    pub(super) fn runs_another(&self, now: Instant, waiting: usize) -> bool {
        if !self.has_sold() {
            return waiting > 0;
        }
        let rate_time = (now - self.granted_at + self.handover.get()).as_nanos().max(1);
        let batch_time = (now - self.idle_since + self.batch.get()).as_nanos();
        let worth = (batch_time * u128::from(self.orders)).div_ceil(rate_time).max(1);
        now < self.ends_at() && u128::try_from(waiting).is_ok_and(|waiting| waiting >= worth)
    }
}

/// A mean in which each new value counts for an eighth, as with the round trips of TCP (RFC 6298).
#[derive(Debug, Default)]
struct Smoothed(Option<Duration>);

impl Smoothed {
    fn get(&self) -> Duration {
        self.0.unwrap_or_default()
    }

    fn add(&mut self, value: Duration) {
        self.0 = Some(self.0.map_or(value, |mean| (mean * 7 + value) / 8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDOVER: Duration = Duration::from_millis(20);
    const BATCH: Duration = Duration::from_millis(4);

    /// A tenure that began with a batch of so many orders, and the time at its end.
    fn tenure(orders: usize) -> (HoldPolicy, Instant) {
        let mut policy = HoldPolicy::new(Duration::from_secs(1));
        let now = Instant::now();
        policy.granted(now, HANDOVER);
        policy.ran(now + BATCH, BATCH, orders);
        (policy, now + BATCH)
    }

    /// Goal: the first orders are served whatever they are worth, and a tenure without orders ends at once.
    #[tokio::test]
    async fn a_tenure_begins_with_the_waiting_orders() {
        let mut policy = HoldPolicy::new(Duration::ZERO);
        let now = Instant::now();
        policy.granted(now, HANDOVER);
        assert!(policy.runs_another(now, 1));
        assert!(!policy.runs_another(now, 0));
    }

    /// Goal: a batch is worth the time exactly if it does not lower the rate of the tenure, the handover
    /// included. Here that is 240 orders in 4 + 20 ms: 10 for each, and a batch takes 4 ms.
    #[tokio::test]
    async fn keeps_the_lock_for_what_does_not_lower_the_rate() {
        let (policy, now) = tenure(240);
        assert!(policy.runs_another(now, 40));
        assert!(!policy.runs_another(now, 39));
        // after 6 ms without a batch, the rate is 8 for each, and the batch takes 10
        let later = now + Duration::from_millis(6);
        assert!(policy.runs_another(later, 80));
        assert!(!policy.runs_another(later, 79));
    }

    /// Goal: a tenure ends after four handovers, or after its longest time, however many orders wait.
    #[tokio::test]
    async fn ends_in_time() {
        let (mut policy, now) = tenure(240);
        assert_eq!(policy.ends_at(), now - BATCH + 4 * HANDOVER);
        assert!(!policy.runs_another(policy.ends_at(), 500));
        policy.longest = Duration::from_millis(5);
        assert_eq!(policy.ends_at(), now + Duration::from_millis(1));
    }
}
