//! A lock taken by each order.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fenced_lock::{Backend, MemoryBackend, QueueEntry, SessionKeeper, SessionOptions, Token};
use flash_sale::inventory::{InventoryError, Item, NewSale, Order, Outcome, Started};
use flash_sale::sale::{EtcdLock, GuardStatus, SaleContext, SaleError, SaleGuard, lock_name};
use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinError;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::naive;
use super::order_locks::unavailable;
use crate::locks::LockMode;

/// A lock held by one order at a time.
pub(super) trait OrderLock: Send + Sync + 'static {
    /// Takes the lock `name` for this turn, and releases it after the turn.
    ///
    /// # Errors
    /// The lock was not granted. No claim on it is left, if its service answers.
    fn hold(&self, name: &str, turn: Turn) -> impl Future<Output = Result<(), SaleError>> + Send;

    /// Ends its session once no order is in progress.
    fn close(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// What is done under a lock, and how long the lock is waited for.
pub(super) struct Turn {
    /// Cancelled when the buyer goes away, or the sale stops.
    gone: CancellationToken,
    /// How long the grant is waited for.
    waited: Duration,
    /// Without a token, the order is sold in single steps that only the lock keeps together.
    work: Box<dyn FnOnce(Option<Token>) -> BoxFuture<'static, ()> + Send>,
}

impl Turn {
    /// Waits until the lock is granted, and does the work. Returns what releases the lock.
    pub(super) async fn take<T>(
        self,
        granted: impl Future<Output = Result<(Option<Token>, T), SaleError>>,
    ) -> Result<T, SaleError> {
        let Self { gone, waited, work } = self;
        let (token, hold) = tokio::select! {
            biased;
            () = gone.cancelled() => return Err(SaleError::Stopping),
            granted = timeout(waited, granted) => {
                granted.unwrap_or(Err(SaleError::WaitTooLong { waited }))?
            }
        };
        work(token).await;
        Ok(hold)
    }
}

/// Guards a sale by such a lock.
pub(super) struct PerOrder<L> {
    context: Arc<SaleContext>,
    mode: LockMode,
    lock: Arc<L>,
    /// Shows the queue of the lock, if there is one.
    queue: Option<Arc<dyn Backend<Token = Token>>>,
    /// The places to wait in.
    places: Arc<Semaphore>,
    /// For `batched-script`: combines the orders of this instance as the service does, under a lock of its own, which is
    /// granted at once. Nothing keeps the batches of two instances apart: the writer sends them
    /// [without tokens](crate::writer::Writer).
    combiner: Option<EtcdLock>,
}

impl<L: OrderLock> PerOrder<L> {
    pub(super) fn guard(
        context: &Arc<SaleContext>,
        mode: LockMode,
        lock: L,
        queue: Option<Arc<dyn Backend<Token = Token>>>,
    ) -> Box<dyn SaleGuard> {
        let places = Arc::new(Semaphore::new(context.options.queue_length));
        let combiner = (mode == LockMode::BatchedScript).then(|| {
            let options = SessionOptions::new(Duration::from_hours(1));
            EtcdLock::new(context, SessionKeeper::start(Arc::new(MemoryBackend::new()), options))
        });
        let (context, lock) = (Arc::clone(context), Arc::new(lock));
        Box::new(Self { context, mode, lock, queue, places, combiner })
    }

    /// A place to wait. Its drop returns it.
    fn enter(&self, item: &Item) -> Result<OwnedSemaphorePermit, SaleError> {
        let limit = self.context.options.queue_length;
        let full = |_| SaleError::QueueFull { item: item.clone(), limit };
        Arc::clone(&self.places).try_acquire_owned().map_err(full)
    }

    fn name_for(&self, item: &Item) -> String {
        lock_name(&self.context.options.lock_name, item)
    }

    /// Does `work` under the lock of `item`, in a task of its own. If the caller goes away while the task waits for the
    /// lock, the task withdraws its claim; later, it goes on to its end. `kept` is dropped when the lock is released.
    ///
    /// # Errors
    /// The task ended without an answer.
    async fn under_lock<T, F>(
        &self,
        item: &Item,
        kept: impl Send + 'static,
        work: impl FnOnce(Option<Token>) -> F + Send + 'static,
    ) -> Result<Result<T, SaleError>, JoinError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, SaleError>> + Send,
    {
        let SaleContext { options, stopping, tasks, .. } = &*self.context;
        let gone = stopping.child_token();
        let _gone = gone.clone().drop_guard();
        let (answer, answered) = oneshot::channel();
        // answered before the lock is released, as in the service; the caller may have gone
        let work = |token| -> BoxFuture<'static, ()> {
            Box::pin(async move { drop(answer.send(work(token).await)) })
        };
        let turn = Turn { gone, waited: options.wait_timeout, work: Box::new(work) };
        let (name, lock) = (self.name_for(item), Arc::clone(&self.lock));
        let task = tasks.spawn(async move {
            let _kept = kept;
            lock.hold(&name, turn).await
        });
        match answered.await {
            Ok(answer) => Ok(answer),
            // the lock was not granted, or the task panicked
            Err(_) => Ok(task.await?.map(|()| unreachable!("the work is answered"))),
        }
    }
}

#[async_trait]
impl<L: OrderLock> SaleGuard for PerOrder<L> {
    fn status(&self) -> GuardStatus {
        self.mode.status()
    }

    async fn reduce(&self, order: Order) -> Result<Outcome, SaleError> {
        if let Some(combiner) = &self.combiner {
            return combiner.reduce(order).await;
        }
        if self.mode == LockMode::AtomicScript {
            // no plain read first: the script itself answers sold out as fast
            let _place = self.enter(&order.item)?;
            let sold = by_the_script(&self.context, None, &order).await;
            return sold.map_err(|error| SaleError::of_order(error, &order));
        }
        if let Some(outcome) = self.context.check_stock(&order).await? {
            return Ok(outcome);
        }
        // kept until the order has left etcd as well
        let place = self.enter(&order.item)?;
        let (id, item) = (order.id.clone(), order.item.clone());
        let context = Arc::clone(&self.context);
        let work = move |token: Option<Token>| async move {
            let sold = match token {
                Some(_) => by_the_script(&context, token, &order).await,
                None => naive::reduce(&context.inventory, &order, &context.options.instance).await,
            };
            sold.map_err(|error| SaleError::of_order(error, &order))
        };
        let sold = self.under_lock(&item, place, work).await;
        sold.unwrap_or_else(|ended| {
            Err(SaleError::OutcomeUnknown { order: id, source: ended.into() })
        })
    }

    async fn start(&self, item: &Item, sale: NewSale) -> Result<Started, SaleError> {
        let (context, sold) = (Arc::clone(&self.context), item.clone());
        let work = move |token| async move {
            let started = context.inventory.start(&sold, token, sale).await;
            started.map_err(|error| SaleError::of_start(error, &sold))
        };
        let started = self.under_lock(item, (), work).await;
        started.unwrap_or_else(|ended| {
            Err(SaleError::StartUnknown { item: item.clone(), source: ended.into() })
        })
    }

    async fn queue(&self, item: &Item) -> Result<Vec<QueueEntry>, SaleError> {
        let Some(queue) = &self.queue else { return Ok(Vec::new()) };
        queue.queue(&self.name_for(item)).await.map_err(unavailable)
    }

    fn lock_name(&self, item: &Item) -> Option<String> {
        self.queue.is_some().then(|| self.name_for(item))
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
