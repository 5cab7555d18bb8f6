//! A lock taken by each order.

use std::sync::Arc;

use fenced_lock::{QueueEntry, Token};
use flash_sale::inventory::{InventoryError, Item, Order, Outcome, Stock};
use flash_sale::sale::{GuardStatus, SaleContext, SaleError, SaleGuard, lock_name};
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::naive;
use crate::locks::{LockMode, Server};

/// A lock held by one order at a time.
pub(super) trait OrderLock: Send + Sync + 'static {
    /// A claim on it, which may have the lock.
    type Claim: Send + 'static;

    /// Makes a claim on the lock `name`. It is not cancelled, and takes no longer than a request.
    fn claim(&self, name: &str) -> impl Future<Output = Result<Self::Claim, SaleError>> + Send;

    /// Waits until it is the claim's turn. Returns the token of the grant. Without one, the order is sold in single
    /// steps that only the lock keeps together. It can be cancelled.
    fn wait(
        &self,
        claim: &mut Self::Claim,
    ) -> impl Future<Output = Result<Option<Token>, SaleError>> + Send;

    /// Withdraws a claim, or releases the lock.
    fn withdraw(&self, claim: Self::Claim) -> impl Future<Output = ()> + Send;

    /// The claims on the lock `name`, the holder first.
    fn queue(&self, name: &str) -> impl Future<Output = Result<Vec<QueueEntry>, SaleError>> + Send;

    /// Ends its session once no order is in progress.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// Guards a sale by such a lock.
pub(super) struct PerOrder<L> {
    context: Arc<SaleContext>,
    mode: LockMode,
    lock: Arc<L>,
}

impl<L: OrderLock> PerOrder<L> {
    pub(super) fn guard(context: &Arc<SaleContext>, mode: LockMode, lock: L) -> Box<dyn SaleGuard> {
        Box::new(Self { context: Arc::clone(context), mode, lock: Arc::new(lock) })
    }

    fn name_for(&self, item: &Item) -> String {
        lock_name(&self.context.options.lock_name, item)
    }

    async fn sell(&self, order: Order) -> Result<Outcome, SaleError> {
        if self.mode == LockMode::AtomicScript {
            // no plain read first: the script itself answers sold out as fast
            let _place = self.context.enter(&order.item)?;
            let sold = by_the_script(&self.context, None, &order).await;
            return sold.map_err(|error| SaleError::of_order(error, &order));
        }
        if let Some(outcome) = self.context.check_stock(&order).await? {
            return Ok(outcome);
        }
        // kept until the order has left etcd as well
        let place = self.context.enter(&order.item)?;
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
        let (gone, waited) = (stopping.child_token(), options.wait_timeout);
        let _gone = gone.clone().drop_guard();
        let (name, lock) = (self.name_for(item), Arc::clone(&self.lock));
        let (answer, answered) = oneshot::channel();
        tasks.spawn(async move {
            let mut claim = match lock.claim(&name).await {
                Ok(claim) => claim,
                Err(error) => return drop(answer.send(Err(error))),
            };
            let granted = tokio::select! {
                biased;
                () = gone.cancelled() => Err(SaleError::Stopping),
                granted = timeout(waited, lock.wait(&mut claim)) => {
                    granted.unwrap_or(Err(SaleError::WaitTooLong { waited }))
                }
            };
            // answered before the lock is released, as in the service; the caller may have gone
            drop(answer.send(match granted {
                Ok(token) => work(token).await,
                Err(error) => Err(error),
            }));
            lock.withdraw(claim).await;
            drop(kept);
        });
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
        (self.mode.server() != Server::None).then(|| self.name_for(item))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.lock.close())
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
