//! What all handles of one session share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::hold::Hold;
use super::validity::Validity;
use super::{Backend, BackendError, BackendErrorKind, Claim, Lease, LockError, LostReason};

/// What all handles of one session share.
pub(super) struct Core {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) lease: Lease,
    pub(super) validity: Validity,
    pub(super) runtime: Handle,
    /// Set when the session closes: waiters fail, nobody new is let in.
    pub(super) closing: CancellationToken,
    /// The acquires and releases under way, for `close` to wait for. There is at most one for each
    /// future that waits and each guard that was dropped.
    pub(super) tasks: TaskTracker,
    label: Arc<str>,
    /// Whether the latest request was answered.
    is_answered: AtomicBool,
    next_claim: AtomicU64,
    closed: OnceCell<Result<(), BackendError>>,
    /// The newest hold of each name, for re-entry.
    holds: StdMutex<HashMap<Arc<str>, Arc<Hold>>>,
}

impl Core {
    /// # Panics
    /// Outside of a tokio runtime, with a backend that has none of its own.
    pub(super) fn new(
        backend: Arc<dyn Backend>,
        lease: Lease,
        believed_until: Instant,
        label: String,
    ) -> Self {
        Self {
            runtime: backend.runtime().unwrap_or_else(Handle::current),
            validity: Validity::until(believed_until),
            backend,
            lease,
            label: label.into(),
            is_answered: AtomicBool::new(true),
            next_claim: AtomicU64::new(1),
            holds: StdMutex::default(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            closed: OnceCell::new(),
        }
    }

    /// Whether the backend answered the latest request.
    pub(super) fn is_answered(&self) -> bool {
        self.is_answered.load(Ordering::Relaxed)
    }

    pub(super) fn new_claim(&self, name: &Arc<str>) -> Claim {
        Claim {
            name: Arc::clone(name),
            lease: self.lease.id,
            number: self.next_claim.fetch_add(1, Ordering::Relaxed),
            label: Arc::clone(&self.label),
        }
    }

    /// Notes whether a request was answered; an answer may be a refusal.
    pub(super) fn note_answer<T>(&self, result: &Result<T, BackendError>) {
        let unanswered = matches!(result, Err(e) if e.kind == BackendErrorKind::Transient);
        self.is_answered.store(!unanswered, Ordering::Relaxed);
    }

    /// Fails if the session cannot grant anything any more.
    pub(super) fn check(&self) -> Result<(), LockError> {
        match self.validity.lost_reason() {
            Some(reason) => Err(LockError::SessionLost { reason }),
            None if self.closing.is_cancelled() => {
                Err(LockError::SessionLost { reason: LostReason::Closed })
            }
            None => Ok(()),
        }
    }

    pub(super) fn hold_of(&self, name: &str) -> Option<Arc<Hold>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub(super) fn add_hold(&self, hold: &Arc<Hold>) {
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        holds.insert(Arc::clone(&hold.claim.name), Arc::clone(hold));
    }

    /// Forgets the hold, unless a newer one of the same name has taken its place.
    pub(super) fn remove_hold(&self, hold: &Arc<Hold>) {
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        if holds.get(&hold.claim.name).is_some_and(|newest| Arc::ptr_eq(newest, hold)) {
            holds.remove(&hold.claim.name);
        }
    }

    pub(super) fn forget_holds(&self) {
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        let forgotten = std::mem::take(&mut *holds);
        drop(holds);
        drop(forgotten);
    }

    /// Withdraws the claim in the background.
    pub(super) fn spawn_release(self: &Arc<Self>, claim: Claim) {
        let core = Arc::clone(self);
        let release = async move {
            if let Err(error) = core.release(&claim).await {
                tracing::debug!(%claim, %error, "the claim was not there, or is left to its lease");
            }
        };
        self.tasks.spawn_on(release, &self.runtime);
    }

    /// Withdraws the claim, trying again until it is done or the session is lost. If a TTL does not
    /// suffice, it gives up the session, so that the claim ends with the lease and blocks nobody.
    /// [`LockError::Lost`] if the claim was certainly gone before.
    pub(super) async fn release(&self, claim: &Claim) -> Result<(), LockError> {
        let began_at = Instant::now();
        let mut was_sent = false;
        let mut pause = Duration::from_millis(20);
        loop {
            // sent also when the lease seems lost: a key that is still there should go now
            let released = self.backend.release(claim).await;
            self.note_answer(&released);
            let error = match released {
                Ok(true) => return Ok(()),
                // if an earlier attempt was not answered, it may have been the one
                Ok(false) if was_sent => return Ok(()),
                Ok(false) => return Err(LockError::Lost),
                Err(error) => error,
            };
            was_sent = true;
            if let Some(reason) = self.validity.lost_reason() {
                return Err(LockError::SessionLost { reason });
            }
            if began_at.elapsed() + pause >= self.lease.ttl {
                tracing::warn!(%claim, %error, "could not withdraw a claim: giving up the session");
                self.validity.lose(LostReason::ReleaseFailed);
                return Err(error.into());
            }
            tracing::debug!(%claim, %error, "could not withdraw a claim: trying again");
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// Drains and revokes, once; the result is kept for whoever asks again.
    pub(super) async fn close(&self) -> Result<(), BackendError> {
        self.closed.get_or_init(|| self.drain_and_revoke()).await.clone()
    }

    async fn drain_and_revoke(&self) -> Result<(), BackendError> {
        self.closing.cancel();
        self.tasks.close();
        // each task ends within a TTL by itself; this bound is for a backend that breaks its word
        let drained = timeout(self.lease.ttl.saturating_mul(2), self.tasks.wait()).await;
        if drained.is_err() {
            tracing::warn!(lease = self.lease.id, "closing with claims that were not withdrawn");
        }
        self.validity.lose(LostReason::Closed);
        let began_at = Instant::now();
        let mut pause = Duration::from_millis(20);
        loop {
            let Err(error) = self.backend.close(self.lease).await else { return Ok(()) };
            // by then the lease has ended by itself
            if began_at.elapsed() + pause >= self.lease.ttl {
                return Err(error);
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}
