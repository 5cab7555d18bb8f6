//! The guard of the service: the lock that all instances share. Taking it, and asking who holds it.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fenced_lock::{
    BackendErrorKind, Guard, LockError, LostReason, Mutex, QueueEntry, SessionKeeper,
};
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep, timeout};

use super::guard::{GuardStatus, SaleGuard};
use super::order_queue::OrderQueue;
use super::retry::until_known;
use super::{SaleContext, SaleError};
use crate::inventory::{Action, InventoryError, Item, NewSale, Order, Outcome, Started};
use crate::throttle::Throttle;

/// How long a question about a lock may take: less than the readiness check, which could not tell who is silent.
const QUESTION_TIMEOUT: Duration = Duration::from_millis(1500);

/// The pause before the next request for a lock after a failure of the lock service.
pub(super) const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// How many locks the readiness check tries.
const MAX_CHECKED_LOCKS: usize = 8;

/// The name of an item's lock. It has a `:` and no `/`: other etcd clients that wait for the lock `a` also
/// wait for all keys of a lock `a/b`.
pub fn lock_name(base: &str, item: &Item) -> String {
    match item.name() {
        Some(item) => format!("{base}:{item}"),
        None => base.to_owned(),
    }
}

/// The lock that all instances share. An instance takes it for all orders that wait there. Clones share everything.
///
/// `combiner` serves the queues.
#[derive(Clone)]
pub struct EtcdLock {
    pub(super) context: Arc<SaleContext>,
    pub(super) sessions: SessionKeeper,
    pub(super) queues: Arc<parking_lot::Mutex<HashMap<Item, Arc<OrderQueue>>>>,
}

impl EtcdLock {
    /// A guard that takes the lock in these sessions.
    pub fn new(context: &Arc<SaleContext>, sessions: SessionKeeper) -> Self {
        Self { context: Arc::clone(context), sessions, queues: Arc::default() }
    }

    /// The name of the lock of `item`.
    pub(super) fn name_of(&self, item: &Item) -> String {
        lock_name(&self.context.options.lock_name, item)
    }

    /// Takes the lock of `item`, however long it takes. Fails only where waiting cannot help.
    #[tracing::instrument(level = "debug", name = "claim", skip_all, fields(%item))]
    pub(super) async fn take(&self, item: &Item) -> Result<Guard, LockError> {
        let name = self.name_of(item);
        loop {
            let session = self.sessions.session().await?;
            let mutex = session.mutex(&name)?;
            let mut locked = pin!(mutex.lock());
            let is_long = session.lease().ttl.min(self.context.options.wait_timeout) / 2;
            let locked = if let Ok(locked) = timeout(is_long, &mut locked).await {
                locked
            } else {
                log_first_claim(mutex.clone());
                locked.await
            };
            match locked {
                // try again with another session or another claim
                Err(error) if is_claim_lost(&error) => sleep(LOCK_PAUSE).await,
                locked => return locked,
            }
        }
    }

    /// Why a lock was not granted in time.
    pub(super) fn not_granted(&self) -> SaleError {
        let waited = self.context.options.wait_timeout;
        match self.sessions.current() {
            Some(session) if session.is_answered() => SaleError::WaitTooLong { waited },
            _ => unavailable(self.sessions.latest_error().unwrap_or(LockError::Timeout { waited })),
        }
    }

    /// The answer to a question, or why there is none.
    async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, SaleError>>,
    ) -> Result<T, SaleError> {
        timeout(QUESTION_TIMEOUT, answer).await.unwrap_or_else(|_| {
            let unanswered = LockError::Timeout { waited: QUESTION_TIMEOUT };
            Err(unavailable(self.sessions.latest_error().unwrap_or(unanswered)))
        })
    }

    /// The mutex of an item in the open session; waits for a session.
    async fn mutex(&self, item: &Item) -> Result<Mutex, SaleError> {
        let session = self.sessions.session().await;
        session.and_then(|session| session.mutex(&self.name_of(item))).map_err(unavailable)
    }
}

impl SaleGuard for EtcdLock {
    fn status(&self) -> GuardStatus {
        GuardStatus { name: "etcd", description: "the lock", ..GuardStatus::default() }
    }

    /// Reads the stock before it takes units, unless the last read had enough of them.
    fn reduce(&self, order: Order) -> BoxFuture<'_, Result<Outcome, SaleError>> {
        Box::pin(async move {
            let context = &self.context;
            if order.action == Action::Reserve
                && !context.stock_reads.had_enough_for(&order)
                && let Some(outcome) = context.check_stock(&order).await?
            {
                return Ok(outcome);
            }
            let id = order.id.clone();
            // only a task that panicked drops the reply, and its effect is unknown
            self.push(order)?.await.unwrap_or_else(|source| {
                Err(SaleError::OutcomeUnknown { order: id, source: source.into() })
            })
        })
    }

    fn start<'a>(
        &'a self,
        item: &'a Item,
        sale: NewSale,
    ) -> BoxFuture<'a, Result<Started, SaleError>> {
        Box::pin(async move {
            let wait_timeout = self.context.options.wait_timeout;
            let locked = timeout(wait_timeout, self.take(item)).await;
            let guard = locked.map_err(|_| self.not_granted())?.map_err(unavailable)?;
            let deadline = Instant::now() + wait_timeout;
            // what this instance repeats itself is no repetition to the caller
            let is_unknown = AtomicBool::new(false);
            let start = || async {
                let token = Some(guard.token());
                let started = self.context.inventory.start(item, token, sale.clone()).await;
                started.map_err(Arc::new).inspect_err(|error| {
                    is_unknown.fetch_or(!error.nothing_written(), Ordering::Relaxed);
                })
            };
            // a sale that runs is not started again
            let may_repeat = |error: &InventoryError| {
                !guard.is_lost() && error.is_retryable() && Instant::now() < deadline
            };
            // an attempt without an answer outweighs a later refusal: the sale may have been started
            let mut started = until_known(start, may_repeat).await.map_err(|failed| {
                SaleError::of_start(failed.unknown.unwrap_or(failed.latest), item)
            })?;
            started.is_repeated &= !is_unknown.load(Ordering::Relaxed);
            // its units are not those that were seen last
            self.context.stock_reads.forget(item);
            Ok(started)
        })
    }

    fn queue<'a>(&'a self, item: &'a Item) -> BoxFuture<'a, Result<Vec<QueueEntry>, SaleError>> {
        let queue = async { self.mutex(item).await?.queue().await.map_err(unavailable) };
        Box::pin(self.in_time(queue))
    }

    fn lock_name(&self, item: &Item) -> Option<String> {
        Some(self.name_of(item))
    }

    fn check(&self) -> BoxFuture<'_, Result<(), SaleError>> {
        Box::pin(self.in_time(async {
            let mut first_error = None;
            for item in self.context.inventory.known_items(MAX_CHECKED_LOCKS) {
                let mutex = self.mutex(&item).await?;
                let error = match mutex.probe().await.map_err(unavailable) {
                    Ok(Some(front)) if front.lease == 0 => {
                        SaleError::LockBlocked { item, key: front.key }
                    }
                    Ok(_) => return Ok(()),
                    Err(error) => error,
                };
                first_error.get_or_insert(error);
            }
            first_error.map_or(Ok(()), Err)
        }))
    }

    fn sessions(&self) -> Option<&SessionKeeper> {
        Some(&self.sessions)
    }

    fn waiting(&self) -> usize {
        self.queues.lock().values().map(|queue| queue.len()).sum()
    }

    fn oldest(&self) -> Duration {
        self.queues.lock().values().map(|queue| queue.oldest()).max().unwrap_or_default()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.sessions.close())
    }
}

/// Logs the first claim of the queue, for a claim that has waited long.
fn log_first_claim(mutex: Mutex) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    let Some(suppressed) = THROTTLE.pass() else { return };
    tokio::spawn(async move {
        let front = timeout(QUESTION_TIMEOUT, mutex.probe()).await;
        let Ok(Ok(Some(front))) = front else { return };
        let lock = mutex.name();
        if front.lease == 0 {
            tracing::error!(
                lock,
                key = front.key,
                suppressed,
                "a key without a lease holds the lock and never ends by itself: nothing is sold until an \
                 operator deletes it"
            );
        } else {
            let (key, instance, age) = (front.key, front.label, front.age);
            let lease = format!("{:x}", front.lease);
            let what = "the lock has been held for long";
            tracing::warn!(lock, key, lease, instance, ?age, suppressed, "{what}");
        }
    });
}

/// Whether the claim is lost, and another one, perhaps in another session, can be granted.
fn is_claim_lost(error: &LockError) -> bool {
    match error {
        LockError::Lost => true,
        LockError::SessionLost { reason } => *reason != LostReason::Closed,
        _ => false,
    }
}

/// Whether the lock service refuses for good.
pub(super) fn is_refused(error: &LockError) -> bool {
    matches!(error, LockError::Backend(error) if error.kind == BackendErrorKind::Permanent)
}

/// The error of an order that cannot get the lock.
pub(super) fn unavailable(error: impl Into<Arc<LockError>>) -> SaleError {
    let source = error.into();
    match &*source {
        LockError::SessionLost { reason: LostReason::Closed } => SaleError::Stopping,
        error if is_refused(error) => SaleError::LockRefused { source: source.into() },
        _ => SaleError::LockUnavailable { source: source.into() },
    }
}
