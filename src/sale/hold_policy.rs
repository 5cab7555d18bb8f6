//! Decides how long to hold the lock while another instance waits for it.
//!
//! During a handover nothing is sold. A holder keeps the lock while it sells well, for up to six handovers or `--tenure`,
//! whichever is shorter: after six handovers, a seventh of the time goes to handovers. Without orders a holder waits half a
//! handover, since the buyers that it just answered may order again. With few orders it hands the lock over, as others use the
//! time better (the marginal value theorem: Charnov, "Optimal foraging", 1976). The tenure after the first batch is cut into
//! stretches of twice the latest batch's time. It ends after the first stretch that brings less than a quarter of the average
//! orders per time, over the tenure and one handover. The time of a handover is a smoothed measurement.

use std::time::Duration;

use tokio::time::Instant;

/// The longest tenure, in handovers.
const HANDOVERS_OF_A_TENURE: u32 = 6;

/// The tenures of one item, one after another.
#[derive(Debug)]
pub(super) struct HoldPolicy {
    longest: Duration,
    /// A mean in which each new value counts for an eighth, as in TCP's mean of round trips (RFC 6298).
    handover: Option<Duration>,
    granted_at: Instant,
    /// The orders of this tenure.
    orders: u32,
    /// How long the latest batch of this tenure took, and when it ended.
    batch: Option<(Duration, Instant)>,
    /// When the current stretch began, and how many orders the tenure had by then.
    stretch: (Instant, u32),
}

impl HoldPolicy {
    /// `longest` bounds a tenure.
    pub(super) fn new(longest: Duration) -> Self {
        let now = Instant::now();
        let stretch = (now, 0);
        Self { longest, handover: None, granted_at: now, orders: 0, batch: None, stretch }
    }

    /// A tenure begins. A handover takes about as long as queueing the claim took: a request and a commit.
    pub(super) fn granted(&mut self, now: Instant, enqueued_in: Duration) {
        let mean = self.handover.map_or(enqueued_in, |mean| (mean * 7 + enqueued_in) / 8);
        self.handover = Some(mean);
        (self.granted_at, self.orders, self.batch, self.stretch) = (now, 0, None, (now, 0));
    }

    pub(super) fn sends(&mut self, orders: usize) {
        self.orders = self.orders.saturating_add(u32::try_from(orders).unwrap_or(u32::MAX));
    }

    pub(super) fn ran(&mut self, now: Instant, took: Duration) {
        // a stretch of no time would make the next look due at once, for ever
        let took = took.max(Duration::from_nanos(1));
        if self.batch.replace((took, now)).is_none() {
            self.stretch = (now, self.orders);
        }
    }

    pub(super) fn has_sold(&self) -> bool {
        self.orders > 0
    }

    /// The latest end of the tenure.
    pub(super) fn ends_at(&self) -> Instant {
        self.granted_at + self.longest.min(self.handover() * HANDOVERS_OF_A_TENURE)
    }

    /// When to look again at a tenure without batches under way.
    pub(super) fn look_at(&self) -> Instant {
        self.looks().map_or(self.granted_at, |(patience_ends, stretch_ends)| {
            patience_ends.min(stretch_ends).min(self.ends_at())
        })
    }

    /// Whether to hand the lock over. An idle instance has no order. A tenure does not end before it had its first
    /// orders, if any wait.
    pub(super) fn is_over(&mut self, now: Instant, is_idle: bool) -> bool {
        if !self.has_sold() {
            return is_idle;
        }
        if now >= self.ends_at() {
            return true;
        }
        let Some((patience_ends, stretch_ends)) = self.looks() else { return false };
        if now < stretch_ends {
            return is_idle && now >= patience_ends;
        }
        let (since, before) = self.stretch;
        let tenure = (now - self.granted_at + self.handover()).as_nanos();
        let sells = 4 * u128::from(self.orders - before) * tenure
            >= u128::from(self.orders) * (now - since).as_nanos();
        if sells {
            self.stretch = (now, self.orders);
        }
        !sells
    }

    /// When the wait for further orders ends, and when the current stretch ends. `None` before a batch has ended.
    fn looks(&self) -> Option<(Instant, Instant)> {
        let (took, ended_at) = self.batch?;
        Some((ended_at + self.handover() / 2, self.stretch.0 + 2 * took))
    }

    fn handover(&self) -> Duration {
        self.handover.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDOVER: Duration = Duration::from_millis(20);
    const BATCH: Duration = Duration::from_millis(5);

    fn tenure(longest: Duration) -> (HoldPolicy, Instant) {
        let mut policy = HoldPolicy::new(longest);
        let now = Instant::now();
        policy.granted(now, HANDOVER);
        (policy, now)
    }

    /// Goal: the first orders are served however short a tenure is, and a tenure without orders ends at once.
    #[tokio::test]
    async fn a_tenure_begins_with_the_waiting_orders() {
        let (mut policy, now) = tenure(Duration::ZERO);
        assert!(!policy.is_over(now, false));
        assert!(policy.is_over(now, true));
        policy.sends(1);
        assert!(policy.is_over(now, false));
    }

    /// Goal: a tenure goes on for a stretch of two batches after its first one, and then while each stretch brings a quarter of
    /// the average. The handover counts in that average: in this case 100 orders and those of the stretch in 35 ms.
    #[tokio::test]
    async fn ends_when_it_sells_less() {
        for (orders, goes_on) in [(0, false), (7, false), (8, true)] {
            let (mut policy, now) = tenure(Duration::from_secs(1));
            policy.sends(100);
            let now = now + BATCH;
            assert!(!policy.is_over(now, false), "nothing has ended yet");
            policy.ran(now, BATCH);
            policy.sends(orders);
            assert!(!policy.is_over(now + BATCH, false));
            assert_eq!(policy.look_at(), now + 2 * BATCH);
            assert_eq!(policy.is_over(now + 2 * BATCH, false), !goes_on, "{orders} orders");
            // without further orders, the next stretch is the last one
            assert!(policy.is_over(now + 4 * BATCH, false), "{orders} orders");
        }
    }

    /// Goal: time passes before the next look at a tenure that goes on, however fast its batches are.
    #[tokio::test]
    async fn looks_are_apart() {
        let (mut policy, now) = tenure(Duration::from_secs(1));
        policy.sends(1);
        policy.ran(now, Duration::ZERO);
        assert!(!policy.is_over(now, true));
        assert!(policy.look_at() > now);
    }

    /// Goal: an idle holder waits half a handover for further orders.
    #[tokio::test]
    async fn waits_for_the_buyers_that_it_answered() {
        let (mut policy, now) = tenure(Duration::from_secs(1));
        policy.sends(1);
        let now = now + HANDOVER;
        policy.ran(now, HANDOVER);
        assert!(!policy.is_over(now + HANDOVER / 3, true));
        assert_eq!(policy.look_at(), now + HANDOVER / 2);
        assert!(policy.is_over(now + HANDOVER / 2, true));
        assert!(!policy.is_over(now + HANDOVER / 2, false));
    }

    /// Goal: a tenure ends after six handovers, or after its longest time, however many orders wait.
    #[tokio::test]
    async fn ends_in_time() {
        let (mut policy, now) = tenure(Duration::from_secs(1));
        policy.sends(1);
        assert_eq!(policy.ends_at(), now + 6 * HANDOVER);
        assert!(policy.is_over(policy.ends_at(), false));
        policy.longest = BATCH;
        assert_eq!(policy.ends_at(), now + BATCH);
    }
}
