//! The four guards of a sale, and the switch between them.
//!
//! `etcd` is the service's own lock. The other guards are for comparison:
//!
//! | guard | protection of the stock |
//! |---|---|
//! | `local` | a mutex in each instance: oversells with two instances |
//! | `no-lock` | nothing: oversells |
//! | `atomic-script` | no lock: the script is atomic |
//!
//! A sale is started and changed under the lock, whatever guards its orders.
//!
//! Without a shared lock, an instance reads the stock, decides, and writes, in three steps. If two instances read before either
//! writes, both see the same stock, both find it enough, and both write the same smaller number: two units sold, one taken off.
//! Such a sale has no order ids and no ledger, so a retry buys again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use clap::ValueEnum;
use fenced_lock::{QueueEntry, SessionKeeper};
use flash_sale::inventory::{
    Accepted, Action, ChangeCall, Changed, Event, InventoryError, Item, NewSale, Order, Outcome,
    Started, Timestamp,
};
use flash_sale::peers::Receiver;
use flash_sale::sale::{GuardStatus, SaleContext, SaleError, SaleGuard};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedMutexGuard, Semaphore};
use tokio::time::timeout;

use super::rig::{FENCE, Rig};

/// A guard of the sale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guard {
    /// The lock in etcd
    #[default]
    #[value(name = "etcd")]
    #[serde(rename = "etcd")]
    Lock,
    /// A lock in each instance
    Local,
    /// No lock
    NoLock,
    /// No lock, one atomic script
    AtomicScript,
}

impl Guard {
    /// Its name, and its description, for a sentence like "guarded by ...".
    pub(crate) const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Lock => ("etcd", "the lock"),
            Self::Local => ("local", "a lock in each instance"),
            Self::NoLock => ("no-lock", "nothing"),
            Self::AtomicScript => ("atomic-script", "the store's script alone"),
        }
    }

    /// If it oversells: the page's warning, and the text behind a verdict. Guards that oversell keep no ledger.
    pub(crate) const fn flaw(self) -> Option<[&'static str; 2]> {
        match self {
            Self::Local => Some([
                "Each instance guards the stock against itself alone: two of them sell units twice.",
                "That is what happens without a lock between the instances: each one guards the stock only against itself.",
            ]),
            Self::NoLock => Some([
                "Nothing guards the stock: units are sold twice.",
                "That is what happens without a lock, when reading, deciding and writing are three steps.",
            ]),
            Self::Lock | Self::AtomicScript => None,
        }
    }
}

/// The guards of an instance. Orders in progress keep the guard under which they began. Nothing excludes them from orders under
/// another guard.
pub(super) struct Switch {
    /// The guard that the instances share.
    lock: Box<dyn SaleGuard>,
    chosen: AtomicUsize,
    context: Arc<SaleContext>,
    rig: Arc<Rig>,
    /// The lock of [`Guard::Local`].
    own: Arc<tokio::sync::Mutex<()>>,
    /// A permit for each order that may wait without the shared lock.
    places: Semaphore,
}

impl Switch {
    pub(super) fn new(
        context: &Arc<SaleContext>,
        rig: &Arc<Rig>,
        lock: Box<dyn SaleGuard>,
        chosen: Guard,
    ) -> Self {
        let places = Semaphore::new(context.options.queue_length);
        let (context, rig) = (Arc::clone(context), Arc::clone(rig));
        let chosen = AtomicUsize::new(chosen as usize);
        Self { lock, chosen, context, rig, own: Arc::default(), places }
    }

    /// The guard of new orders.
    pub(super) fn chosen(&self) -> Guard {
        Guard::value_variants()[self.chosen.load(Ordering::Relaxed)]
    }

    pub(super) fn choose(&self, guard: Guard) {
        self.chosen.store(guard as usize, Ordering::Relaxed);
    }

    fn is_shared(&self) -> bool {
        self.chosen() == Guard::Lock
    }

    /// Waits for the lock of this instance.
    async fn turn(&self) -> Result<OwnedMutexGuard<()>, SaleError> {
        let waited = self.context.options.wait_timeout;
        let turn = timeout(waited, Arc::clone(&self.own).lock_owned());
        let turn = self.context.stopping.run_until_cancelled(turn).await;
        turn.ok_or(SaleError::Stopping)?.map_err(|_| SaleError::WaitTooLong { waited })
    }
}

#[async_trait]
impl SaleGuard for Switch {
    fn status(&self) -> GuardStatus {
        let (name, description) = self.chosen().words();
        let own = || GuardStatus { name, description, ..GuardStatus::default() };
        let mut status = if self.is_shared() { self.lock.status() } else { own() };
        status.without = self.rig.without();
        status.warnings.extend(self.chosen().flaw().map(|[warning, _]| ("no-lock", warning)));
        if !self.rig.has(FENCE) {
            let text = "The fence is off: a holder that was paused can undo what others have sold.";
            status.warnings.push(("fence-off", text));
        }
        status
    }

    async fn reduce(&self, order: Order) -> Result<Outcome, SaleError> {
        let guard = self.chosen();
        if guard == Guard::Lock {
            return self.lock.reduce(order).await;
        }
        let limit = self.context.options.queue_length;
        let full = |_| SaleError::QueueFull { item: order.item.clone(), limit };
        let _place = self.places.try_acquire().map_err(full)?;
        if guard == Guard::AtomicScript {
            // no plain read first: the script answers *sold out* as fast
            let SaleContext { inventory, options, .. } = &*self.context;
            let batch = std::slice::from_ref(&order);
            let sold = inventory.reduce(&order.item, None, &options.instance, batch).await;
            let mut outcomes = sold.map_err(|error| SaleError::of_order(error, &order))?;
            // a batch of one order has one outcome
            return Ok(outcomes.remove(0));
        }
        if let Some(outcome) = self.context.check_stock(&order).await? {
            return Ok(outcome);
        }
        let turn = if guard == Guard::Local { Some(self.turn().await?) } else { None };
        let (context, rig) = (Arc::clone(&self.context), Arc::clone(&self.rig));
        let id = order.id.clone();
        // a buyer who goes away must not stop the work between two steps
        let sold = self.context.tasks.spawn(async move {
            let _turn = turn;
            in_three_steps(&context, &rig, &order).await
        });
        sold.await.unwrap_or_else(|panicked| {
            Err(SaleError::OutcomeUnknown { order: id, source: panicked.into() })
        })
    }

    async fn start(&self, item: &Item, sale: NewSale) -> Result<Started, SaleError> {
        self.lock.start(item, sale).await
    }

    async fn change(&self, item: &Item, call: &ChangeCall) -> Result<Changed, SaleError> {
        self.lock.change(item, call).await
    }

    async fn queue(&self, item: &Item) -> Result<Vec<QueueEntry>, SaleError> {
        if self.is_shared() { self.lock.queue(item).await } else { Ok(Vec::new()) }
    }

    fn lock_name(&self, item: &Item) -> Option<String> {
        self.lock.lock_name(item).filter(|_| self.is_shared())
    }

    async fn check(&self) -> Result<(), SaleError> {
        if self.is_shared() { self.lock.check().await } else { Ok(()) }
    }

    fn sessions(&self) -> Option<&SessionKeeper> {
        self.lock.sessions()
    }

    fn receiver(&self) -> Option<Arc<dyn Receiver>> {
        self.lock.receiver()
    }

    fn waiting(&self) -> usize {
        let own = self.context.options.queue_length - self.places.available_permits();
        own + self.lock.waiting()
    }

    fn oldest(&self) -> Duration {
        self.lock.oldest()
    }

    async fn close(&self) {
        self.lock.close().await;
    }
}

/// `GET stock`; if that is enough, `SET stock`, then `INCRBY lucky`. The answer is in no ledger: position 0, no time, no token,
/// and this caller's own `remaining`.
async fn in_three_steps(
    context: &SaleContext,
    rig: &Rig,
    order: &Order,
) -> Result<Outcome, SaleError> {
    let SaleContext { inventory, options, .. } = context;
    if order.action != Action::Reserve {
        return Ok(Outcome::Unknown);
    }
    let failed = |error: InventoryError| SaleError::of_order(error, order);
    let seen = inventory.available(&order.item).await.map_err(failed)?;
    let seen = u64::try_from(seen).unwrap_or(0);
    // from here on the number may be outdated
    if order.item == Item::DEFAULT {
        rig.look(seen);
    }
    let Some(remaining) = seen.checked_sub(u64::from(order.quantity.get())) else {
        return Ok(Outcome::SoldOut { remaining: seen });
    };
    rig.about_to_write(None).await;
    let [stock, lucky] = ["stock", "lucky"].map(|name| order.item.key(name));
    let mut set = redis::cmd("SET");
    inventory.command::<()>(set.arg(stock).arg(remaining)).await.map_err(failed)?;
    let mut add = redis::cmd("INCRBY");
    let added = inventory.command::<i64>(add.arg(lucky).arg(order.quantity.get())).await;
    // the new stock stays written
    let half_done = |error: InventoryError| SaleError::OutcomeUnknown {
        order: order.id.clone(),
        source: error.into(),
    };
    added.map_err(half_done)?;
    Ok(Outcome::Reserved(Accepted {
        position: 0,
        event: Event::Reserved,
        order: order.id.clone(),
        quantity: order.quantity,
        user: order.user.clone(),
        remaining,
        instance: options.instance.clone(),
        holder: None,
        request: None,
        token: None,
        time: Timestamp::default(),
        hold_until: None,
        changed: None,
    }))
}
