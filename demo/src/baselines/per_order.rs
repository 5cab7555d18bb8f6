//! A lock taken by each order.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fenced_lock::{Backend as _, MemoryBackend, QueueEntry, SessionKeeper, SessionOptions, Token};
use flash_sale::inventory::{InventoryError, Item, NewSale, Order, Outcome, Started};
use flash_sale::sale::{EtcdLock, GuardStatus, SaleContext, SaleError, SaleGuard, lock_name};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use super::naive;
use super::order_locks::{OrderLock, unavailable};
use crate::locks::{LockMode, Server};

/// An order that waits for its lock.
pub(super) struct Turn {
    context: Arc<SaleContext>,
    order: Order,
    /// Gets the outcome before the lock is released, as in the service.
    buyer: oneshot::Sender<Result<Outcome, SaleError>>,
}

impl Turn {
    /// Waits until the lock is granted, or the buyer goes away; sells, and answers the buyer. Without a token it sells in single
    /// steps that only the lock keeps together. Returns the value that releases the lock.
    pub(super) async fn take<T>(
        self,
        granted: impl Future<Output = Result<(Option<Token>, T), SaleError>>,
    ) -> Result<T, SaleError> {
        let Self { context, order, mut buyer } = self;
        let waited = context.options.wait_timeout;
        let (token, hold) = tokio::select! {
            biased;
            () = context.stopping.cancelled() => return Err(SaleError::Stopping),
            () = buyer.closed() => return Err(SaleError::Stopping),
            granted = timeout(waited, granted) => {
                granted.unwrap_or(Err(SaleError::WaitTooLong { waited }))?
            }
        };
        let sold = match token {
            Some(_) => by_the_script(&context, token, &order).await,
            None => naive::reduce(&context.inventory, &order, &context.options.instance).await,
        };
        // an error means that the buyer has gone
        let _ = buyer.send(sold.map_err(|error| SaleError::of_order(error, &order)));
        Ok(hold)
    }
}

/// Guards a sale by a lock that each order takes.
pub(super) struct PerOrder {
    context: Arc<SaleContext>,
    mode: LockMode,
    lock: Arc<OrderLock>,
    /// A permit for each order that may wait.
    places: Arc<Semaphore>,
    /// For `batched-script`: combines the orders of this instance as the service does, under a separate lock that is granted at
    /// once. Nothing keeps the batches of two instances apart: the writer sends them [without tokens](crate::writer::Writer).
    combiner: Option<EtcdLock>,
}

impl PerOrder {
    pub(super) fn new(context: &Arc<SaleContext>, mode: LockMode, lock: OrderLock) -> Self {
        let places = Arc::new(Semaphore::new(context.options.queue_length));
        let combiner = (mode == LockMode::BatchedScript).then(|| {
            let options = SessionOptions::new(Duration::from_hours(1));
            EtcdLock::new(context, SessionKeeper::start(Arc::new(MemoryBackend::new()), options))
        });
        Self { context: Arc::clone(context), mode, lock: Arc::new(lock), places, combiner }
    }

    /// A place to wait. Dropping it returns it.
    fn enter(&self, item: &Item) -> Result<OwnedSemaphorePermit, SaleError> {
        let limit = self.context.options.queue_length;
        let full = |_| SaleError::QueueFull { item: item.clone(), limit };
        Arc::clone(&self.places).try_acquire_owned().map_err(full)
    }
}

#[async_trait]
impl SaleGuard for PerOrder {
    fn status(&self) -> GuardStatus {
        self.mode.status()
    }

    async fn reduce(&self, order: Order) -> Result<Outcome, SaleError> {
        if let Some(combiner) = &self.combiner {
            return combiner.reduce(order).await;
        }
        if self.mode == LockMode::AtomicScript {
            // no plain read first: the script answers sold out as fast
            let _place = self.enter(&order.item)?;
            let sold = by_the_script(&self.context, None, &order).await;
            return sold.map_err(|error| SaleError::of_order(error, &order));
        }
        if let Some(outcome) = self.context.check_stock(&order).await? {
            return Ok(outcome);
        }
        let place = self.enter(&order.item)?;
        let (id, context, lock) =
            (order.id.clone(), Arc::clone(&self.context), Arc::clone(&self.lock));
        let name = lock_name(&context.options.lock_name, &order.item);
        let (buyer, answer) = oneshot::channel();
        // in a separate task, which runs to its end once the lock is granted
        let task = self.context.tasks.spawn(async move {
            // kept until the order has also left etcd
            let _place = place;
            lock.hold(&name, Turn { context, order, buyer }).await
        });
        if let Ok(answer) = answer.await {
            return answer;
        }
        match task.await {
            Ok(held) => Err(held.expect_err("a turn that was taken is answered")),
            Err(panicked) => Err(SaleError::OutcomeUnknown { order: id, source: panicked.into() }),
        }
    }

    /// Starts the sale without the lock: a run has no orders when it begins.
    async fn start(&self, item: &Item, sale: NewSale) -> Result<Started, SaleError> {
        let started = self.context.inventory.start(item, None, sale).await;
        started.map_err(|error| SaleError::of_start(error, item))
    }

    async fn queue(&self, item: &Item) -> Result<Vec<QueueEntry>, SaleError> {
        match (self.lock_name(item), &self.context.options.etcd) {
            (Some(name), Some(etcd)) => etcd.queue(&name).await.map_err(unavailable),
            _ => Ok(Vec::new()),
        }
    }

    fn lock_name(&self, item: &Item) -> Option<String> {
        let has_queue = self.mode.server() == Server::Etcd;
        has_queue.then(|| lock_name(&self.context.options.lock_name, item))
    }

    fn waiting(&self) -> usize {
        let own = self.context.options.queue_length - self.places.available_permits();
        self.combiner.as_ref().map_or(own, EtcdLock::waiting)
    }

    async fn close(&self) {
        self.lock.close().await;
        if let Some(combiner) = &self.combiner {
            combiner.close().await;
        }
    }
}

/// Sells one order by the script.
pub(super) async fn by_the_script(
    context: &SaleContext,
    token: Option<Token>,
    order: &Order,
) -> Result<Outcome, InventoryError> {
    let SaleContext { inventory, options, .. } = context;
    let batch = std::slice::from_ref(order);
    let outcomes = inventory.reduce(&order.item, token, &options.instance, batch).await?;
    Ok(outcomes.into_iter().next().expect("a batch of one order has one outcome"))
}
