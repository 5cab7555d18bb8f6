//! Taking the lock of an item.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{BackendErrorKind, LockError, LostReason, Mutex, SessionKeeper};
use tokio::time::{Instant, timeout, timeout_at};

use super::{QUESTION_TIMEOUT, SaleError};
use crate::inventory::Item;
use crate::throttle::Throttle;

/// The name of an item's lock. It has a `:` and no `/`: other etcd clients that wait for the lock `a` also
/// wait for all keys of a lock `a/b`.
pub fn lock_name(base: &str, item: &Item) -> String {
    match item.name() {
        Some(item) => format!("{base}:{item}"),
        None => base.to_owned(),
    }
}

/// The mutex of an item in the open session; waits for a session until `deadline`.
pub(super) async fn mutex_of(
    sessions: &SessionKeeper,
    lock_name: &str,
    deadline: Instant,
) -> Result<Mutex, SaleError> {
    let began_at = Instant::now();
    let session = timeout_at(deadline, sessions.session()).await.unwrap_or_else(|_| {
        let waited = began_at.elapsed();
        Err(sessions.latest_error().unwrap_or(LockError::Timeout { waited }))
    });
    session.and_then(|session| session.mutex(lock_name)).map_err(unavailable)
}

/// Logs the first claim of the queue, for a claim that has waited long.
pub(super) fn log_first_claim(mutex: Mutex) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    let Some(suppressed) = THROTTLE.pass() else { return };
    tokio::spawn(async move {
        let front = timeout(QUESTION_TIMEOUT, mutex.probe()).await;
        let Ok(Ok(Some(front))) = front else { return };
        let (lock, key, instance) = (mutex.name(), front.key, front.label);
        let age = front.age.map(tracing::field::debug);
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

/// Whether another claim, perhaps in another session, can be granted.
pub(super) fn is_gone(error: &LockError) -> bool {
    match error {
        LockError::Lost => true,
        LockError::SessionLost { reason } => *reason != LostReason::Closed,
        _ => false,
    }
}

/// Whether the instance is stopping.
fn is_closed(error: &LockError) -> bool {
    matches!(error, LockError::SessionLost { reason: LostReason::Closed })
}

/// Whether the lock service refuses for good.
pub(super) fn is_refused(error: &LockError) -> bool {
    matches!(error, LockError::Backend(error) if error.kind == BackendErrorKind::Permanent)
}

/// The error of an order that cannot get the lock.
pub(super) fn unavailable(error: impl Into<Arc<LockError>>) -> SaleError {
    let source = error.into();
    match &*source {
        error if is_closed(error) => SaleError::Stopping,
        error if is_refused(error) => SaleError::LockRefused { source: source.into() },
        _ => SaleError::LockUnavailable { source: source.into() },
    }
}
