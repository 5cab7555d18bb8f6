//! How often all who watch look at the store and at the queues, taken together.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::defence::Defence;

/// The time between two looks: 500 a second, enough for the feeds of sixty items.
const GAP: Duration = Duration::from_millis(2);

/// Gives each look its turn, so that a sale with many items, or visitors who ask for items by the
/// thousand, cost the store no more than so many looks a second.
pub(super) struct Pace(Mutex<Instant>);

impl Pace {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    /// Waits for its turn. At most as many wait as there are feeds and watchers.
    pub(super) async fn turn(&self) {
        if !Defence::Limits.is_on() {
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

    /// Goal: however many come at once, they are let through one by one; and nobody waits where nobody was.
    #[tokio::test(start_paused = true)]
    async fn turns_have_a_gap_between_them() {
        let (pace, began_at) = (Pace::new(), Instant::now());
        tokio::time::advance(Duration::from_secs(1)).await;
        join_all((0..100).map(|_| pace.turn())).await;
        assert_eq!(began_at.elapsed(), Duration::from_secs(1) + GAP * 99);
    }
}
