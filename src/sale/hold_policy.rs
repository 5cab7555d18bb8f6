//! How long to hold the lock while another instance waits for it.
//!
//! During a handover nothing is sold. So the holder keeps the lock while it has orders, for six handovers or for `--tenure`
//! if that is shorter: where orders keep coming, at most a seventh of the time goes to handovers. Without orders it
//! waits half a handover for the buyers that it just answered, as they may order again. The time of a handover is measured
//! and smoothed.

use std::time::Duration;

use tokio::time::Instant;

/// The longest tenure, in handovers.
const HANDOVERS_OF_A_TENURE: u32 = 6;

/// The tenures of one item, one after another.
#[derive(Debug)]
pub(super) struct HoldPolicy {
    longest: Duration,
    /// A mean in which each new value counts for an eighth, as with the round trips of TCP (RFC 6298).
    handover: Option<Duration>,
    granted_at: Instant,
    /// Since when no batch runs, if one ran.
    idle_since: Instant,
    /// Whether the tenure had an order.
    pub(super) has_sold: bool,
}

impl HoldPolicy {
    /// `longest` bounds a tenure.
    pub(super) fn new(longest: Duration) -> Self {
        let now = Instant::now();
        Self { longest, handover: None, granted_at: now, idle_since: now, has_sold: false }
    }

    /// A tenure begins. A handover costs about as much as to queue the claim: a request and a commit.
    pub(super) fn granted(&mut self, now: Instant, enqueued_in: Duration) {
        let mean = self.handover.map_or(enqueued_in, |mean| (mean * 7 + enqueued_in) / 8);
        self.handover = Some(mean);
        (self.granted_at, self.idle_since, self.has_sold) = (now, now, false);
    }

    /// A batch has ended.
    pub(super) fn ran(&mut self, now: Instant) {
        self.idle_since = now;
    }

    /// When the tenure ends at the latest.
    pub(super) fn ends_at(&self) -> Instant {
        self.granted_at + self.longest.min(self.handover() * HANDOVERS_OF_A_TENURE)
    }

    /// When a tenure ends that has no order: at once if it had none before.
    pub(super) fn idle_until(&self) -> Instant {
        self.idle_since + if self.has_sold { self.handover() / 2 } else { Duration::ZERO }
    }

    /// Whether to hand the lock over; an idle instance has no order. The first orders are served in any case.
    pub(super) fn is_over(&self, now: Instant, is_idle: bool) -> bool {
        (self.has_sold && now >= self.ends_at()) || (is_idle && now >= self.idle_until())
    }

    fn handover(&self) -> Duration {
        self.handover.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDOVER: Duration = Duration::from_millis(20);

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
        policy.has_sold = true;
        assert!(policy.is_over(now, false));
    }

    /// Goal: an idle holder waits half a handover for further orders.
    #[tokio::test]
    async fn waits_for_the_buyers_that_it_answered() {
        let (mut policy, now) = tenure(Duration::from_secs(1));
        policy.has_sold = true;
        let now = now + Duration::from_millis(5);
        policy.ran(now);
        assert!(!policy.is_over(now + Duration::from_millis(9), true));
        assert!(policy.is_over(now + HANDOVER / 2, true));
        assert!(!policy.is_over(now + HANDOVER / 2, false));
    }

    /// Goal: a tenure ends after six handovers, or after its longest time, however many orders wait.
    #[tokio::test]
    async fn ends_in_time() {
        let (mut policy, now) = tenure(Duration::from_secs(1));
        policy.has_sold = true;
        assert_eq!(policy.ends_at(), now + 6 * HANDOVER);
        assert!(policy.is_over(policy.ends_at(), false));
        policy.longest = Duration::from_millis(5);
        assert_eq!(policy.ends_at(), now + Duration::from_millis(5));
    }
}
