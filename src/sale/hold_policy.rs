//! How long to hold the lock while another claim waits for it.
//!
//! During a handover nothing is sold. So the holder stays as long as that raises its average rate, the handover
//! included: the marginal value theorem (Charnov, "Optimal foraging", 1976). All times are measured, those of a
//! handover and of a batch smoothed. The next batch is worth staying for if
//!
//! ```text
//! orders that wait / (idle time + batch)  >=  orders of this tenure / (its time + handover)
//! ```
//!
//! - A tenure ends after four handovers, or `--tenure` if that is shorter. So where orders keep coming, at most a
//!   fifth of the time goes to handovers.
//! - The holder waits for such a batch for up to half a handover, and only if that would have paid the last time: in
//!   some sales the buyers that were just answered come again. What a wait would have brought shows also during
//!   the handover.

use std::time::Duration;

use tokio::time::Instant;

/// The longest tenure, in handovers.
const HANDOVERS_OF_A_TENURE: u32 = 4;

/// A wait shorter than this is left out: the timer is no finer.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// What to do next while another claim waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Run a batch.
    Run,
    /// Wait until so many orders are in the queue, at most until then, and ask again.
    Wait { orders: usize, until: Instant },
    /// End the tenure.
    HandOver,
}

/// The tenures of one item, one after another.
#[derive(Debug)]
pub(super) struct HoldPolicy {
    longest: Duration,
    batch_size: usize,
    handover: Smoothed,
    batch: Smoothed,
    /// Whether it would have paid, the last time, to wait for the next orders.
    waits: bool,
    granted_at: Instant,
    /// Since when no batch runs.
    idle_since: Instant,
    /// The orders of this tenure.
    orders: u32,
}

impl HoldPolicy {
    /// `longest` bounds a tenure, `batch_size` a batch.
    pub(super) fn new(longest: Duration, batch_size: usize) -> Self {
        let now = Instant::now();
        Self {
            longest,
            batch_size,
            handover: Smoothed::default(),
            batch: Smoothed::default(),
            waits: false,
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

    /// The next step, with so many orders in the queue.
    pub(super) fn next(&self, now: Instant, waiting: usize) -> Step {
        if !self.has_sold() {
            return if waiting > 0 { Step::Run } else { Step::HandOver };
        }
        match self.without_end(now, waiting) {
            _ if now >= self.ends_at() => Step::HandOver,
            Step::Wait { .. } if !self.waits => Step::HandOver,
            Step::Wait { orders, until } => Step::Wait { orders, until: until.min(self.ends_at()) },
            step => step,
        }
    }

    /// The same for a tenure without a bound that waits in any case: whether it ends with a batch shows whether
    /// to wait in the next tenure, see [`learn`](Self::learn).
    pub(super) fn without_end(&self, now: Instant, waiting: usize) -> Step {
        let rate_time = (now - self.granted_at + self.handover.get()).as_nanos().max(1);
        let batch_time = (now - self.idle_since + self.batch.get()).as_nanos();
        let worth = (batch_time * u128::from(self.orders)).div_ceil(rate_time);
        let worth = usize::try_from(worth).unwrap_or(usize::MAX).max(1);
        let wait = self.handover.get() / 2;
        let until = self.idle_since + wait;
        if waiting >= worth {
            Step::Run
        } else if worth <= self.batch_size && wait >= SHORTEST_WAIT && now < until {
            Step::Wait { orders: worth, until }
        } else {
            Step::HandOver
        }
    }

    /// Notes whether a wait after the last batch paid, or would have.
    pub(super) fn learn(&mut self, waits: bool) {
        self.waits = waits;
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

    /// A tenure that began with a batch of so many orders, for a holder that waits or not.
    fn tenure(orders: usize, waits: bool) -> (HoldPolicy, Instant) {
        let mut policy = HoldPolicy::new(Duration::from_secs(1), 500);
        let now = Instant::now();
        policy.granted(now, HANDOVER);
        policy.ran(now + BATCH, BATCH, orders);
        policy.learn(waits);
        (policy, now + BATCH)
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Goal: the first orders are served whatever they are worth, and a tenure without orders ends at once.
    #[tokio::test]
    async fn a_tenure_begins_with_the_waiting_orders() {
        let mut policy = HoldPolicy::new(Duration::ZERO, 500);
        let now = Instant::now();
        policy.granted(now, HANDOVER);
        assert_eq!(policy.next(now, 1), Step::Run);
        assert_eq!(policy.next(now, 0), Step::HandOver);
    }

    /// Goal: a batch is worth staying for exactly if it does not lower the rate of the tenure, the handover
    /// included. Here that is 240 orders in 4 + 20 ms: 10 for each, and a batch takes 4 ms.
    #[tokio::test]
    async fn stays_for_what_does_not_lower_the_rate() {
        let (policy, now) = tenure(240, false);
        assert_eq!(policy.next(now, 40), Step::Run);
        assert_eq!(policy.next(now, 39), Step::HandOver);
        // after 6 ms without a batch, the rate is 8 for each, and the batch takes 10
        assert_eq!(policy.next(now + millis(6), 80), Step::Run);
        assert_eq!(policy.next(now + millis(6), 79), Step::HandOver);
    }

    /// Goal: where waiting pays, the holder waits for such a batch, for half a handover after the last one.
    #[tokio::test]
    async fn waits_half_a_handover() {
        let (policy, now) = tenure(240, true);
        let until = now + HANDOVER / 2;
        assert_eq!(policy.next(now, 0), Step::Wait { orders: 40, until });
        assert_eq!(policy.next(now + millis(6), 0), Step::Wait { orders: 80, until });
        assert_eq!(policy.next(until, 0), Step::HandOver);
    }

    /// Goal: whether to wait is learned also by a holder that does not.
    #[tokio::test]
    async fn sees_what_a_wait_would_have_brought() {
        let (policy, now) = tenure(240, false);
        assert_eq!(policy.next(now, 0), Step::HandOver);
        assert!(matches!(policy.without_end(now, 0), Step::Wait { orders: 40, .. }));
        assert_eq!(policy.without_end(now, 40), Step::Run);
        assert_eq!(policy.without_end(now + HANDOVER / 2, 0), Step::HandOver);
    }

    /// Goal: no wait where a handover costs a millisecond, and none for more than a batch can have.
    #[tokio::test]
    async fn does_not_wait_in_vain() {
        let (mut policy, now) = tenure(4000, true);
        assert_eq!(policy.next(now, 0), Step::HandOver);
        policy.granted(now, millis(1));
        policy.handover = Smoothed(Some(millis(1)));
        policy.ran(now + BATCH, BATCH, 240);
        assert_eq!(policy.next(now + BATCH, 0), Step::HandOver);
    }

    /// Goal: a tenure ends after four handovers, or after its longest time, however many orders wait.
    #[tokio::test]
    async fn ends_in_time() {
        let (mut policy, now) = tenure(240, true);
        assert_eq!(policy.ends_at(), now - BATCH + 4 * HANDOVER);
        assert_eq!(policy.next(policy.ends_at(), 500), Step::HandOver);
        policy.longest = millis(5);
        let until = policy.ends_at();
        assert_eq!(until, now + millis(1));
        assert!(
            matches!(policy.next(now, 0), Step::Wait { until: earlier, .. } if earlier == until)
        );
    }

    /// Goal: one slow handover among many counts for an eighth.
    #[tokio::test]
    async fn costs_are_smoothed() {
        let (mut policy, now) = tenure(240, true);
        policy.granted(now, 9 * HANDOVER);
        assert_eq!(policy.handover.get(), 2 * HANDOVER);
        assert!(!policy.has_sold());
    }
}
