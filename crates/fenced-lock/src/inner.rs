//! What all handles of one session share.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::context::TokioContext;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::backoff::Backoff;
use super::chaos::Safeguard;
use super::hold::Hold;
use super::validity::Validity;
use super::{
    Backend, BackendError, BackendErrorKind, Claim, GrantToken, Lease, LockError, LostReason,
    Released, SessionOptions,
};

/// While so many claims of a session on one name are given up and not withdrawn yet, further callers wait. Else callers
/// whose patience ends before the service answers would fill the queue, and the service be the slower for it. Callers that
/// come together while there is room all pass, so that a service that answers in time gets them all at once.
const MOST_GIVEN_UP: usize = 8;

/// What all handles of one session share.
pub(super) struct SessionInner<T: GrantToken> {
    pub(super) backend: Arc<dyn Backend<Token = T>>,
    pub(super) lease: Lease,
    pub(super) validity: Validity,
    pub(super) runtime: Handle,
    /// Set when the session closes: waiters fail, and no new ones are let in.
    pub(super) closing: CancellationToken,
    /// The acquires and releases under way, for `close` to wait for. There is at most one for each
    /// future that waits and each guard that was dropped, and the claims that were given up: see [`MOST_GIVEN_UP`].
    pub(super) tasks: TaskTracker,
    /// For each name of which claims were given up that may still be in its queue: the room for more.
    given_up: StdMutex<HashMap<Arc<str>, Rooms>>,
    label: Arc<str>,
    /// The longest hold, if there is one.
    pub(super) hold_for: Option<Duration>,
    /// How long before the lease can end the session is lost; a lost hold is released so much later.
    pub(super) margin: Duration,
    /// Whether the latest request was answered.
    is_answered: AtomicBool,
    closed: OnceCell<Result<(), BackendError>>,
    /// The newest hold of each name, for re-entry.
    holds: StdMutex<HashMap<Arc<str>, Arc<Hold<T>>>>,
}

impl<T: GrantToken> SessionInner<T> {
    pub(super) fn new(
        backend: Arc<dyn Backend<Token = T>>,
        runtime: Handle,
        lease: Lease,
        believed_until: Instant,
        margin: Duration,
        SessionOptions { label, hold_for, .. }: SessionOptions,
    ) -> Self {
        Self {
            validity: Validity::until(believed_until, runtime.clone()),
            runtime,
            backend,
            lease,
            label: label.into(),
            hold_for,
            margin,
            is_answered: AtomicBool::new(true),
            holds: StdMutex::default(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            given_up: StdMutex::default(),
            closed: OnceCell::new(),
        }
    }

    /// Whether the backend answered the latest request.
    pub(super) fn is_answered(&self) -> bool {
        self.is_answered.load(Ordering::Relaxed)
    }

    pub(super) fn new_claim(&self, name: &Arc<str>) -> Claim {
        // of the process: if a backend granted one lease twice, its two sessions would still exclude each other
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Claim {
            name: Arc::clone(name),
            lease: self.lease.id,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            label: Arc::clone(&self.label),
        }
    }

    /// `future`, also where there is no runtime.
    pub(super) fn entered<F: Future>(&self, future: F) -> TokioContext<F> {
        TokioContext::new(future, self.runtime.clone())
    }

    /// Waits for a request, and notes whether it was answered; an answer may be a refusal. A backend
    /// that panics has not answered.
    pub(super) async fn ask<A>(
        &self,
        request: impl Future<Output = Result<A, BackendError>>,
    ) -> Result<A, BackendError> {
        let result = AssertUnwindSafe(request).catch_unwind().await;
        let result = result.unwrap_or_else(|_| {
            Err(BackendError::new(BackendErrorKind::Transient, "the backend panicked"))
        });
        let unanswered = matches!(&result, Err(e) if e.kind == BackendErrorKind::Transient);
        self.is_answered.store(!unanswered, Ordering::Relaxed);
        result
    }

    /// Fails if the session cannot grant anything any more.
    pub(super) fn check(&self) -> Result<(), LockError> {
        match self.validity.lost_reason() {
            Some(reason) => Err(LockError::SessionLost { reason }),
            None if self.closing.is_cancelled() => Err(self.ended()),
            None => Ok(()),
        }
    }

    /// Why nothing is granted any more.
    pub(super) fn ended(&self) -> LockError {
        let reason = self.validity.lost_reason().unwrap_or(LostReason::Closed);
        LockError::SessionLost { reason }
    }

    pub(super) fn hold_of(&self, name: &str) -> Option<Arc<Hold<T>>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub(super) fn add_hold(&self, hold: &Arc<Hold<T>>) {
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        holds.insert(Arc::clone(&hold.claim.name), Arc::clone(hold));
    }

    /// Forgets the hold, unless a newer one of the same name has taken its place.
    pub(super) fn remove_hold(&self, hold: &Arc<Hold<T>>) {
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        if holds.get(&hold.claim.name).is_some_and(|newest| Arc::ptr_eq(newest, hold)) {
            holds.remove(&hold.claim.name);
        }
    }

    fn given_up(&self) -> MutexGuard<'_, HashMap<Arc<str>, Rooms>> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until not too many claims on the name are being withdrawn. A caller that had to wait keeps its room until
    /// its request is answered, so that no more pass than there is room for.
    pub(super) async fn until_few_are_given_up(
        self: &Arc<Self>,
        name: &Arc<str>,
    ) -> Option<Room<T>> {
        let free = self.given_up().get(name).map(|rooms| Arc::clone(&rooms.free))?;
        if free.available_permits() > 0 {
            return None;
        }
        // no room is closed
        free.acquire().await.ok()?.forget();
        if let Some(rooms) = self.given_up().get_mut(name) {
            rooms.taken += 1;
        }
        Some(Room { inner: Arc::clone(self), name: Arc::clone(name) })
    }

    /// Withdraws the claim in the background. Keeps `until_done` so long.
    pub(super) fn spawn_release(self: &Arc<Self>, claim: Claim, until_done: impl Send + 'static) {
        let inner = Arc::clone(self);
        let release = async move {
            let _until_done = until_done;
            if let Err(error) = inner.release(&claim).await {
                tracing::debug!(%claim, ?error, "the claim was not there, or is left to its lease");
            }
        };
        self.tasks.spawn_on(release, &self.runtime);
    }

    /// Withdraws the claim, trying again for a TTL unless the session is lost. What is not answered
    /// then gives up the session, so that the claim ends with the lease and blocks no other. What is
    /// refused is no reason to end the other holds: it is tried again now and then.
    pub(super) async fn release(self: &Arc<Self>, claim: &Claim) -> Result<Released, LockError> {
        let began_at = Instant::now();
        let mut may_be_done = false;
        let mut backoff = Backoff::default();
        loop {
            // sent also when the lease seems lost: a key that is still there should go now
            let released = self.ask(async { self.backend.release(claim).await }).await;
            let error = match released {
                Ok(Released::Gone) if may_be_done => {
                    // it went by an earlier request, or with the lease
                    return match self.validity.lost_reason() {
                        Some(reason) => Err(LockError::SessionLost { reason }),
                        None => Ok(Released::Unknown),
                    };
                }
                Ok(released) => {
                    tracing::debug!(%claim, ?released, "released");
                    return Ok(released);
                }
                Err(error) => error,
            };
            // the claim went with it, unless an earlier request took it out: its holder must expect the worse
            if error.kind == BackendErrorKind::LeaseGone {
                self.validity.lose(LostReason::Revoked);
                return Err(LockError::SessionLost { reason: LostReason::Revoked });
            }
            let is_refused =
                error.kind != BackendErrorKind::Transient && Safeguard::Denials.is_on();
            may_be_done |= !is_refused;
            if let Some(reason) = self.validity.lost_reason() {
                return Err(LockError::SessionLost { reason });
            }
            let pause = backoff.next();
            let is_over = began_at.elapsed() + pause >= self.lease.ttl;
            // a session that closes gives its lease back, or lets it end
            if is_refused && (is_over || self.closing.is_cancelled()) {
                tracing::warn!(
                    %claim, ?error,
                    "may not withdraw a claim: until its session ends, it blocks all that wait behind it"
                );
                let (inner, claim) = (Arc::clone(self), claim.clone());
                self.tasks.spawn_on(async move { inner.release_late(&claim).await }, &self.runtime);
                return Err(error.into());
            }
            if is_over {
                tracing::warn!(%claim, ?error, "could not withdraw a claim: giving up the session");
                self.validity.lose(LostReason::ReleaseFailed);
                return Err(error.into());
            }
            tracing::debug!(%claim, ?error, "could not withdraw a claim: trying again");
            sleep(pause).await;
        }
    }

    /// Withdraws a claim that may not be withdrawn, for as long as the session lives.
    async fn release_late(&self, claim: &Claim) {
        loop {
            tokio::select! {
                () = sleep(self.lease.ttl) => {}
                _ = self.validity.lost() => return,
                () = self.closing.cancelled() => return,
            }
            if self.ask(async { self.backend.release(claim).await }).await.is_ok() {
                return tracing::info!(%claim, "withdrew a claim that could not be withdrawn before");
            }
        }
    }

    /// Drains and revokes, once, and keeps the result.
    pub(super) async fn close(&self) -> Result<(), BackendError> {
        self.closed.get_or_init(|| self.drain_and_revoke()).await.clone()
    }

    async fn drain_and_revoke(&self) -> Result<(), BackendError> {
        self.closing.cancel();
        self.tasks.close();
        // each task ends within a TTL by itself; this bound is for a backend that breaks its word
        let drained = timeout(self.lease.ttl.saturating_mul(2), self.tasks.wait());
        tokio::select! {
            drained = drained => if drained.is_err() {
                tracing::warn!(lease = self.lease.id, "closing with claims that were not withdrawn");
            },
            // its claims go with the lease
            _ = self.validity.lost() => {}
        }
        self.validity.lose(LostReason::Closed);
        let began_at = Instant::now();
        let mut backoff = Backoff::default();
        loop {
            let error = match self.backend.close(self.lease).await {
                Ok(()) => return Ok(()),
                Err(error) if error.kind == BackendErrorKind::LeaseGone => return Ok(()),
                Err(error) => error,
            };
            // by then the lease has ended by itself, as does one that may not be revoked
            let pause = backoff.next();
            let is_over = began_at.elapsed() + pause >= self.lease.ttl;
            if is_over || error.kind == BackendErrorKind::Permanent {
                return Err(error);
            }
            sleep(pause).await;
        }
    }
}

/// The room for claims on one name that are given up. Callers that passed together may take more than there is.
struct Rooms {
    taken: usize,
    free: Arc<Semaphore>,
}

/// Counts as a claim that is given up, until it is dropped.
pub(super) struct Room<T: GrantToken> {
    inner: Arc<SessionInner<T>>,
    name: Arc<str>,
}

impl<T: GrantToken> Drop for Room<T> {
    fn drop(&mut self) {
        let mut given_up = self.inner.given_up();
        let Some(rooms) = given_up.get_mut(&self.name) else { return };
        rooms.taken -= 1;
        if rooms.taken < MOST_GIVEN_UP {
            rooms.free.add_permits(1);
        }
        // nobody waits for it
        if rooms.taken == 0 && Arc::strong_count(&rooms.free) == 1 {
            given_up.remove(&self.name);
        }
    }
}

/// A claim that its caller may give up. It counts as given up until all that work on it have dropped this.
pub(super) struct Withdrawal<T: GrantToken> {
    inner: Arc<SessionInner<T>>,
    name: Arc<str>,
    room: OnceLock<Room<T>>,
}

impl<T: GrantToken> Withdrawal<T> {
    pub(super) fn new(inner: &Arc<SessionInner<T>>, name: &Arc<str>) -> Arc<Self> {
        let (inner, name) = (Arc::clone(inner), Arc::clone(name));
        Arc::new(Self { inner, name, room: OnceLock::new() })
    }

    /// Takes up room, also if there is none left.
    pub(super) fn give_up(&self) {
        let free = || Arc::new(Semaphore::new(MOST_GIVEN_UP));
        let mut given_up = self.inner.given_up();
        let rooms = given_up.entry(Arc::clone(&self.name));
        let rooms = rooms.or_insert_with(|| Rooms { taken: 0, free: free() });
        rooms.taken += 1;
        if let Ok(permit) = rooms.free.try_acquire() {
            permit.forget();
        }
        drop(given_up);
        let room = Room { inner: Arc::clone(&self.inner), name: Arc::clone(&self.name) };
        self.room.get_or_init(|| room);
    }
}
