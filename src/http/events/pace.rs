//! Bounds on what the polls cost the store.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::safeguard::LIMITS;

/// The time between two polls of the instance: 500 a second, enough for the feeds of sixty items.
const GAP: Duration = Duration::from_millis(2);

/// The most orders in one read.
const AT_ONCE: f64 = 500.0;

/// The most orders that are read in a burst, and a second on average. The ledger of a faster sale is thinned
/// out evenly.
const BURST: f64 = 1000.0;
const A_SECOND: f64 = 500.0;

/// How many orders one feed may read.
pub(super) struct Budget {
    left: f64,
    as_of: Instant,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self { left: BURST, as_of: Instant::now() }
    }

    /// The most orders of the next read.
    pub(super) fn most(&mut self) -> u32 {
        let now = Instant::now();
        let since = (now - std::mem::replace(&mut self.as_of, now)).as_secs_f64();
        self.left = since.mul_add(A_SECOND, self.left).min(BURST);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 500")]
        let most = self.left.clamp(1.0, AT_ONCE) as u32;
        most
    }

    /// So many orders were read.
    pub(super) fn spend(&mut self, orders: usize) {
        self.left -= f64::from(u32::try_from(orders).unwrap_or(u32::MAX));
    }
}

/// The rate limit of all polls at one instance: many items, or requests for thousands of items, cost the store no
/// more than so many polls a second.
pub(super) struct Pace(Mutex<Instant>);

impl Pace {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    /// Waits for the next turn. At most as many wait as there are feeds and watchers.
    pub(super) async fn turn(&self) {
        if !LIMITS.is_on() {
            return;
        }
        let turn = {
            let mut next = self.0.lock();
            let turn = Instant::now().max(*next);
            *next = turn + GAP;
            turn
        };
        sleep_until(turn).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    /// Goal: polls that come at once pass one by one, and the first one after a pause does not wait.
    #[tokio::test(start_paused = true)]
    async fn turns_have_a_gap_between_them() {
        let (pace, began_at) = (Pace::new(), Instant::now());
        tokio::time::advance(Duration::from_secs(1)).await;
        join_all((0..100).map(|_| pace.turn())).await;
        assert_eq!(began_at.elapsed(), Duration::from_secs(1) + GAP * 99);
    }
}
