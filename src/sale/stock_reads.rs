//! Reads of the stock that orders share.
//!
//! Once an item is sold out, an order costs a read of the store and nothing else, so most buyers of a sale get
//! their answer here. Orders that come while a read of their item is under way, or within a millisecond of its
//! start, share the next one. Each order's read begins after the order came, so its answer is as true as that of a
//! read of its own. A read that fails because the store is away answers all that wait.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::SaleError;
use crate::inventory::{Accepted, Available, Inventory, InventoryError, Item, Lookup, Order};

/// The least time from one read of an item to the next. One more order costs a read next to nothing, and another
/// read costs Redis much: a crowd must not keep it busy with reads of a few orders each.
const PACE: Duration = Duration::from_millis(1);

type Seen = Result<(Available, Option<Accepted>), Arc<InventoryError>>;

/// An order that waits for the next read, by its key.
type Waiting = (String, oneshot::Sender<Seen>);

#[derive(Debug, Default)]
pub(super) struct StockReads {
    /// The orders that wait for the next read of their item. An item is here while a task reads it.
    waiting: Mutex<HashMap<Item, Vec<Waiting>>>,
    /// The units left of each item when they were last seen, if an order could have some. A hint: it decides what is
    /// tried first, never the answer. It ends with the queue that the order entered: without the lock service, a
    /// sold-out item is answered only by a read.
    left: Mutex<HashMap<Item, i64>>,
}

impl StockReads {
    /// Whether enough units for the order were left when they were last seen.
    pub(super) fn had_enough_for(&self, order: &Order) -> bool {
        let left = self.left.lock().get(&order.item).copied();
        left.is_some_and(|left| left >= i64::from(order.quantity.get()))
    }

    /// Notes how many units are left.
    pub(super) fn note(&self, item: &Item, units: i64) {
        if units > 0 {
            self.left.lock().insert(item.clone(), units);
        } else {
            self.forget(item);
        }
    }

    /// From now on, orders read the stock first.
    pub(super) fn forget(&self, item: &Item) {
        self.left.lock().remove(item);
    }

    /// What is left, and the order that was accepted under this id, if any. A read takes at most `within`.
    ///
    /// # Cancel safety
    /// A dropped call changes nothing for the others.
    pub(super) async fn read(
        self: &Arc<Self>,
        inventory: &Inventory,
        order: &Order,
        within: Duration,
    ) -> Result<(Available, Option<Accepted>), SaleError> {
        let (reply, answer) = oneshot::channel();
        let waiting = (order.key(), reply);
        let is_first = {
            let mut items = self.waiting.lock();
            let is_first = !items.contains_key(&order.item);
            items.entry(order.item.clone()).or_default().push(waiting);
            is_first
        };
        if is_first {
            let read = Arc::clone(self).run(inventory.clone(), order.item.clone(), within);
            tokio::spawn(read);
        }
        // only a runtime that ends drops the reply
        let seen = answer.await.unwrap_or_else(|_| Err(Arc::new(InventoryError::too_late())));
        seen.map_err(|error| SaleError::of_read(error, &order.item))
    }

    /// Reads one item while orders wait.
    async fn run(self: Arc<Self>, inventory: Inventory, item: Item, within: Duration) {
        let mut pace = interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pace.tick().await;
            let Some(orders) = self.next(&item) else { return };
            let (keys, replies): (Vec<_>, Vec<_>) = orders.into_iter().unzip();
            let read = timeout(within, inventory.look_up(&item, &keys));
            // after a panic, the next read goes on
            let read = AssertUnwindSafe(read).catch_unwind().await;
            let too_late = || Err(InventoryError::too_late());
            match read.ok().and_then(Result::ok).unwrap_or_else(too_late) {
                Ok(Lookup { available, orders, .. }) => {
                    for (reply, order) in replies.into_iter().zip(orders) {
                        // fails if the buyer disconnected
                        drop(reply.send(order.map(|order| (available, order)).map_err(Arc::new)));
                    }
                }
                Err(error) => {
                    // if the store is away, those behind would wait for as long again
                    let is_away = error.is_retryable();
                    let behind =
                        self.waiting.lock().get_mut(&item).filter(|_| is_away).map(std::mem::take);
                    let error = Arc::new(error);
                    let behind = behind.into_iter().flatten().map(|(_, reply)| reply);
                    for reply in replies.into_iter().chain(behind) {
                        drop(reply.send(Err(Arc::clone(&error))));
                    }
                }
            }
        }
    }

    /// The orders of the next read, without those of disconnected buyers. `None` ends the reads.
    fn next(&self, item: &Item) -> Option<Vec<Waiting>> {
        let mut items = self.waiting.lock();
        let waiting = items.get_mut(item)?;
        waiting.retain(|(_, reply)| !reply.is_closed());
        if waiting.is_empty() {
            items.remove(item);
            return None;
        }
        let most = waiting.len().min(Inventory::MAX_BATCH);
        Some(waiting.drain(..most).collect())
    }
}
