//! Where lock meets stock.
//!
//! The orders of an item that wait at an instance share a tenure of the item's lock: one holder takes
//! it for all of them, and runs them in batches under the token that came with the grant
//! (`combiner`). With [`HoldMode::Request`] each order takes the lock as an owner of its own, reduces
//! the stock, and releases the lock (`reduce`).
//!
//! Where nothing seems to be left, a plain read tells: too little stock is already the truth at that
//! moment, and needs no lock.

#[cfg(feature = "chaos")]
mod chaos;
mod combiner;
mod error;
mod guard;
pub mod latency;
pub mod metrics;
mod options;
mod order_queue;
mod peers;
mod reduce;
mod start;
mod tenure;
mod waiting_room;
mod watch;

pub use error::{BoxError, SaleError};
pub use options::{HoldMode, LockMode, SaleOptions};
pub use peers::Peer;
pub use tenure::lock_name;
pub use watch::LockHealth;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::combiner::Combiner;
use self::error::{from_read, from_store};
use self::guard::{Guards, LocalLocks, SaleGuard};
use self::metrics::Metrics;
use self::waiting_room::WaitingRoom;
use crate::defence::Defence;
use crate::inventory::{Accepted, Inventory, Item, Order, OrderId, Outcome, Stock, naive};
use fenced_lock::{LockError, SessionKeeper, Token};

/// How long a question about the lock may take: it is asked by people and by health checks.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(2);

/// How many locks are looked at to tell whether one can be had.
const MAX_CHECKED_LOCKS: usize = 8;

/// What a look at the stock tells an order.
enum Look {
    /// Its answer.
    Answer(Outcome),
    /// That it may be served: so many units are left.
    Available(i64),
}

/// One claim in the queue for an item's lock, the holder first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedClaim {
    /// The claim's place: its token, once granted.
    pub token: Token,
    /// Its key.
    pub key: String,
    /// The lease that it hangs on; 0: none, so that it never ends by itself.
    pub lease: i64,
    /// The instance that made it, if one of ours did.
    pub instance: Option<String>,
    /// How long ago it was made, by the clock of its maker, if one of ours did.
    pub age: Option<Duration>,
}

/// The sale of all items at one instance. Clones share everything.
#[derive(Clone)]
pub struct Sale(Arc<Inner>);

struct Inner {
    inventory: Inventory,
    /// The same over a connection of its own, for those who watch: no order waits behind them.
    watched: Inventory,
    guards: Guards,
    options: SaleOptions,
    waiting_room: WaitingRoom,
    metrics: Arc<Metrics>,
    stopping: CancellationToken,
    /// What touches the stock, to its end also when the buyer has gone.
    tasks: TaskTracker,
}

impl Sale {
    /// A sale guarded by the distributed lock.
    pub fn guarded(inventory: Inventory, sessions: SessionKeeper, options: SaleOptions) -> Self {
        let (stopping, tasks) = (CancellationToken::new(), TaskTracker::new());
        let metrics = Arc::<Metrics>::default();
        let combiner = (options.hold == HoldMode::Combined).then(|| {
            let (inventory, sessions, options) =
                (inventory.clone(), sessions.clone(), options.clone());
            let (stopping, metrics) = (stopping.clone(), Arc::clone(&metrics));
            Combiner::new(inventory, sessions, options, stopping, tasks.clone(), metrics)
        });
        let lock_name = options.lock_name.clone();
        let guard = SaleGuard::Distributed { sessions, lock_name, combiner };
        Self::with_tasks(inventory, guard, options, stopping, tasks, metrics)
    }

    /// A sale guarded by nothing but a mutex in this process: with a second instance it oversells.
    pub fn guarded_locally(inventory: Inventory, options: SaleOptions) -> Self {
        Self::new(inventory, SaleGuard::Local(LocalLocks::default()), options)
    }

    /// A sale in single steps that nothing keeps together: it oversells.
    pub fn naive(inventory: Inventory, options: SaleOptions) -> Self {
        Self::new(inventory, SaleGuard::Nothing, options)
    }

    /// A sale guarded in another way, to compare with.
    pub fn with_peer(inventory: Inventory, peer: Peer, options: SaleOptions) -> Self {
        Self::new(inventory, SaleGuard::Peer(peer), options)
    }

    fn new(inventory: Inventory, guard: SaleGuard, options: SaleOptions) -> Self {
        let (stopping, tasks) = (CancellationToken::new(), TaskTracker::new());
        Self::with_tasks(inventory, guard, options, stopping, tasks, Arc::default())
    }

    fn with_tasks(
        inventory: Inventory,
        guard: SaleGuard,
        options: SaleOptions,
        stopping: CancellationToken,
        tasks: TaskTracker,
        metrics: Arc<Metrics>,
    ) -> Self {
        let waiting_room = WaitingRoom::new(options.queue_length);
        let guards = Guards::new(guard);
        let watched = inventory.over_another_connection();
        Self(Arc::new(Inner {
            inventory,
            watched,
            guards,
            options,
            waiting_room,
            metrics,
            stopping,
            tasks,
        }))
    }

    /// Takes the order's units if that many are left.
    ///
    /// # Cancel safety
    /// A future that is dropped before its order is in a batch (with a lock for each order: before the
    /// lock is granted) takes nothing. After that the order stands, and asking again with the same id
    /// gives its answer.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn reduce(&self, order: Order) -> Result<Outcome, SaleError> {
        let count = self.0.metrics.order();
        let answer = self.reduce_uncounted(order).await;
        count.end(&answer);
        answer
    }

    async fn reduce_uncounted(&self, order: Order) -> Result<Outcome, SaleError> {
        self.check_open()?;
        #[cfg(feature = "chaos")]
        if !Defence::BatchOwnership.is_on() {
            return Box::pin(self.reduce_in_the_request(order)).await;
        }
        // one for the whole order, since a demo may choose another meanwhile
        let guard = self.0.guards.current();
        if let SaleGuard::Distributed { combiner: Some(combiner), .. } = guard {
            return self.reduce_combined(combiner, order).await;
        }
        // the largest steps are boxed: thousands of orders wait at once, and each keeps room for them
        Box::pin(self.reduce_one(guard, order)).await
    }

    /// Without a queue that is shared.
    async fn reduce_one(&self, guard: &SaleGuard, order: Order) -> Result<Outcome, SaleError> {
        let is_one_call = matches!(guard, SaleGuard::Peer(peer) if peer.is_one_call());
        if !is_one_call && let Look::Answer(outcome) = self.look(&order).await? {
            return Ok(outcome);
        }
        let place = self.0.waiting_room.enter(&order.item)?;
        let outcome = match guard {
            SaleGuard::Distributed { sessions, lock_name: base, .. } => {
                reduce::under_own_lock(&self.0, sessions, &lock_name(base, &order.item), order)
                    .await
            }
            SaleGuard::Local(locks) => {
                let lock = locks.of(&order.item);
                let _guard = lock.lock().await;
                self.reduce_naively(&order).await
            }
            SaleGuard::Peer(peer) => return self.reduce_with_peer(peer, order, place).await,
            SaleGuard::Nothing => self.reduce_naively(&order).await,
        };
        drop(place);
        outcome
    }

    /// What a plain read tells: nothing left is the truth at that moment, and needs no lock. An order
    /// that was accepted before has its first answer all the same.
    async fn look(&self, order: &Order) -> Result<Look, SaleError> {
        let look = self.0.inventory.look(&order.item, &order.id).await;
        let (available, first) = look.map_err(|error| from_read(error, &order.item))?;
        let first = first.filter(|_| Defence::OrderIds.is_on());
        if available >= i64::from(order.quantity.get()) {
            return Ok(Look::Available(available));
        }
        // an order that may not have reached the replicas is answered only by a batch, which waits for them
        if first.is_some() && self.0.inventory.replicas().is_some() {
            return Ok(Look::Available(available));
        }
        Ok(Look::Answer(match first {
            Some(first) if first.is_repeated_by(order) => Outcome::Reserved(first),
            Some(_) => Outcome::Conflict,
            None => Outcome::SoldOut { remaining: u64::try_from(available).unwrap_or(0) },
        }))
    }

    /// Looks first where nothing was seen lately.
    async fn reduce_combined(
        &self,
        combiner: &Arc<Combiner>,
        order: Order,
    ) -> Result<Outcome, SaleError> {
        let known = combiner.known(&order.item);
        let queue = match known.filter(|queue| queue.was_seen_with(order.quantity.get())) {
            Some(queue) => queue,
            None => match Box::pin(self.look(&order)).await? {
                Look::Answer(outcome) => return Ok(outcome),
                Look::Available(units) => {
                    let queue = combiner.queue_of(&order.item);
                    queue.see(units);
                    queue
                }
            },
        };
        combiner.reduce(queue, order).await
    }

    async fn reduce_naively(&self, order: &Order) -> Result<Outcome, SaleError> {
        let Inner { inventory, options, .. } = &*self.0;
        let reduced = naive::reduce(inventory, order, &options.instance).await;
        reduced.map_err(|error| from_store(error.into(), order))
    }

    /// The state of `item`, read at one moment.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn stock(&self, item: &Item) -> Result<Stock, SaleError> {
        self.0.inventory.stock(item).await.map_err(|error| from_read(error, item))
    }

    /// See [`Inventory::hold_run`].
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn hold_run(&self, run: &str, time: Duration) -> Result<bool, SaleError> {
        let held = self.0.inventory.hold_run(run, time).await;
        held.map_err(|error| from_read(error, &Item::DEFAULT))
    }

    /// Up to `limit` orders of the ledger behind position `after` (0: from the first).
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn ledger(
        &self,
        item: &Item,
        after: u64,
        limit: u32,
    ) -> Result<Vec<Accepted>, SaleError> {
        let page = self.0.inventory.ledger(item, after, limit).await;
        page.map_err(|error| from_read(error, item))
    }

    /// The accepted order of this id, if there is one.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn order(&self, item: &Item, id: &OrderId) -> Result<Option<Accepted>, SaleError> {
        self.0.inventory.order(item, id).await.map_err(|error| from_read(error, item))
    }

    /// The claims on the lock of `item`, the holder first; empty without a distributed lock.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn queue(&self, item: &Item) -> Result<Vec<QueuedClaim>, SaleError> {
        let (sessions, base) = match self.0.guards.current() {
            SaleGuard::Distributed { sessions, lock_name, .. } => (sessions, lock_name),
            SaleGuard::Peer(peer) => {
                return peer.queue(&self.lock_name(item).unwrap_or_default()).await;
            }
            SaleGuard::Local(_) | SaleGuard::Nothing => return Ok(Vec::new()),
        };
        let deadline = Instant::now() + QUESTION_TIMEOUT;
        let mutex = tenure::mutex_of(sessions, &lock_name(base, item), deadline).await?;
        let entries = timeout_at(deadline, mutex.queue()).await;
        let entries = entries.unwrap_or(Err(LockError::Timeout { waited: QUESTION_TIMEOUT }));
        let entries = entries.map_err(tenure::unavailable)?;
        let claim = |entry: fenced_lock::QueueEntry| QueuedClaim {
            token: entry.token,
            key: entry.key,
            lease: entry.lease,
            instance: entry.label,
            age: entry.age,
        };
        Ok(entries.into_iter().map(claim).collect())
    }

    /// The name of the lock of `item`; nothing without a distributed lock.
    pub fn lock_name(&self, item: &Item) -> Option<String> {
        match self.0.guards.current() {
            SaleGuard::Distributed { lock_name: base, .. } => Some(lock_name(base, item)),
            SaleGuard::Peer(peer) => peer.lock_name(&self.0.options.lock_name, item),
            SaleGuard::Local(_) | SaleGuard::Nothing => None,
        }
    }

    /// Whether this instance could take an order of some item that it has dealt with, or else of the
    /// default one: it is not stopping, the store would carry out a batch, and the lock could be had in
    /// time. That nothing is left to sell, or no sale was started, is no trouble. Nothing is written.
    ///
    /// # Errors
    /// What is in the way.
    pub async fn ready(&self) -> Result<(), SaleError> {
        self.check_open()?;
        // no fence is larger, so that only another cluster's refuses it
        let token = self.session().map(|session| Token::new(session.lease().cluster, i64::MAX));
        let token = token.filter(|_| Defence::Fence.is_on());
        let check = self.0.inventory.check(token).await;
        check.map_err(|(item, error)| from_read(error, &item))?;
        let deadline = Instant::now() + QUESTION_TIMEOUT;
        let checked = timeout_at(deadline, self.check_lock(deadline)).await;
        let silence = LockError::Timeout { waited: QUESTION_TIMEOUT };
        checked.unwrap_or_else(|_| Err(tenure::unavailable(silence)))
    }

    /// Whether nothing is in the way of some item's lock.
    async fn check_lock(&self, deadline: Instant) -> Result<(), SaleError> {
        let SaleGuard::Distributed { sessions, lock_name: base, .. } = self.0.guards.current()
        else {
            return self.queue(&Item::DEFAULT).await.map(drop);
        };
        let mut trouble = None;
        for item in self.0.inventory.known_items(MAX_CHECKED_LOCKS) {
            let mutex = tenure::mutex_of(sessions, &lock_name(base, &item), deadline).await?;
            let error = match mutex.probe().await.map_err(tenure::unavailable) {
                Ok(Some(front)) if front.lease == 0 => {
                    SaleError::LockBlocked { item, key: front.key }
                }
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            trouble.get_or_insert(error);
        }
        trouble.map_or(Ok(()), Err)
    }

    /// What was counted since the start.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// How many orders wait for the lock.
    pub fn waiting(&self) -> u64 {
        let combined = match self.0.guards.main() {
            SaleGuard::Distributed { combiner: Some(combiner), .. } => combiner.waiting(),
            _ => 0,
        };
        let waiting = combined + self.0.waiting_room.taken();
        u64::try_from(waiting).unwrap_or(u64::MAX)
    }

    /// How many lock sessions were lost since the start.
    pub fn lost_sessions(&self) -> u64 {
        match self.0.guards.main() {
            SaleGuard::Distributed { sessions, .. } => sessions.losses(),
            SaleGuard::Local(_) | SaleGuard::Peer(_) | SaleGuard::Nothing => 0,
        }
    }

    /// How many items are not sold since the store lacks something of them, as far as calls told.
    pub fn rolled_back_items(&self) -> u64 {
        u64::try_from(self.0.inventory.rolled_back_items()).unwrap_or(u64::MAX)
    }

    /// The name of this instance.
    pub fn instance(&self) -> &str {
        &self.0.options.instance
    }

    /// Takes no more orders, finishes the batches and turns that have begun, gives up the claims and
    /// revokes the lease. Orders that still wait for the lock are answered with an error.
    pub async fn close(&self) {
        self.0.stopping.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        if let SaleGuard::Distributed { sessions, .. } = self.0.guards.main() {
            sessions.close().await;
            // a waiter may have been granted the lock in between
            self.0.tasks.wait().await;
        }
        if let SaleGuard::Peer(peer) = self.0.guards.main() {
            peer.close().await;
        }
    }

    fn check_open(&self) -> Result<(), SaleError> {
        if self.0.stopping.is_cancelled() { Err(SaleError::Stopping) } else { Ok(()) }
    }
}
