//! The seam at which a sale is guarded.

use fenced_lock::{QueueEntry, SessionKeeper};
use futures_util::future::BoxFuture;

use super::SaleError;
use crate::inventory::{Item, Order, Outcome, Stock};

/// What guards a sale. The service has one implementation, [`EtcdLock`](super::EtcdLock).
pub trait SaleGuard: Send + Sync + 'static {
    /// Its description for the page, the log and the metrics.
    fn status(&self) -> GuardStatus;

    /// Takes the order's units.
    fn reduce(&self, order: Order) -> BoxFuture<'_, Result<Outcome, SaleError>>;

    /// Starts a sale of `item` afresh.
    fn start<'a>(&'a self, item: &'a Item, units: u64) -> BoxFuture<'a, Result<Stock, SaleError>>;

    /// The claims on the lock of `item`, the holder first.
    fn queue<'a>(&'a self, item: &'a Item) -> BoxFuture<'a, Result<Vec<QueueEntry>, SaleError>>;

    /// The name of the lock of `item`, if there is a distributed lock.
    fn lock_name(&self, item: &Item) -> Option<String>;

    /// Whether the lock of some known item can be had. Writes nothing.
    fn check(&self) -> BoxFuture<'_, Result<(), SaleError>> {
        Box::pin(async { self.queue(&Item::DEFAULT).await.map(drop) })
    }

    /// The sessions of the lock, if it has any.
    fn sessions(&self) -> Option<&SessionKeeper> {
        None
    }

    /// The number of waiting orders, not counting those in the [waiting room](super::SaleContext::enter).
    fn waiting(&self) -> usize {
        0
    }

    /// Releases what it holds. The sale has stopped, and its tasks have ended.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// A guard as the page, the log and the metrics show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardStatus {
    /// Its name.
    pub name: &'static str,
    /// The same in a sentence: "The sale is guarded by ...".
    pub description: &'static str,
    /// The names of the safeguards that are off, such as those in [`SAFEGUARDS`](Self::SAFEGUARDS).
    pub without: Vec<String>,
    /// What can go wrong under it: a kind and a message each.
    pub warnings: Vec<(&'static str, &'static str)>,
}

impl GuardStatus {
    /// The safeguards of a write.
    pub const SAFEGUARDS: [&'static str; 3] = ["fence", "order-ids", "atomic-ledger"];

    /// Whether the store compares tokens.
    pub fn is_fenced(&self) -> bool {
        self.without.iter().all(|name| name != "fence")
    }
}
