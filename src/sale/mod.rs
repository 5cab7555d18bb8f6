//! The sale at one instance.
//!
//! The waiting orders of an item at one instance share a tenure of the item's lock. A `combiner` takes the lock for all
//! of them and runs them in batches under the token of the grant. `inventory/script.lua` checks the token and writes.
//!
//! An answer that an item is sold out needs no lock: a plain read that shows too little stock is true at that moment.

mod batch;
mod combiner;
mod error;
mod forward;
mod guard;
mod hold_policy;
mod lock;
pub mod metrics;
mod order_queue;
mod reads;
mod retry;
mod shared_reads;
mod stock_reads;

pub use error::{BoxError, SaleError};
pub use guard::{GuardStatus, SaleContext, SaleGuard, SaleOptions};
pub use lock::{EtcdLock, lock_name};
pub use reads::Reads;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{ObservedClaim, QueueEntry, QueueSnapshot, Session, SessionKeeper, Token};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::metrics::Metrics;
use crate::inventory::{
    ChangeCall, Changed, Inventory, Item, NewSale, Order, Outcome, SaleId, Started,
};
use crate::peers::Door;
use crate::process::{random_byte, spawn};

/// How often an instance looks for holds that are due.
const HOLDS_EVERY: Duration = Duration::from_secs(1);

/// The most items whose due holds an instance ends at the same time.
const MAX_ENDING: usize = 16;

/// The most items that an instance looks at in each of these intervals: they cost the store some of its time.
const MAX_LOOKS: usize = 256;

/// The most batches in a row that end the holds of one item.
const MAX_EXPIRING: u32 = 100;

/// The sale of all items at one instance. Clones share everything.
#[derive(Clone)]
pub struct Sale {
    context: Arc<SaleContext>,
    guard: Arc<dyn SaleGuard>,
}

/// The state of the lock service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockHealth {
    /// The service answers.
    Answers,
    /// The service did not answer the latest request.
    Silent,
    /// No session is open: the last one was lost, or the first one is being opened.
    NoSession,
}

impl Sale {
    /// A sale guarded by the distributed lock.
    pub fn guarded(inventory: Inventory, sessions: SessionKeeper, options: SaleOptions) -> Self {
        let context = SaleContext::new(inventory, options);
        let lock = EtcdLock::new(&context, sessions);
        Self::new(context, Arc::new(lock))
    }

    /// A sale that another guard protects. The guard shares `context`.
    pub fn new(context: Arc<SaleContext>, guard: Arc<dyn SaleGuard>) -> Self {
        let weak = (Arc::downgrade(&context), Arc::downgrade(&guard));
        let sale = move || Some(Self { context: weak.0.upgrade()?, guard: weak.1.upgrade()? });
        spawn(context.tasks.track_future(end_holds(context.stopping.clone(), sale)));
        Self { context, guard }
    }

    /// Takes the order's units if that many are left, or confirms or cancels it.
    ///
    /// # Cancel safety
    /// A future that is dropped before its order is in a batch takes nothing. After that the order is carried out, and
    /// a further call with the same id gets its answer.
    ///
    /// # Errors
    /// See [`SaleError`].
    #[tracing::instrument(level = "debug", name = "order", skip_all, fields(id = order.id.as_str(), item = %order.item))]
    pub async fn reduce(&self, order: Order) -> Result<Outcome, SaleError> {
        let count = self.context.metrics.order();
        let answer = self.reduce_if_open(order).await;
        count.end(&answer);
        answer
    }

    async fn reduce_if_open(&self, order: Order) -> Result<Outcome, SaleError> {
        self.check_open()?;
        self.context.reads.check(&order.item).await?;
        self.guard.reduce(order).await
    }

    /// Starts a sale of `item`: lucky 0, no orders.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have started the sale. Repeating it with the same id is safe.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn start(&self, item: &Item, sale: impl Into<NewSale>) -> Result<Started, SaleError> {
        self.check_open()?;
        let started = self.guard.start(item, sale.into()).await;
        self.context.reads.started(item, started.is_ok());
        started
    }

    /// Changes the running sale of `item`.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have changed the sale. Repeating it with the same key is safe.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn change(&self, item: &Item, call: &ChangeCall) -> Result<Changed, SaleError> {
        self.check_open()?;
        self.context.reads.check(item).await?;
        self.guard.change(item, call).await
    }

    /// Deletes the orders and the ledger of a sale that was replaced.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn forget(&self, item: &Item, id: &SaleId) -> Result<(), SaleError> {
        self.check_open()?;
        let forgotten = self.context.inventory.forget(item, id).await;
        forgotten.map_err(|error| SaleError::of_start(error, item))
    }

    /// Reads of a sale, which delay no order.
    pub fn reads(&self) -> &Reads {
        &self.context.reads
    }

    /// The inventory, for an [extension](crate::http::Extension).
    pub fn inventory(&self) -> &Inventory {
        &self.context.inventory
    }

    /// The claims on the lock of `item`, the holder first; empty without a distributed lock.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn queue(&self, item: &Item) -> Result<Vec<QueueEntry>, SaleError> {
        self.guard.queue(item).await
    }

    /// The claims on the lock of `item`, as this instance watches them, without a request. `None` if the instance does not watch
    /// the queue yet, or the lock service does not answer. This call has the instance watch the queue of a known item for a
    /// while.
    pub fn watched_queue(&self, item: &Item) -> Option<Vec<QueueEntry>> {
        let is_known = self.context.reads.is_known(item);
        let watched = is_known.then(|| self.queue_snapshot(item)).flatten()?;
        self.session().filter(|session| watched.is_current && session.is_answered())?;
        let entry = |claim: ObservedClaim| {
            let mut entry =
                QueueEntry::new(claim.lease, String::from_utf8_lossy(&claim.key).into_owned());
            entry.token = Some(claim.token());
            entry.label = claim.label.as_deref().map(str::to_owned);
            entry.note = claim.note.as_deref().map(str::to_owned);
            entry.is_standby = claim.is_standby;
            entry.age = claim.made_at.map(|at| at.elapsed().unwrap_or_default());
            entry
        };
        Some(watched.queue.into_iter().map(entry).collect())
    }

    /// Whether this instance could take an order of some known item, or of the default item if it knows none: the
    /// instance does not stop, the store would carry out a batch, and the lock can be had. An item that is sold out or
    /// has no sale is no obstacle. Writes nothing.
    ///
    /// # Errors
    /// The first obstacle.
    pub async fn ready(&self) -> Result<(), SaleError> {
        self.check_open()?;
        // no fence exceeds this token: the store refuses it only if the fence is of another cluster
        let token = self.session().map(|session| Token::new(session.lease().cluster, i64::MAX));
        let token = token.filter(|_| self.guard.status().is_fenced());
        let check = self.context.inventory.check(token).await;
        check.map_err(|(item, error)| SaleError::of_read(error, &item))?;
        self.guard.check().await
    }

    /// The metrics since the start.
    pub fn metrics(&self) -> &Metrics {
        &self.context.metrics
    }

    /// The number of lock sessions that were lost since the start.
    pub fn lost_sessions(&self) -> u64 {
        self.guard.sessions().map_or(0, SessionKeeper::losses)
    }

    /// The name of this instance.
    pub fn instance(&self) -> &str {
        &self.context.options.instance
    }

    /// Carries out the waiting orders, but sends nothing again to a silent store: other instances may reach it. Call
    /// this before [`close`](Self::close), so that orders in flight do not delay a stop.
    pub fn finish(&self) {
        self.context.finishing.cancel();
    }

    /// Takes no more orders, finishes the batches that have begun, releases the claims and revokes the lease.
    /// Orders that still wait for the lock get [`SaleError::Stopping`].
    pub async fn close(&self) {
        let SaleContext { stopping, tasks, .. } = &*self.context;
        stopping.cancel();
        tasks.close();
        tasks.wait().await;
        self.guard.close().await;
    }

    /// The entrance for batches of peers, if this instance has peers.
    pub fn door(&self) -> Option<Door> {
        let peers = Arc::clone(self.context.options.peers.as_ref()?);
        Some(Door { peers, receiver: self.guard.receiver()? })
    }

    /// The guard of this sale.
    pub fn guard(&self) -> &dyn SaleGuard {
        &*self.guard
    }

    /// The queue for the lock of `item` as this instance sees it, without a request. `None` without an etcd lock or
    /// without a session.
    pub fn queue_snapshot(&self, item: &Item) -> Option<QueueSnapshot> {
        let (name, _) = self.guard.lock_name(item).zip(self.session())?;
        Some(self.context.options.etcd.as_ref()?.queue_snapshot(&name))
    }

    /// The state of the lock service. `None` without a distributed lock.
    pub fn lock_health(&self) -> Option<LockHealth> {
        let sessions = self.guard.sessions()?;
        Some(match sessions.current() {
            Some(session) if session.is_answered() => LockHealth::Answers,
            None if sessions.latest_error().is_none_or(|error| !error.is_retryable()) => {
                LockHealth::NoSession
            }
            _ => LockHealth::Silent,
        })
    }

    /// The TTL of this instance's lease, while there is a session.
    pub fn lease_ttl(&self) -> Option<Duration> {
        self.session().map(|session| session.lease().ttl)
    }

    fn session(&self) -> Option<Session> {
        self.guard.sessions()?.current()
    }

    fn check_open(&self) -> Result<(), SaleError> {
        if self.context.stopping.is_cancelled() { Err(SaleError::Stopping) } else { Ok(()) }
    }
}

/// Ends due holds, also of items that nobody asks for, until the sale stops or is dropped. Each item has a future of
/// its own: the lock of one item may be out of reach.
async fn end_holds(stopping: CancellationToken, sale: impl Fn() -> Option<Sale>) {
    let (mut ending, mut items) = (FuturesUnordered::new(), HashSet::new());
    let (mut next, mut latest) = (VecDeque::new(), None);
    let mut next_at = Instant::now() + HOLDS_EVERY;
    loop {
        tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            Some(item) = ending.next() => {
                items.remove(&item);
            }
            () = sleep_until(next_at) => {
                let Some(Sale { context, .. }) = sale() else { return };
                let random = u32::from(random_byte());
                // a random part, since the first instance that does this leaves nothing to the others
                next_at = Instant::now() + HOLDS_EVERY + HOLDS_EVERY * random / 1024;
                if next.is_empty() {
                    next = in_turn(context.inventory.items_with_holds(), latest.as_ref()).into();
                    latest = next.back().cloned().or(latest);
                }
            }
        }
        while items.len() < MAX_ENDING
            && let Some(item) = next.pop_front()
        {
            let Some(Sale { context, guard }) = sale() else { return };
            if items.insert(item.clone()) {
                ending.push(async move {
                    end_holds_of(&item, &context.inventory, &*guard).await;
                    item
                });
            }
        }
    }
}

/// The items that are looked at next: those behind the latest one, so that each item gets its turn.
fn in_turn(mut items: Vec<Item>, latest: Option<&Item>) -> Vec<Item> {
    items.sort_unstable();
    let behind = items.partition_point(|item| latest.is_some_and(|latest| item <= latest));
    items.rotate_left(behind);
    items.truncate(MAX_LOOKS);
    items
}

async fn end_holds_of(item: &Item, inventory: &Inventory, guard: &dyn SaleGuard) {
    for _ in 0..MAX_EXPIRING {
        let found = inventory.look_up(item, &[String::new()]).await;
        if !found.is_ok_and(|found| found.available.is_due) {
            return;
        }
        // another batch would fail in the same way; the batch logs its error
        if guard.reduce(Order::expiring(item.clone())).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the holds of each item end, however many items there are, and also if items come and go.
    #[test]
    fn each_item_gets_its_turn() {
        let named = |number: usize| format!("item-{number}").parse().expect("a valid name");
        let mut items: Vec<Item> = (0..3 * MAX_LOOKS + 7).map(named).collect();
        let (mut seen, mut latest) = (HashSet::new(), None);
        for _ in 0..4 {
            let next = in_turn(items.clone(), latest.as_ref());
            assert_eq!(next.len(), MAX_LOOKS);
            latest = next.last().cloned();
            items.retain(|item| Some(item) != latest.as_ref());
            seen.extend(next);
        }
        assert!(items.iter().all(|item| seen.contains(item)));
        assert_eq!(in_turn(vec![named(1)], latest.as_ref()), [named(1)]);
        assert_eq!(in_turn(Vec::new(), latest.as_ref()), []);
    }
}
