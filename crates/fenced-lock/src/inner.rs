//! The state that all handles of one session share.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::backoff::Backoff;
use super::chaos::Safeguard;
use super::hold::Hold;
use super::mutex::Standby;
use super::options::{LONGEST, limit};
use super::process::spawn_on;
use super::renewal::keep_alive;
use super::validity::{FOR_EVER, Validity};
use super::{
    Backend, BackendError, BackendErrorKind, Claim, Ends, GrantToken, Lease, LockError, LostReason,
    Released, SessionOptions,
};

/// The most claims of a session that may be under way at one name: into the queue, or out of it after their callers gave them up.
/// Further callers wait. Without this limit, callers that give up before the service answers would fill the queue and slow the
/// service down.
const MOST_UNDER_WAY: usize = 64;

pub(super) struct SessionInner<T: GrantToken> {
    pub(super) backend: Arc<dyn Backend<Token = T>>,
    pub(super) lease: Lease,
    pub(super) validity: Validity,
    pub(super) runtime: Handle,
    /// Cancelled when the session closes: waiters then fail, and new callers are refused.
    pub(super) closing: CancellationToken,
    /// The acquires and releases for which `close` waits. There is at most one for each future that waits and for each guard that
    /// was dropped, and [`MOST_UNDER_WAY`] limits those of claims that were given up.
    pub(super) tasks: TaskTracker,
    /// For each name with claims under way, how many more may be under way.
    room: Mutex<HashMap<Arc<str>, Weak<Semaphore>>>,
    label: Arc<str>,
    next_claim: AtomicU64,
    /// The longest time that a hold may last, if it is limited.
    pub(super) hold_for: Option<Duration>,
    /// The session counts as lost this long before the lease can end, and a lost hold is released this long after its loss.
    pub(super) margin: Duration,
    /// Whether the latest request was answered.
    is_answered: AtomicBool,
    closed: OnceCell<Result<(), BackendError>>,
    /// The newest hold of each name, for re-entry.
    holds: Mutex<HashMap<Arc<str>, Arc<Hold<T>>>>,
}

impl<T: GrantToken> SessionInner<T> {
    /// Asks for a lease, which is renewed from now on.
    pub(super) async fn open(
        runtime: Handle,
        backend: Arc<dyn Backend<Token = T>>,
        SessionOptions { ttl, margin, label, hold_for }: SessionOptions,
    ) -> Result<Arc<Self>, LockError> {
        limit("a TTL", ttl)?;
        hold_for.map_or(Ok(LONGEST), |longest| limit("a longest hold", longest))?;
        let ends = backend.promises().ends;
        let asked_at = Instant::now();
        let lease = backend.open(ttl).await?;
        // a larger margin would leave no time to renew
        let margin = margin.min(lease.ttl / 2);
        let lives_for = if ends == Ends::Process { FOR_EVER } else { lease.ttl };
        let believed_until = asked_at + lives_for.saturating_sub(margin);
        let inner = Arc::new(Self {
            validity: Validity::until(believed_until, lease.id),
            runtime,
            backend,
            lease,
            label: label.into(),
            next_claim: AtomicU64::new(1),
            hold_for,
            margin,
            is_answered: AtomicBool::new(true),
            holds: Mutex::default(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            room: Mutex::default(),
            closed: OnceCell::new(),
        });
        spawn_on(&inner.runtime, keep_alive(Arc::clone(&inner), asked_at));
        Ok(inner)
    }

    /// Whether the backend answered the latest request.
    pub(super) fn is_answered(&self) -> bool {
        self.is_answered.load(Ordering::Relaxed)
    }

    /// Starts a task that `close` waits for.
    pub(super) fn spawn_tracked<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        spawn_on(&self.runtime, self.tasks.track_future(task))
    }

    pub(super) fn new_claim(&self, name: &Arc<str>, standby: Option<&Standby>) -> Claim {
        let number = self.next_claim.fetch_add(1, Ordering::Relaxed);
        Claim {
            label: Arc::clone(&self.label),
            standby: standby.map(|standby| Arc::clone(&standby.note)),
            ..Claim::new(Arc::clone(name), self.lease.id, number)
        }
    }

    /// Waits for a request, and notes whether it was answered; an answer may be a refusal. A backend that panics has not
    /// answered.
    pub(super) async fn ask<A>(
        &self,
        request: impl Future<Output = Result<A, BackendError>>,
    ) -> Result<A, BackendError> {
        let result = AssertUnwindSafe(request).catch_unwind().await;
        let result =
            result.unwrap_or_else(|_| Err(BackendError::transient("the backend panicked")));
        let unanswered = matches!(&result, Err(e) if e.kind == BackendErrorKind::Transient);
        self.is_answered.store(!unanswered, Ordering::Relaxed);
        result
    }

    /// Fails if the session can grant nothing any more.
    pub(super) fn check(&self) -> Result<(), LockError> {
        self.check_lost()?;
        if self.closing.is_cancelled() { Err(self.ended()) } else { Ok(()) }
    }

    /// Fails if the session is lost.
    fn check_lost(&self) -> Result<(), LockError> {
        let lost = self.validity.lost_reason();
        lost.map_or(Ok(()), |reason| Err(LockError::SessionLost { reason }))
    }

    /// Declares the session lost, since the service says that the lease is gone. Returns the error.
    pub(super) fn revoked(&self) -> LockError {
        self.validity.lose(LostReason::Revoked);
        LockError::SessionLost { reason: LostReason::Revoked }
    }

    /// The error for a session that is lost or closing.
    pub(super) fn ended(&self) -> LockError {
        let reason = self.validity.lost_reason().unwrap_or(LostReason::Closed);
        LockError::SessionLost { reason }
    }

    pub(super) fn hold_of(&self, name: &str) -> Option<Arc<Hold<T>>> {
        self.holds.lock().get(name).cloned()
    }

    pub(super) fn add_hold(&self, hold: &Arc<Hold<T>>) {
        let mut holds = self.holds.lock();
        holds.insert(Arc::clone(&hold.claim.name), Arc::clone(hold));
    }

    /// Forgets the hold, unless a newer one of the same name has replaced it.
    pub(super) fn remove_hold(&self, hold: &Arc<Hold<T>>) {
        let mut holds = self.holds.lock();
        if holds.get(&hold.claim.name).is_some_and(|newest| Arc::ptr_eq(newest, hold)) {
            holds.remove(&hold.claim.name);
        }
    }

    /// The room for claims of this name that are under way. Each claim takes a permit.
    pub(super) fn room_for(&self, name: &Arc<str>) -> Arc<Semaphore> {
        let mut all = self.room.lock();
        if let Some(room) = all.get(name).and_then(Weak::upgrade) {
            return room;
        }
        // before the map grows, forget the names without claims under way
        if all.len() == all.capacity() {
            all.retain(|_, room| room.strong_count() > 0);
        }
        let room = Arc::new(Semaphore::new(MOST_UNDER_WAY));
        all.insert(Arc::clone(name), Arc::downgrade(&room));
        room
    }

    /// Withdraws the claim in the background. Until then it counts as under way, if it has a permit or one is free.
    pub(super) fn spawn_release(
        self: &Arc<Self>,
        claim: Claim,
        under_way: Option<OwnedSemaphorePermit>,
    ) {
        let inner = Arc::clone(self);
        let room = || self.room_for(&claim.name).try_acquire_owned().ok();
        let under_way = under_way.or_else(room);
        let release = async move {
            let _under_way = under_way;
            if let Err(error) = inner.release(&claim).await {
                tracing::debug!(%claim, ?error, "the claim was not there, or is left to its lease");
            }
        };
        self.spawn_tracked(release);
    }

    /// Withdraws the claim. Tries again for a TTL, unless the session is lost. If the service has not answered by then, gives the
    /// session up: the claim ends with its lease, and blocks no other claim. If the service refuses, the session goes on, since
    /// its other holds must not end, and the request is repeated once a TTL.
    pub(super) async fn release(self: &Arc<Self>, claim: &Claim) -> Result<Released, LockError> {
        let began_at = Instant::now();
        let mut may_be_done = false;
        let mut backoff = Backoff::default();
        loop {
            // also when the lease seems lost: the claim may still be there, and should go
            let released = self.ask(async { self.backend.release(claim).await }).await;
            let error = match released {
                // an earlier request, or the end of the lease, took the claim out
                Ok(Released::Gone) if may_be_done => {
                    return self.check_lost().map(|()| Released::Unknown);
                }
                Ok(released) => {
                    tracing::debug!(%claim, ?released, "released");
                    return Ok(released);
                }
                Err(error) => error,
            };
            // the claim ended with its lease, or an earlier request took it out; the holder must assume the former
            if error.kind == BackendErrorKind::LeaseGone {
                return Err(self.revoked());
            }
            let is_refused =
                error.kind != BackendErrorKind::Transient && Safeguard::Denials.is_on();
            may_be_done |= !is_refused;
            self.check_lost()?;
            let pause = backoff.next();
            let is_over = began_at.elapsed() + pause >= self.lease.ttl;
            // the claim of a session that closes ends with the lease
            if is_refused && (is_over || self.closing.is_cancelled()) {
                tracing::warn!(
                    %claim, ?error,
                    "may not withdraw a claim: until its session ends, it blocks all that wait behind it"
                );
                let (inner, claim) = (Arc::clone(self), claim.clone());
                self.spawn_tracked(async move { inner.release_late(&claim).await });
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

    /// Repeats, once a TTL, a withdrawal that the service refuses, for as long as the session lives.
    async fn release_late(&self, claim: &Claim) {
        loop {
            tokio::select! {
                biased;
                _ = self.validity.lost() => return,
                () = self.closing.cancelled() => return,
                () = sleep(self.lease.ttl) => {}
            }
            if self.ask(async { self.backend.release(claim).await }).await.is_ok() {
                return tracing::info!(%claim, "withdrew a claim that could not be withdrawn before");
            }
        }
    }

    /// Waits for the tasks and revokes the lease. A second call returns the result of the first.
    pub(super) async fn close(&self) -> Result<(), BackendError> {
        self.closed.get_or_init(|| self.drain_and_revoke()).await.clone()
    }

    async fn drain_and_revoke(&self) -> Result<(), BackendError> {
        self.closing.cancel();
        self.tasks.close();
        // each task ends within a TTL; this bound is for a backend that breaks its word
        let drained = timeout(self.lease.ttl.saturating_mul(2), self.tasks.wait());
        tokio::select! {
            biased;
            drained = drained => if drained.is_err() {
                tracing::warn!(lease = self.lease.id, "closing with claims that were not withdrawn");
            },
            // the claims end with the lease
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
            // after a TTL the lease has ended by itself, and after a permanent refusal it will
            let pause = backoff.next();
            let is_over = began_at.elapsed() + pause >= self.lease.ttl;
            if is_over || error.kind == BackendErrorKind::Permanent {
                tracing::debug!(lease = self.lease.id, ?error, "the lease is left to its TTL");
                return Err(error);
            }
            sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryBackend, Session};

    /// Goal: all claims of a name that are under way share one room. A room without a claim is forgotten.
    #[tokio::test(start_paused = true)]
    async fn rooms_are_given_back() {
        let options = SessionOptions::new(Duration::from_secs(10));
        let session = Session::open(Arc::new(MemoryBackend::new()), options).await;
        let inner = &session.expect("it is in memory").inner;
        let kept = inner.room_for(&"kept".into());
        for name in 0..1000 {
            inner.room_for(&name.to_string().into());
        }
        assert!(Arc::ptr_eq(&kept, &inner.room_for(&"kept".into())));
        assert!(inner.room.lock().len() < 100);
    }
}
