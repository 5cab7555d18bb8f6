//! When the next order is sent, and whether there is one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::plan::Plan;

/// After this many orders in a row without an answer a buyer sends no more: a service that is gone
/// must not keep a long run waiting for each order in turn. A run that ends at a given time has its
/// bound there, and its buyers go on through outages.
const GIVE_UP_AFTER: u32 = 3;

/// How long a buyer rests after an order without an answer, if it goes on; doubled each time.
const FIRST_REST: Duration = Duration::from_millis(20);
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Gives out the orders of a run, each when it is due.
#[derive(Debug)]
pub(crate) struct Pace {
    started: Instant,
    next: AtomicUsize,
}

/// How one buyer fares.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// Orders in a row without an answer.
    unanswered: u32,
}

impl Pace {
    pub(crate) fn new(started: Instant) -> Self {
        Self { started, next: AtomicUsize::new(0) }
    }

    /// The number of the next order, once it is due; `None` if there is none for this buyer. Numbers
    /// without a gap are given out.
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
        // counted from the start, so that no delay adds up
        let due = self.started + plan.due(number);
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
    /// An order of the buyer was answered, or not.
    pub(crate) fn note(&mut self, answered: bool) {
        self.unanswered = if answered { 0 } else { self.unanswered.saturating_add(1) };
    }

    fn rest(&self) -> Duration {
        let doubled = 1 << (self.unanswered.saturating_sub(1)).min(10);
        (FIRST_REST * doubled).min(LONGEST_REST)
    }
}
