//! The interface to the guard of a sale.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fenced_lock::{EtcdBackend, QueueEntry, SessionKeeper};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::SaleError;
use super::metrics::Metrics;
use super::reads::Reads;
use super::stock_reads::StockReads;
use crate::inventory::{
    Accepted, Action, Available, ChangeCall, Changed, Event, Inventory, InventoryError, Item,
    NewSale, Order, Outcome, Started,
};
use crate::peers::{Peers, Receiver};

/// Protects a sale. The service has one implementation, [`EtcdLock`](super::EtcdLock).
#[async_trait]
pub trait SaleGuard: Send + Sync + 'static {
    /// Its description for the page, the log and the metrics.
    fn status(&self) -> GuardStatus;

    /// Takes the order's units, or carries out its other [action](Action).
    async fn reduce(&self, order: Order) -> Result<Outcome, SaleError>;

    /// Starts a sale of `item`.
    async fn start(&self, item: &Item, sale: NewSale) -> Result<Started, SaleError>;

    /// Changes the running sale of `item`.
    async fn change(&self, item: &Item, call: &ChangeCall) -> Result<Changed, SaleError>;

    /// The claims on the lock of `item`, the holder first.
    async fn queue(&self, item: &Item) -> Result<Vec<QueueEntry>, SaleError>;

    /// The name of the lock of `item`, if there is a distributed lock.
    fn lock_name(&self, item: &Item) -> Option<String>;

    /// Whether the lock of some known item can be had. Writes nothing.
    async fn check(&self) -> Result<(), SaleError> {
        self.queue(&Item::DEFAULT).await.map(drop)
    }

    /// The sessions of the lock, if it has any.
    fn sessions(&self) -> Option<&SessionKeeper> {
        None
    }

    /// Carries out the batches of peers, if there are peers.
    fn receiver(&self) -> Option<Arc<dyn Receiver>> {
        None
    }

    /// The number of waiting orders.
    fn waiting(&self) -> usize {
        0
    }

    /// How long the oldest waiting order has waited; zero without one.
    fn oldest(&self) -> Duration {
        Duration::ZERO
    }

    /// Releases the guard's claims. By then the sale has stopped, and its tasks have ended.
    async fn close(&self) {}
}

/// A guard as the page, the log and the metrics show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardStatus {
    /// Its name.
    pub name: &'static str,
    /// Completes the sentence "The sale is guarded by ...".
    pub description: &'static str,
    /// The names of the safeguards that are off, such as `fence`.
    pub without: Vec<String>,
    /// The dangers under this guard: a kind and a message each.
    pub warnings: Vec<(&'static str, &'static str)>,
}

impl GuardStatus {
    /// Whether the store compares tokens.
    pub fn is_fenced(&self) -> bool {
        self.without.iter().all(|name| name != "fence")
    }
}

/// How one instance sells.
#[derive(Clone, Debug)]
pub struct SaleOptions {
    /// The name of the default item's lock; a named item's lock is this name, `:` and the item.
    pub lock_name: String,
    /// The name of this instance, recorded with each order.
    pub instance: String,
    /// The most orders of one item that may wait at this instance.
    pub queue_length: usize,
    /// The most orders in a batch; at most [`MAX_BATCH`](crate::inventory::Inventory::MAX_BATCH).
    pub batch_size: usize,
    /// How long a tenure lasts at most while another instance waits for the lock.
    pub tenure: Duration,
    /// How long an order may wait for the lock, and for an answer of the store once it was sent.
    pub wait_timeout: Duration,
    /// The etcd backend of the locks, which shows their queues.
    pub etcd: Option<Arc<EtcdBackend>>,
    /// The other instances, which take orders while they hold the lock, if instances forward orders.
    pub peers: Option<Arc<Peers>>,
}

/// The parts that a sale and its [guard](SaleGuard) share.
pub struct SaleContext {
    /// The stock.
    pub inventory: Inventory,
    /// How this instance sells.
    pub options: SaleOptions,
    /// Cancelled when the sale stops: waiting orders must get [`SaleError::Stopping`].
    pub stopping: CancellationToken,
    /// Cancelled with `stopping`, or [before](super::Sale::finish): nothing is sent again to a silent store.
    pub(super) finishing: CancellationToken,
    /// The tasks that change the stock. They run to their end even if the buyer disconnects, and the sale waits for
    /// them before it closes its guard.
    pub tasks: TaskTracker,
    pub(super) stock_reads: StockReads,
    pub(super) reads: Reads,
    pub(super) metrics: Metrics,
}

impl SaleContext {
    /// A context that no order has used yet.
    pub fn new(inventory: Inventory, options: SaleOptions) -> Arc<Self> {
        let stopping = CancellationToken::new();
        Arc::new(Self {
            stock_reads: StockReads::new(&inventory, options.wait_timeout),
            reads: Reads::new(&inventory),
            inventory,
            options,
            finishing: stopping.child_token(),
            stopping,
            tasks: TaskTracker::new(),
            metrics: Metrics::default(),
        })
    }

    /// Whether the sale ends, so that a call that failed in this way is not sent again.
    pub(super) fn gives_up(&self, error: &InventoryError) -> bool {
        self.stopping.is_cancelled() || self.finishing.is_cancelled() && error.is_silence()
    }

    /// Reads the stock without the lock. If the sale accepts no orders, or too few units are left and no holds are due,
    /// the answer is true at that moment. An order that was accepted before gets its first answer. `None`: the order
    /// needs a batch. Concurrent orders share a read.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn check_stock(&self, order: &Order) -> Result<Option<Outcome>, SaleError> {
        if order.action != Action::Reserve {
            return Ok(None);
        }
        let (available, first) = self.stock_reads.read(order).await?;
        if first.is_none()
            && let Some(closed) = &available.closed
        {
            self.stock_reads.forget(&order.item);
            return Ok(Some(closed.clone()));
        }
        let Available { stock, is_due, per_order, .. } = available;
        if stock >= i64::from(order.quantity.get()) {
            if available.closed.is_none() {
                self.stock_reads.note(&order.item, stock);
            }
            return Ok(None);
        }
        // due units come back, and an order for too many units must hear the reason
        let asks_too_much = per_order.is_some_and(|most| order.quantity.get() > most);
        // an order that may not have reached the replicas needs a batch, which waits for them
        if is_due || asks_too_much || (first.is_some() && self.inventory.replicas().is_some()) {
            return Ok(None);
        }
        Ok(Some(match first {
            Some(first) if !first.is_repeated_by(order) => Outcome::Conflict,
            Some(Accepted {
                event: event @ (Event::Cancelled | Event::Expired | Event::Returned),
                changed: Some(time),
                ..
            }) => Outcome::Over { event, time },
            Some(first) => {
                Outcome::Repeated(Accepted { event: Event::Reserved, changed: None, ..first })
            }
            None => available.too_few_for(order.quantity),
        }))
    }
}

#[cfg(test)]
impl SaleContext {
    /// The context of a test that asks no store.
    pub(super) fn without_a_store(peers: Option<Arc<Peers>>) -> Arc<Self> {
        Self::at("redis://127.0.0.1:1", peers)
    }

    /// The context of a test with this store.
    pub(super) fn at(redis: &str, peers: Option<Arc<Peers>>) -> Arc<Self> {
        let inventory = Inventory::new(redis, crate::inventory::InventoryOptions::default());
        let time = Duration::from_secs(10);
        let options = SaleOptions {
            lock_name: "a".into(),
            instance: "a".into(),
            queue_length: 9,
            batch_size: 9,
            tenure: time,
            wait_timeout: time / 2,
            etcd: None,
            peers,
        };
        Self::new(inventory.expect("a valid address"), options)
    }
}
