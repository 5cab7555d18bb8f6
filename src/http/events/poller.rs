//! Polling the store and the queue at a bounded cost.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::QueueSnapshot;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::pace::Pace;
use super::projection::{Projection, Reading};
use crate::inventory::Item;
use crate::sale::Sale;

/// The time limit of a poll with all its requests. A watcher takes a longer silence for a dead instance.
const TIMEOUT: Duration = Duration::from_secs(1);

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
    item: Item,
    sale: Sale,
    budget: f64,
    polled_at: Instant,
    asked_at: Option<Instant>,
    pace: Arc<Pace>,
}

impl Poller {
    pub(super) fn new(item: Item, sale: Sale, pace: Arc<Pace>) -> Self {
        Self { item, sale, budget: BURST, polled_at: Instant::now(), asked_at: None, pace }
    }

    /// Polls once. `projection` is locked for a moment.
    pub(super) async fn poll(&mut self, projection: &Mutex<Projection>) -> Reading {
        self.pace.turn().await;
        let cursor = projection.lock().cursor();
        let now = Instant::now();
        let since = (now - std::mem::replace(&mut self.polled_at, now)).as_secs_f64();
        self.budget = since.mul_add(A_SECOND, self.budget).min(BURST);
        let most = self.budget.min(AT_ONCE);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 500")]
        let most = most.max(1.0) as u32;
        let by = now + TIMEOUT;
        let update = timeout_at(by, self.sale.poll_since(&self.item, cursor.as_ref(), most)).await;
        let update = update.map_or(Err(None), |update| update.map_err(Some));
        if let Ok(update) = &update {
            let read = u32::try_from(update.orders.len()).unwrap_or(u32::MAX);
            self.budget -= f64::from(read);
        }
        // after the ledger, so that the tenures of its orders are known
        let queue_snapshot = self.sale.queue_snapshot(&self.item);
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
        if !is_due || !projection.lock().has_strangers(queue_snapshot) {
            return Vec::new();
        }
        self.pace.turn().await;
        self.asked_at = Some(Instant::now());
        let queue = timeout_at(by, self.sale.queue(&self.item)).await;
        let claims = queue.ok().and_then(Result::ok).unwrap_or_default();
        claims.into_iter().filter_map(|claim| Some((claim.lease, claim.label?))).collect()
    }
}
