//! The schedule of the orders.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::plan::Plan;

/// After this many orders in a row without an answer a buyer stops, so that a long run against a dead service
/// ends. With a duration, the run has its bound, and buyers go on through outages.
const GIVE_UP_AFTER: u32 = 3;

/// How long a buyer rests after an order without an answer, if it goes on; doubled each time.
const FIRST_REST: Duration = Duration::from_millis(20);
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Orders a second that a run may have.
pub(crate) const RATES: RangeInclusive<f64> = 0.001..=1_000_000.0;

/// How long after the run's start the order `number` is due.
pub(crate) fn due(rate: f64, number: usize) -> Duration {
    #[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
    Duration::from_secs_f64(number as f64 / rate)
}

/// Gives out the orders of a run, each when it is due.
#[derive(Debug)]
pub(crate) struct Pace {
    started: Instant,
    next: AtomicUsize,
}

/// The unanswered orders of one buyer.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// Orders in a row without an answer.
    unanswered: u32,
}

impl Pace {
    pub(crate) fn new(started: Instant) -> Self {
        Self { started, next: AtomicUsize::new(0) }
    }

    /// The number of the next order, once it is due; `None` if this buyer is done. There are no gaps.
    pub(crate) async fn next(&self, plan: &Plan, patience: &Patience) -> Option<usize> {
        if plan.duration.is_none() && patience.unanswered >= GIVE_UP_AFTER {
            return None;
        }
        if plan.duration.is_some() && patience.unanswered > 0 {
            sleep(patience.rest()).await;
        }
        let over = plan.duration.map(|duration| self.started + duration);
        if over.is_some_and(|over| Instant::now() >= over) {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // counted from the start, so that delays do not add up
        let due = self.started + plan.rate.map_or(Duration::ZERO, |rate| due(rate, number));
        if number >= plan.requests || over.is_some_and(|over| due >= over) {
            return None;
        }
        if plan.rate.is_some() {
            sleep_until(due).await;
        }
        Some(number)
    }
}

impl Patience {
    /// Notes whether an order was answered.
    pub(crate) fn note(&mut self, answered: bool) {
        self.unanswered = if answered { 0 } else { self.unanswered.saturating_add(1) };
    }

    fn rest(&self) -> Duration {
        let doubled = 1 << (self.unanswered.saturating_sub(1)).min(10);
        (FIRST_REST * doubled).min(LONGEST_REST)
    }
}
