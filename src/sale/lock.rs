//! The locks of the items: taking one, and asking who holds it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{BackendErrorKind, Guard, LockError, LostReason, Mutex, QueueEntry};
use tokio::time::{sleep, timeout};

use super::{EtcdLock, SaleError};
use crate::inventory::Item;
use crate::throttle::Throttle;

/// How long a question about a lock may take: less than the readiness check, which could not tell who is silent.
const QUESTION_TIMEOUT: Duration = Duration::from_millis(1500);

/// The pause before the next request for a lock after a failure of the lock service.
pub(super) const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// The name of an item's lock. It has a `:` and no `/`: other etcd clients that wait for the lock `a` also
/// wait for all keys of a lock `a/b`.
pub fn lock_name(base: &str, item: &Item) -> String {
    match item.name() {
        Some(item) => format!("{base}:{item}"),
        None => base.to_owned(),
    }
}

impl EtcdLock {
    /// The name of the lock of `item`.
    pub(super) fn name_of(&self, item: &Item) -> String {
        lock_name(&self.context.options.lock_name, item)
    }

    /// Takes the lock of `item`, however long it takes. Fails only where waiting cannot help.
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

    /// The same, for as long as an order may wait.
    pub(super) async fn take_in_time(&self, item: &Item) -> Result<Guard, SaleError> {
        let locked = timeout(self.context.options.wait_timeout, self.take(item)).await;
        locked.map_err(|_| self.not_granted())?.map_err(unavailable)
    }

    /// Why a lock was not granted in time.
    pub(super) fn not_granted(&self) -> SaleError {
        let waited = self.context.options.wait_timeout;
        match self.sessions.current() {
            Some(session) if session.is_answered() => SaleError::WaitTooLong { waited },
            _ => unavailable(self.sessions.latest_error().unwrap_or(LockError::Timeout { waited })),
        }
    }

    /// The claims on the lock of `item`, the holder first.
    pub(super) async fn claims(&self, item: &Item) -> Result<Vec<QueueEntry>, SaleError> {
        self.in_time(async { self.mutex(item).await?.queue().await.map_err(unavailable) }).await
    }

    /// Whether the lock of one of these items can be had.
    pub(super) async fn check_locks(&self, items: Vec<Item>) -> Result<(), SaleError> {
        self.in_time(self.check_one(items)).await
    }

    async fn check_one(&self, items: Vec<Item>) -> Result<(), SaleError> {
        let mut first_error = None;
        for item in items {
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

/// Logs the first claim of the queue, for a claim that has waited long.
fn log_first_claim(mutex: Mutex) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    let Some(suppressed) = THROTTLE.pass() else { return };
    tokio::spawn(async move {
        let front = timeout(QUESTION_TIMEOUT, mutex.probe()).await;
        let Ok(Ok(Some(front))) = front else { return };
        let (lock, key, instance) = (mutex.name(), front.key, front.label);
        if front.lease == 0 {
            tracing::error!(
                lock,
                key,
                suppressed,
                "a key without a lease holds the lock and never ends by itself: nothing is sold until an \
                 operator deletes it"
            );
        } else {
            let lease = format!("{:x}", front.lease);
            let age = front.age.map(tracing::field::debug);
            tracing::warn!(
                lock,
                key,
                lease,
                instance,
                age,
                suppressed,
                "the lock has been held for long"
            );
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
