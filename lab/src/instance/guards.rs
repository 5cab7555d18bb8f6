//! Other ways to guard the same sale: to compare with, and the lock without `batch-ownership`.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fenced_lock::{Backend as _, MemoryBackend, QueueEntry, SessionKeeper, SessionOptions, Token};
use flash_sale::inventory::{
    ChangeCall, Changed, InventoryError, Item, NewSale, Order, Outcome, Started,
};
use flash_sale::sale::{EtcdLock, GuardStatus, SaleContext, SaleError, SaleGuard, lock_name};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::recipe::{Recipe, unavailable};

/// The time limit of an order without `batch-ownership`.
const IN_THE_REQUEST: Duration = Duration::from_secs(1);

/// An order that waits for its lock.
pub(super) struct Turn {
    context: Arc<SaleContext>,
    order: Order,
    /// Gets the outcome before the lock is released, as in the service.
    buyer: oneshot::Sender<Result<Outcome, SaleError>>,
}

impl Turn {
    /// Waits until the lock is granted, or the buyer goes away; sells, and answers the buyer.
    pub(super) async fn take(
        self,
        granted: impl Future<Output = Result<Token, SaleError>>,
    ) -> Result<(), SaleError> {
        let Self { context, order, mut buyer } = self;
        let waited = context.options.wait_timeout;
        let token = tokio::select! {
            biased;
            () = context.stopping.cancelled() => return Err(SaleError::Stopping),
            () = buyer.closed() => return Err(SaleError::Stopping),
            granted = timeout(waited, granted) => {
                granted.unwrap_or(Err(SaleError::WaitTooLong { waited }))?
            }
        };
        let sold = by_the_script(&context, token, &order).await;
        // an error means that the buyer has gone
        let _ = buyer.send(sold.map_err(|error| SaleError::of_order(error, &order)));
        Ok(())
    }
}

/// A way to guard the sale.
pub(super) enum Kind {
    /// A claim in etcd for each order.
    Recipe(Arc<Recipe>),
    /// Combines the orders of this instance as the service does, under a separate lock that is granted at once. Nothing keeps the
    /// batches of two instances apart: the writer sends them [without tokens](super::writer::Writer).
    Batches(EtcdLock),
    /// Takes the lock and the units in the request's own future, which is dropped, at any point, when the client goes away and
    /// after one second. Each failure is answered as if nothing was taken.
    InTheRequest(EtcdLock),
}

pub(super) struct Guard {
    context: Arc<SaleContext>,
    kind: Kind,
    /// A permit for each order that may wait.
    places: Arc<Semaphore>,
}

impl Guard {
    pub(super) fn new(context: &Arc<SaleContext>, kind: Kind) -> Self {
        let places = Arc::new(Semaphore::new(context.options.queue_length));
        Self { context: Arc::clone(context), kind, places }
    }

    pub(super) fn batches(context: &Arc<SaleContext>) -> Self {
        let options = SessionOptions::new(Duration::from_hours(1));
        let sessions = SessionKeeper::start(Arc::new(MemoryBackend::new()), options);
        Self::new(context, Kind::Batches(EtcdLock::new(context, sessions)))
    }

    fn lock(&self) -> Option<&EtcdLock> {
        match &self.kind {
            Kind::Recipe(_) => None,
            Kind::Batches(lock) | Kind::InTheRequest(lock) => Some(lock),
        }
    }

    async fn reduce_by(&self, recipe: &Arc<Recipe>, order: Order) -> Result<Outcome, SaleError> {
        if let Some(outcome) = self.context.check_stock(&order).await? {
            return Ok(outcome);
        }
        let (limit, item) = (self.context.options.queue_length, order.item.clone());
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| SaleError::QueueFull { item, limit })?;
        let (id, context, recipe) =
            (order.id.clone(), Arc::clone(&self.context), Arc::clone(recipe));
        let name = lock_name(&context.options.lock_name, &order.item);
        let (buyer, answer) = oneshot::channel();
        // in a separate task, which runs to its end once the lock is granted
        let task = self.context.tasks.spawn(async move {
            // kept until the order has also left etcd
            let _place = place;
            recipe.hold(&name, Turn { context, order, buyer }).await
        });
        if let Ok(answer) = answer.await {
            return answer;
        }
        match task.await {
            Ok(held) => Err(held.expect_err("a turn that was taken is answered")),
            Err(panicked) => Err(SaleError::OutcomeUnknown { order: id, source: panicked.into() }),
        }
    }

    async fn reduce_in_the_request(
        &self,
        lock: &EtcdLock,
        order: Order,
    ) -> Result<Outcome, SaleError> {
        let waited = IN_THE_REQUEST;
        if let Some(outcome) = self.context.check_stock(&order).await? {
            return Ok(outcome);
        }
        let sessions = lock.sessions().expect("the lock has sessions");
        let name = lock_name(&self.context.options.lock_name, &order.item);
        let selling = async {
            let guard = sessions.lock(&name).await.map_err(unavailable)?;
            let sold = by_the_script(&self.context, guard.token(), &order).await;
            sold.map_err(|error| SaleError::of_read(error, &order.item))
        };
        timeout(waited, selling).await.unwrap_or(Err(SaleError::WaitTooLong { waited }))
    }
}

#[async_trait]
impl SaleGuard for Guard {
    fn status(&self) -> GuardStatus {
        let (name, description) = match &self.kind {
            Kind::Recipe(_) => ("etcd-recipe", "a lock for each order"),
            Kind::Batches(_) => ("batched-script", "the store's script alone"),
            Kind::InTheRequest(lock) => return lock.status(),
        };
        GuardStatus { name, description, ..GuardStatus::default() }
    }

    async fn reduce(&self, order: Order) -> Result<Outcome, SaleError> {
        match &self.kind {
            Kind::Recipe(recipe) => self.reduce_by(recipe, order).await,
            Kind::Batches(lock) => lock.reduce(order).await,
            Kind::InTheRequest(lock) => self.reduce_in_the_request(lock, order).await,
        }
    }

    /// Without the shared lock, starts the sale without any: a run has no orders when it begins.
    async fn start(&self, item: &Item, sale: NewSale) -> Result<Started, SaleError> {
        if let Kind::InTheRequest(lock) = &self.kind {
            return lock.start(item, sale).await;
        }
        let started = self.context.inventory.start(item, None, sale).await;
        started.map_err(|error| SaleError::of_start(error, item))
    }

    async fn change(&self, item: &Item, call: &ChangeCall) -> Result<Changed, SaleError> {
        if let Kind::InTheRequest(lock) = &self.kind {
            return lock.change(item, call).await;
        }
        let SaleContext { inventory, options, .. } = &*self.context;
        let changed = inventory.change_sale(item, None, &options.instance, call).await;
        changed.map_err(|error| SaleError::of_change(error, item))
    }

    async fn queue(&self, item: &Item) -> Result<Vec<QueueEntry>, SaleError> {
        match (self.lock_name(item), &self.context.options.etcd) {
            (Some(name), Some(etcd)) => etcd.queue(&name).await.map_err(unavailable),
            _ => Ok(Vec::new()),
        }
    }

    fn lock_name(&self, item: &Item) -> Option<String> {
        let is_shared = !matches!(self.kind, Kind::Batches(_));
        is_shared.then(|| lock_name(&self.context.options.lock_name, item))
    }

    fn sessions(&self) -> Option<&SessionKeeper> {
        let Kind::InTheRequest(lock) = &self.kind else { return None };
        lock.sessions()
    }

    fn waiting(&self) -> usize {
        let own = self.context.options.queue_length - self.places.available_permits();
        own + self.lock().map_or(0, EtcdLock::waiting)
    }

    async fn close(&self) {
        match &self.kind {
            Kind::Recipe(recipe) => recipe.close().await,
            Kind::Batches(lock) | Kind::InTheRequest(lock) => lock.close().await,
        }
    }
}

/// Sells one order by the script.
async fn by_the_script(
    context: &SaleContext,
    token: Token,
    order: &Order,
) -> Result<Outcome, InventoryError> {
    let SaleContext { inventory, options, .. } = context;
    let batch = std::slice::from_ref(order);
    let outcomes = inventory.reduce(&order.item, Some(token), &options.instance, batch).await?;
    Ok(outcomes.into_iter().next().expect("a batch of one order has one outcome"))
}
