//! The rate limit of all polls at one instance.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::safeguard::LIMITS;

/// The time between two polls: 500 a second, enough for the feeds of sixty items.
const GAP: Duration = Duration::from_millis(2);

/// Spaces the polls out, so that many items, or requests for thousands of items, cost the store no more than
/// so many polls a second.
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
