//! No lock between the instances: a mutex in each, nothing, or the atomic script.

use std::collections::HashMap;
use std::sync::Arc;

use fenced_lock::QueueEntry;
use flash_sale::inventory::{Item, Order, Outcome, Stock};
use flash_sale::sale::{GuardStatus, SaleContext, SaleError, SaleGuard, StockCheck};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::per_order::by_the_script;
use super::{LockMode, naive};

/// A guard within one instance.
pub(super) struct InProcess {
    context: Arc<SaleContext>,
    mode: LockMode,
    /// One for each item that was ordered under `local`.
    locks: Mutex<HashMap<Item, Arc<tokio::sync::Mutex<()>>>>,
}

impl InProcess {
    /// For `local`, `no-lock` and `atomic-script`.
    pub(super) fn new(context: &Arc<SaleContext>, mode: LockMode) -> Self {
        Self { context: Arc::clone(context), mode, locks: Mutex::default() }
    }

    async fn take(&self, order: Order) -> Result<Outcome, SaleError> {
        // no plain read first: the script itself answers sold out as fast
        if self.mode == LockMode::AtomicScript {
            let _place = self.context.enter(&order.item)?;
            return by_the_script(&self.context, None, &order).await;
        }
        if let StockCheck::Answer(outcome) = self.context.check_stock(&order).await? {
            return Ok(outcome);
        }
        let _place = self.context.enter(&order.item)?;
        let lock = self.lock_of(&order.item);
        let _guard = match &lock {
            Some(lock) => Some(lock.lock().await),
            None => None,
        };
        naive::sell(&self.context, &order).await
    }

    fn lock_of(&self, item: &Item) -> Option<Arc<tokio::sync::Mutex<()>>> {
        let mut locks = self.locks.lock();
        let is_local = self.mode == LockMode::Local;
        is_local.then(|| Arc::clone(locks.entry(item.clone()).or_default()))
    }
}

impl SaleGuard for InProcess {
    fn status(&self) -> GuardStatus {
        self.mode.status()
    }

    fn reduce(&self, order: Order) -> BoxFuture<'_, Result<Outcome, SaleError>> {
        Box::pin(self.take(order))
    }

    fn start<'a>(&'a self, item: &'a Item, units: u64) -> BoxFuture<'a, Result<Stock, SaleError>> {
        Box::pin(async move {
            let started = self.context.inventory.start(item, None, units).await;
            started.map_err(|error| SaleError::of_start(error, item))
        })
    }

    fn queue<'a>(&'a self, _item: &'a Item) -> BoxFuture<'a, Result<Vec<QueueEntry>, SaleError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn lock_name(&self, _item: &Item) -> Option<String> {
        None
    }
}
