//! Polling the store and the queue at a bounded cost.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::QueueSnapshot;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::projection::{Projection, Reading};
use crate::http::AppState;
use crate::inventory::Item;
use crate::safeguard::LIMITS;

/// The time limit of a poll with all its requests. A watcher takes a longer silence for a dead instance.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The time between two polls of the instance: 500 a second, enough for the feeds of sixty items.
const GAP: Duration = Duration::from_millis(2);

/// The most orders in one read.
const AT_ONCE: f64 = 500.0;

/// The most orders that are read in a burst, and a second on average. The ledger of a faster sale is thinned
/// out evenly.
const BURST: f64 = 1000.0;
const A_SECOND: f64 = 500.0;

/// How often etcd is asked for the instances of the claims, while some are unknown.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Polls the store and the queue within a budget.
pub(super) struct Poller {
    app: Arc<AppState>,
    item: Item,
    budget: f64,
    polled_at: Instant,
    asked_at: Option<Instant>,
}

impl Poller {
    pub(super) fn new(app: &Arc<AppState>, item: Item) -> Self {
        let app = Arc::clone(app);
        Self { app, item, budget: BURST, polled_at: Instant::now(), asked_at: None }
    }

    /// Polls once. `projection` is locked for a moment.
    pub(super) async fn poll(&mut self, projection: &Mutex<Projection>) -> Reading {
        self.app.events.pace.turn().await;
        let cursor = projection.lock().cursor();
        let now = Instant::now();
        let since = (now - std::mem::replace(&mut self.polled_at, now)).as_secs_f64();
        self.budget = since.mul_add(A_SECOND, self.budget).min(BURST);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 500")]
        let most = self.budget.clamp(1.0, AT_ONCE) as u32;
        let by = now + TIMEOUT;
        let update =
            timeout_at(by, self.app.sale.poll_since(&self.item, cursor.as_ref(), most)).await;
        let update = update.map_or(Err(None), |update| update.map_err(Some));
        if let Ok(update) = &update {
            let read = u32::try_from(update.orders.len()).unwrap_or(u32::MAX);
            self.budget -= f64::from(read);
        }
        // after the ledger, so that the tenures of its orders are known
        let queue_snapshot = self.app.sale.queue_snapshot(&self.item);
        let labels = match &queue_snapshot {
            Some(queue_snapshot) => self.ask(projection, queue_snapshot, by).await,
            None => Vec::new(),
        };
        Reading { cursor, update, queue_snapshot, labels }
    }

    /// The instances of the claims in the queue, if some are unknown.
    async fn ask(
        &mut self,
        projection: &Mutex<Projection>,
        queue_snapshot: &QueueSnapshot,
        by: Instant,
    ) -> Vec<(i64, String)> {
        let is_due = self.asked_at.is_none_or(|asked_at| asked_at.elapsed() >= ASK_EVERY);
        if !is_due || projection.lock().knows_instances(queue_snapshot) {
            return Vec::new();
        }
        self.app.events.pace.turn().await;
        self.asked_at = Some(Instant::now());
        let queue = timeout_at(by, self.app.sale.queue(&self.item)).await;
        let claims = queue.ok().and_then(Result::ok).unwrap_or_default();
        claims.into_iter().filter_map(|claim| Some((claim.lease, claim.label?))).collect()
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
