//! The batches of the service without its lock.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{MemoryBackend, QueueEntry, SessionKeeper, SessionOptions};
use flash_sale::inventory::{Item, Order, Outcome, Stock};
use flash_sale::sale::{EtcdLock, GuardStatus, SaleContext, SaleError, SaleGuard};
use futures_util::future::BoxFuture;

/// Combines the orders of this instance as the service does, under a lock of its own, which is granted at once. Nothing
/// keeps the batches of two instances apart: the writer sends them [without tokens](crate::writer::Writer).
pub(super) struct Batches {
    combiner: EtcdLock,
    /// Everything but the orders.
    unguarded: Box<dyn SaleGuard>,
}

impl Batches {
    pub(super) fn new(context: &Arc<SaleContext>, unguarded: Box<dyn SaleGuard>) -> Self {
        let options = SessionOptions::new(Duration::from_hours(1));
        let sessions = SessionKeeper::start(Arc::new(MemoryBackend::new()), options);
        Self { combiner: EtcdLock::new(context, sessions), unguarded }
    }
}

impl SaleGuard for Batches {
    fn status(&self) -> GuardStatus {
        self.unguarded.status()
    }

    fn reduce(&self, order: Order) -> BoxFuture<'_, Result<Outcome, SaleError>> {
        self.combiner.reduce(order)
    }

    fn start<'a>(&'a self, item: &'a Item, units: u64) -> BoxFuture<'a, Result<Stock, SaleError>> {
        self.unguarded.start(item, units)
    }

    fn queue<'a>(&'a self, item: &'a Item) -> BoxFuture<'a, Result<Vec<QueueEntry>, SaleError>> {
        self.unguarded.queue(item)
    }

    fn lock_name(&self, item: &Item) -> Option<String> {
        self.unguarded.lock_name(item)
    }

    fn waiting(&self) -> usize {
        self.combiner.waiting()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.combiner.close()
    }
}
