//! The guard of the service: the lock that all instances share.

use std::collections::HashMap;
use std::sync::Arc;

use fenced_lock::{QueueEntry, SessionKeeper};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::guard::{GuardStatus, SaleGuard};
use super::order_queue::OrderQueue;
use super::retry::until_known;
use super::{SaleContext, SaleError};
use crate::inventory::{InventoryError, Item, Order, Outcome, Stock};

/// How many locks the readiness check tries.
const MAX_CHECKED_LOCKS: usize = 8;

/// The lock that all instances share. An instance takes it for all orders that wait there. Clones share everything.
///
/// `combiner` serves the queues; `lock` takes a lock, and asks who holds it.
#[derive(Clone)]
pub struct EtcdLock {
    pub(super) context: Arc<SaleContext>,
    pub(super) sessions: SessionKeeper,
    pub(super) queues: Arc<Mutex<HashMap<Item, Arc<OrderQueue>>>>,
}

impl EtcdLock {
    /// A guard that takes the lock in these sessions.
    pub fn new(context: &Arc<SaleContext>, sessions: SessionKeeper) -> Self {
        Self { context: Arc::clone(context), sessions, queues: Arc::default() }
    }

    /// Reads the stock first, unless the last read had enough units.
    async fn reduce_order(&self, order: Order) -> Result<Outcome, SaleError> {
        let context = &self.context;
        if !context.stock_reads.had_enough_for(&order)
            && let Some(outcome) = context.check_stock(&order).await?
        {
            return Ok(outcome);
        }
        let id = order.id.clone();
        // only a task that panicked drops the reply, and its effect is unknown
        self.push(order)?.await.unwrap_or_else(|source| {
            Err(SaleError::OutcomeUnknown { order: id, source: source.into() })
        })
    }

    async fn start_sale(&self, item: &Item, units: u64) -> Result<Stock, SaleError> {
        let guard = self.take_in_time(item).await?;
        let deadline = Instant::now() + self.context.options.wait_timeout;
        let start = || async {
            let started = self.context.inventory.start(item, Some(guard.token()), units).await;
            started.map_err(Arc::new)
        };
        // while the lock is held no order can run, so repeating the start changes nothing
        let may_repeat = |error: &InventoryError| {
            !guard.is_lost() && error.is_retryable() && Instant::now() < deadline
        };
        let started = until_known(start, may_repeat).await;
        // an attempt without an answer outweighs a later refusal: the sale may have been started
        started.map_err(|failed| SaleError::of_start(failed.unknown.unwrap_or(failed.latest), item))
    }
}

impl SaleGuard for EtcdLock {
    fn status(&self) -> GuardStatus {
        GuardStatus {
            name: "etcd",
            description: "the lock",
            without: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn reduce(&self, order: Order) -> BoxFuture<'_, Result<Outcome, SaleError>> {
        Box::pin(self.reduce_order(order))
    }

    fn start<'a>(&'a self, item: &'a Item, units: u64) -> BoxFuture<'a, Result<Stock, SaleError>> {
        Box::pin(self.start_sale(item, units))
    }

    fn queue<'a>(&'a self, item: &'a Item) -> BoxFuture<'a, Result<Vec<QueueEntry>, SaleError>> {
        Box::pin(self.claims(item))
    }

    fn lock_name(&self, item: &Item) -> Option<String> {
        Some(self.name_of(item))
    }

    fn check(&self) -> BoxFuture<'_, Result<(), SaleError>> {
        let items = self.context.inventory.known_items(MAX_CHECKED_LOCKS);
        Box::pin(self.check_locks(items))
    }

    fn sessions(&self) -> Option<&SessionKeeper> {
        Some(&self.sessions)
    }

    fn waiting(&self) -> usize {
        self.queues.lock().values().map(|queue| queue.len()).sum()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.sessions.close())
    }
}
