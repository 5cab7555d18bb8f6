//! Reads of the stock that orders share.
//!
//! Once an item is sold out, an order costs a part of a [shared read](super::shared_reads) and nothing else. Most
//! buyers of a sale get their answer here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::timeout;

use super::SaleError;
use super::shared_reads::SharedReads;
use crate::inventory::{Accepted, Available, Inventory, InventoryError, Item, Lookup, Order};

pub(super) struct StockReads {
    /// By the key of an order: the units that are available, and the order, if it was accepted.
    orders: Arc<SharedReads<String, (Available, Option<Accepted>)>>,
    /// The units left of each item at the latest read or batch, if any were left. This is a hint: it decides whether an order
    /// reads the stock first, and never decides an answer. It is forgotten when the queue of the item ends: without the lock
    /// service, only a read can say that an item is sold out.
    left: Mutex<HashMap<Item, i64>>,
}

impl StockReads {
    /// Each read takes at most `within`.
    pub(super) fn new(inventory: &Inventory, within: Duration) -> Self {
        let inventory = inventory.clone();
        let orders = SharedReads::by(move |item, keys: Vec<String>| {
            let inventory = inventory.clone();
            async move {
                let found = timeout(within, inventory.look_up(&item, &keys)).await;
                let Lookup { available, orders, .. } =
                    found.unwrap_or_else(|_| Err(InventoryError::too_late()))?;
                // the number of held units is unknown: one order of each read goes into a batch, which counts them
                let is_unknown = available.held.is_some_and(|held| held.units.is_none());
                let seen = |(place, order): (usize, Result<_, _>)| {
                    let is_due = available.is_due || is_unknown && place == 0;
                    order.map(|order| (Available { is_due, ..available.clone() }, order))
                };
                Ok(orders.into_iter().enumerate().map(seen).collect())
            }
        });
        Self { orders, left: Mutex::default() }
    }

    /// Whether enough units for the order were left when they were last seen.
    pub(super) fn had_enough_for(&self, order: &Order) -> bool {
        let left = self.left.lock().get(&order.item).copied();
        left.is_some_and(|left| left >= i64::from(order.quantity.get()))
    }

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

    /// The units that are available, and the order that was accepted under this id, if there is one.
    ///
    /// # Cancel safety
    /// A dropped call changes nothing for the others.
    pub(super) async fn read(
        &self,
        order: &Order,
    ) -> Result<(Available, Option<Accepted>), SaleError> {
        self.orders.read(&order.item, order.key()).await
    }
}
