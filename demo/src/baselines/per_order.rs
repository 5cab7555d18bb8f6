//! An etcd lock taken by each order.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{QueueEntry, Token};
use flash_sale::inventory::{Item, Order, Outcome, Stock};
use flash_sale::sale::{GuardStatus, SaleContext, SaleError, SaleGuard, StockCheck, lock_name};
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{LockMode, naive};

/// A lock held by one order at a time.
pub(super) trait OrderLock: Send + Sync + 'static {
    /// The hold.
    type Hold: Send + 'static;

    /// Takes the lock `name`. If it fails, nothing stays in the queue.
    fn take(
        &self,
        name: &str,
        limit: &Limit,
    ) -> impl Future<Output = Result<Self::Hold, SaleError>> + Send;

    fn release(&self, hold: Self::Hold) -> impl Future<Output = ()> + Send;

    /// The token of a hold. Without one, the order is sold in single steps that only the lock keeps together.
    fn token(hold: &Self::Hold) -> Option<Token>;

    /// The claims on the lock `name`, the holder first.
    fn queue(&self, name: &str) -> impl Future<Output = Result<Vec<QueueEntry>, SaleError>> + Send;

    /// Gives up the lease once no order is in progress.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// Guards a sale by such a lock.
pub(super) struct PerOrder<L> {
    context: Arc<SaleContext>,
    mode: LockMode,
    lock: Arc<L>,
}

impl<L: OrderLock> PerOrder<L> {
    pub(super) fn new(context: &Arc<SaleContext>, mode: LockMode, lock: L) -> Self {
        Self { context: Arc::clone(context), mode, lock: Arc::new(lock) }
    }

    fn name_for(&self, item: &Item) -> String {
        lock_name(&self.context.options.lock_name, item)
    }

    async fn sell(&self, order: Order) -> Result<Outcome, SaleError> {
        if let StockCheck::Answer(outcome) = self.context.check_stock(&order).await? {
            return Ok(outcome);
        }
        // kept until the order has left etcd as well
        let place = self.context.enter(&order.item)?;
        let (id, item) = (order.id.clone(), order.item.clone());
        let context = Arc::clone(&self.context);
        let work = move |token: Option<Token>| async move {
            match token {
                Some(_) => by_the_script(&context, token, &order).await,
                None => naive::sell(&context, &order).await,
            }
        };
        let sold = self.under_lock(&item, place, work).await;
        sold.unwrap_or_else(|ended| {
            Err(SaleError::OutcomeUnknown { order: id, source: ended.into() })
        })
    }

    async fn start_sale(&self, item: &Item, units: u64) -> Result<Stock, SaleError> {
        let (context, sold) = (Arc::clone(&self.context), item.clone());
        let work = move |token| async move {
            let started = context.inventory.start(&sold, token, units).await;
            started.map_err(|error| SaleError::of_start(error, &sold))
        };
        let started = self.under_lock(item, (), work).await;
        started.unwrap_or_else(|ended| {
            Err(SaleError::StartUnknown { item: item.clone(), source: ended.into() })
        })
    }

    /// Does `work` under the lock of `item`, in a task of its own, which withdraws the claim if the
    /// caller goes away while it waits, and goes on to its end if it goes later. `kept` is dropped when
    /// the lock is released.
    ///
    /// # Errors
    /// The task ended without an answer.
    async fn under_lock<T, F>(
        &self,
        item: &Item,
        kept: impl Send + 'static,
        work: impl FnOnce(Option<Token>) -> F + Send + 'static,
    ) -> Result<Result<T, SaleError>, oneshot::error::RecvError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, SaleError>> + Send,
    {
        let SaleContext { options, stopping, tasks, .. } = &*self.context;
        let gone = stopping.child_token();
        let limit = Limit::new(options.wait_timeout, gone.clone());
        let (name, lock) = (self.name_for(item), Arc::clone(&self.lock));
        let (answer, answered) = oneshot::channel();
        tasks.spawn(async move {
            // the caller may have gone
            match lock.take(&name, &limit).await {
                Ok(hold) => {
                    drop(answer.send(work(L::token(&hold)).await));
                    lock.release(hold).await;
                }
                Err(error) => drop(answer.send(Err(error))),
            }
            drop(kept);
        });
        let _gone = gone.drop_guard();
        answered.await
    }
}

impl<L: OrderLock> SaleGuard for PerOrder<L> {
    fn status(&self) -> GuardStatus {
        self.mode.status()
    }

    fn reduce(&self, order: Order) -> BoxFuture<'_, Result<Outcome, SaleError>> {
        Box::pin(self.sell(order))
    }

    fn start<'a>(&'a self, item: &'a Item, units: u64) -> BoxFuture<'a, Result<Stock, SaleError>> {
        Box::pin(self.start_sale(item, units))
    }

    fn queue<'a>(&'a self, item: &'a Item) -> BoxFuture<'a, Result<Vec<QueueEntry>, SaleError>> {
        let name = self.name_for(item);
        Box::pin(async move { self.lock.queue(&name).await })
    }

    fn lock_name(&self, item: &Item) -> Option<String> {
        Some(self.name_for(item))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.lock.close())
    }
}

/// A wait ends at its time limit, or when the caller goes away.
pub(super) struct Limit {
    deadline: Instant,
    waited: Duration,
    gone: CancellationToken,
}

impl Limit {
    /// At most `limit` from now on, until `gone`.
    fn new(limit: Duration, gone: CancellationToken) -> Self {
        Self { deadline: Instant::now() + limit, waited: limit, gone }
    }

    /// Waits for `work`, and drops it at the end of the wait.
    pub(super) async fn wait<T>(
        &self,
        work: impl Future<Output = Result<T, SaleError>>,
    ) -> Result<T, SaleError> {
        tokio::select! {
            biased;
            () = self.gone.cancelled() => Err(SaleError::Stopping),
            result = timeout_at(self.deadline, work) => {
                result.unwrap_or(Err(SaleError::WaitTooLong { waited: self.waited }))
            }
        }
    }
}

/// Sells one order by the script.
pub(super) async fn by_the_script(
    context: &SaleContext,
    token: Option<Token>,
    order: &Order,
) -> Result<Outcome, SaleError> {
    let batch = std::slice::from_ref(order);
    let instance = &context.options.instance;
    let reduced = context.inventory.reduce(&order.item, token, instance, batch).await;
    let mut outcomes = reduced.map_err(|error| SaleError::of_order(error, order))?;
    let missing = || SaleError::StoreUnavailable { source: "one order, and no outcome".into() };
    outcomes.pop().ok_or_else(missing)
}
