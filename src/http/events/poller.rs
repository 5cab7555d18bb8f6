//! One look at store and queue, at a bounded cost.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::Sighting;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::pace::Pace;
use super::projection::Projection;
use crate::inventory::{Cursor, InventoryError, Item, SaleUpdate};
use crate::sale::Sale;

/// How long a look may take, with all that it asks: what comes later is of no use, and the watcher takes a
/// longer silence for an instance that stands still.
const TIMEOUT: Duration = Duration::from_secs(1);

/// How many orders are read at once.
const AT_ONCE: f64 = 500.0;

/// How many orders are read one by one: so many in a burst, and so many a second in the long run. A sale
/// that is faster is thinned out evenly.
const BURST: f64 = 1000.0;
const A_SECOND: f64 = 500.0;

/// How often etcd is asked whose claims are in the queue, while some are unknown.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// What was seen.
pub(super) struct Reading {
    /// Up to where the ledger was known.
    pub(super) cursor: Option<Cursor>,
    /// An error is what the store said, or nothing if it said nothing in time.
    pub(super) update: Result<SaleUpdate, Option<InventoryError>>,
    pub(super) sighting: Option<Sighting>,
    /// Leases and the instances that they are of.
    pub(super) labels: Vec<(i64, String)>,
}

/// Looks at store and queue, and keeps to its budget.
pub(super) struct Poller {
    item: Item,
    sale: Sale,
    budget: f64,
    looked_at: Instant,
    asked_at: Option<Instant>,
    pace: Arc<Pace>,
}

impl Poller {
    pub(super) fn new(item: Item, sale: Sale, pace: Arc<Pace>) -> Self {
        Self { item, sale, budget: BURST, looked_at: Instant::now(), asked_at: None, pace }
    }

    /// Polls once. `projection` is locked for a moment.
    pub(super) async fn poll(&mut self, projection: &Mutex<Projection>) -> Reading {
        self.pace.turn().await;
        let cursor = projection.lock().cursor();
        let now = Instant::now();
        let since = (now - std::mem::replace(&mut self.looked_at, now)).as_secs_f64();
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
        // after the ledger, so that the tenures of its orders have been seen
        let sighting = self.sale.sighting(&self.item);
        let labels = match &sighting {
            Some(sighting) => self.ask(projection, sighting, by).await,
            None => Vec::new(),
        };
        Reading { cursor, update, sighting, labels }
    }

    /// Whose claims are in the queue, where the watch does not tell.
    async fn ask(
        &mut self,
        projection: &Mutex<Projection>,
        sighting: &Sighting,
        by: Instant,
    ) -> Vec<(i64, String)> {
        let is_due = self.asked_at.is_none_or(|asked_at| asked_at.elapsed() >= ASK_EVERY);
        if !is_due || !projection.lock().has_strangers(sighting) {
            return Vec::new();
        }
        self.pace.turn().await;
        self.asked_at = Some(Instant::now());
        let queue = timeout_at(by, self.sale.queue(&self.item)).await;
        let claims = queue.ok().and_then(Result::ok).unwrap_or_default();
        claims.into_iter().filter_map(|claim| Some((claim.lease, claim.instance?))).collect()
    }
}
