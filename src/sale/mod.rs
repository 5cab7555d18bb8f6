//! Where lock meets stock.

mod error;

pub use error::{BoxError, SaleError};

use std::time::Duration;

use crate::inventory::{Accepted, Item, Order, OrderId, Outcome, Stock};
use crate::lock::{ClusterId, Token};

/// What guards the sale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LockMode {
    /// The distributed lock: one holder among all instances.
    #[default]
    Etcd,
    /// A mutex in the process: one holder in each instance. Oversells as soon as there are two.
    Local,
    /// Nothing. Oversells.
    None,
}

/// How one instance sells.
#[derive(Clone, Debug)]
pub struct SaleOptions {
    /// What guards the sale.
    pub lock: LockMode,
    /// The name of the default item's lock; a named item's lock is this name, `:` and the item.
    pub lock_name: String,
    /// The name of this instance, recorded with each order.
    pub instance: String,
    /// How many orders of one item may wait at this instance.
    pub queue_length: usize,
    /// How long an order may wait for the lock.
    pub wait_timeout: Duration,
}

/// One claim in the queue for an item's lock, the holder first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedClaim {
    /// The claim's place: its token, once granted.
    pub token: Token,
    /// The lease that it hangs on.
    pub lease: i64,
    /// The instance that made it, if one of ours did.
    pub instance: Option<String>,
    /// How long ago it was made, by the clock of its maker, if one of ours did.
    pub age: Option<Duration>,
}

/// The sale of all items at one instance. Clones share everything.
#[derive(Clone)]
pub struct Sale {}

impl Sale {
    /// Takes the order's units if that many are left.
    ///
    /// # Cancel safety
    /// A future dropped before the lock is granted takes nothing. After that the order stands, and
    /// asking again with the same id gives its answer.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn reduce(&self, order: Order) -> Result<Outcome, SaleError> {
        let _ = order;
        todo!()
    }

    /// Starts a sale of `item` afresh: stock `units`, lucky 0, no orders. Returns the new state.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn start(&self, item: &Item, units: u64) -> Result<Stock, SaleError> {
        let _ = (item, units);
        todo!()
    }

    /// The state of `item`, read at one moment.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn stock(&self, item: &Item) -> Result<Stock, SaleError> {
        let _ = item;
        todo!()
    }

    /// Up to `limit` orders of the ledger behind position `after` (0: from the first).
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn ledger(
        &self,
        item: &Item,
        after: u64,
        limit: u32,
    ) -> Result<Vec<Accepted>, SaleError> {
        let _ = (item, after, limit);
        todo!()
    }

    /// The accepted order of this id, if there is one.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn order(&self, item: &Item, id: &OrderId) -> Result<Option<Accepted>, SaleError> {
        let _ = (item, id);
        todo!()
    }

    /// The claims on the lock of `item`, the holder first; empty without a distributed lock.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn queue(&self, item: &Item) -> Result<Vec<QueuedClaim>, SaleError> {
        let _ = item;
        todo!()
    }

    /// Whether this instance can sell now: the store answers, and so does the lock service.
    ///
    /// # Errors
    /// What is missing.
    pub async fn ready(&self) -> Result<(), SaleError> {
        todo!()
    }

    /// The name of this instance.
    pub fn instance(&self) -> &str {
        todo!()
    }

    /// Which cluster numbers this instance's tokens, once a session was opened.
    pub fn cluster(&self) -> Option<ClusterId> {
        todo!()
    }

    /// Takes no more orders, finishes those that wait, gives up the claims and revokes the lease.
    pub async fn close(&self) {
        todo!()
    }
}
