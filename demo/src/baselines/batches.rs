//! The batches of the service without its lock.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fenced_lock::{MemoryBackend, QueueEntry, SessionKeeper, SessionOptions};
use flash_sale::inventory::{Item, NewSale, Order, Outcome, Started};
use flash_sale::sale::{EtcdLock, GuardStatus, SaleContext, SaleError, SaleGuard};

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

#[async_trait]
impl SaleGuard for Batches {
    fn status(&self) -> GuardStatus {
        self.unguarded.status()
    }

    async fn reduce(&self, order: Order) -> Result<Outcome, SaleError> {
        self.combiner.reduce(order).await
    }

    async fn start(&self, item: &Item, sale: NewSale) -> Result<Started, SaleError> {
        self.unguarded.start(item, sale).await
    }

    async fn queue(&self, item: &Item) -> Result<Vec<QueueEntry>, SaleError> {
        self.unguarded.queue(item).await
    }

    fn lock_name(&self, item: &Item) -> Option<String> {
        self.unguarded.lock_name(item)
    }

    fn waiting(&self) -> usize {
        self.combiner.waiting()
    }

    async fn close(&self) {
        self.combiner.close().await;
    }
}
