//! One lease, kept alive, and everything that hangs on it.

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
use super::renewal::renew_until_lost;
use super::validity::Validity;
use super::{Backend, BackendError, BackendErrorKind, Claim, Lease, LockError, LostReason, Mutex};

/// Longer TTLs are cut to this one: whoever waits behind a dead process waits so long.
const MAX_TTL: Duration = Duration::from_hours(24);

/// How a session behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionOptions {
    /// How long the claims of this process outlive it when it dies or is cut off, and so how long
    /// the others wait then. A backend may grant more (etcd: at least 1.5 election timeouts, whole
    /// seconds). More than a day counts as a day.
    pub ttl: Duration,
    /// How long before the lease can end the session stops believing in it. It covers the time
    /// between looking at the clock and acting on it, and clocks that run at different speeds. At most
    /// half of the TTL counts.
    pub margin: Duration,
    /// Who this is, in words for a human who looks at the queue.
    pub label: String,
}

impl SessionOptions {
    /// Options for a TTL, with a margin of a tenth of it and no label.
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, margin: ttl / 10, label: String::new() }
    }

    /// The same with this label.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }
}

/// One lease, kept alive for the life of a process; all its claims hang on it.
///
/// Clones are the same session. When the last one is gone, with all its mutexes and guards, the
/// session closes in the background; [`close`](Self::close) waits for it.
///
/// A session that is lost stays lost: open another one, or let a
/// [`SessionKeeper`](super::SessionKeeper) do so.
#[derive(Clone)]
pub struct Session {
    pub(super) core: Arc<Core>,
    // last, so that it goes after everything that may still want to release a claim
    _closer: Arc<CloseOnDrop>,
}

impl Session {
    /// Opens a session: one lease, renewed from now on.
    ///
    /// # Cancel safety
    /// A future that is dropped may leave a lease behind, with no claims, that ends by itself after
    /// its TTL.
    ///
    /// # Errors
    /// [`LockError::Backend`] if the backend grants no lease; [`LockError::SessionLost`] if it took so
    /// long that the lease cannot be believed in.
    ///
    /// # Panics
    /// Outside of a tokio runtime, with a backend that has none of its own.
    pub async fn open(
        backend: Arc<dyn Backend>,
        options: SessionOptions,
    ) -> Result<Self, LockError> {
        let asked_at = Instant::now();
        let lease = backend.open(options.ttl.min(MAX_TTL)).await?;
        // a larger one would leave no time to renew
        let margin = options.margin.min(lease.ttl / 2);
        let core = Arc::new(Core {
            runtime: backend.runtime().unwrap_or_else(Handle::current),
            validity: Validity::until(asked_at + lease.ttl.saturating_sub(margin)),
            backend,
            lease,
            label: options.label.into(),
            is_answered: AtomicBool::new(true),
            next_claim: AtomicU64::new(1),
            holds: StdMutex::default(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            closed: OnceCell::new(),
        });
        core.runtime.spawn(renew_until_lost(Arc::clone(&core), margin));
        let closer = Arc::new(CloseOnDrop { core: Arc::clone(&core) });
        let session = Self { core, _closer: closer };
        // a service that took its time to answer may have used up the lease
        session.core.check()?;
        Ok(session)
    }

    /// The mutex of this name. All mutexes of one name, of all sessions of all processes, are one
    /// lock.
    ///
    /// # Errors
    /// [`LockError::InvalidName`].
    pub fn mutex(&self, name: &str) -> Result<Mutex, LockError> {
        Mutex::new(self.clone(), name)
    }

    /// The lease, as the backend granted it.
    pub fn lease(&self) -> Lease {
        self.core.lease
    }

    /// How the session was lost, if it is.
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.core.validity.lost_reason()
    }

    /// Whether the session is lost, or closed.
    pub fn is_lost(&self) -> bool {
        self.lost_reason().is_some()
    }

    /// Whether the backend answered the latest request. A backend that does not is asked again until
    /// the session is lost; this tells meanwhile why nobody is granted anything.
    pub fn is_answered(&self) -> bool {
        self.core.is_answered.load(Ordering::Relaxed)
    }

    /// Waits until the session is lost, or closed. Its holds are lost with it.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lost(&self) -> LostReason {
        self.core.validity.lost().await
    }

    /// Closes the session: waiters fail, releases that are under way end, the lease is revoked.
    /// Guards that still live are lost. Closing twice is harmless, and tells the same twice.
    ///
    /// # Cancel safety
    /// When the future is dropped, closing goes on in the background.
    ///
    /// # Errors
    /// [`LockError::Backend`] if the lease could not be revoked within a TTL: it ends by itself.
    pub async fn close(&self) -> Result<(), LockError> {
        let core = Arc::clone(&self.core);
        let closing = self.core.runtime.spawn(async move { core.close().await });
        match closing.await {
            Ok(result) => Ok(result?),
            // only a runtime that shuts down ends the task early, and then nobody renews any more
            Err(_) => Err(LockError::SessionLost { reason: LostReason::Closed }),
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("lease", &self.core.lease)
            .field("lost", &self.core.validity.lost_reason())
            .finish_non_exhaustive()
    }
}

/// Closes the session when nobody uses it any more.
struct CloseOnDrop {
    core: Arc<Core>,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        let core = Arc::clone(&self.core);
        // those of guards that were forgotten: nobody can give them back any more, and each of them
        // keeps the core, and with it the backend
        core.forget_holds();
        self.core.runtime.spawn(async move {
            if let Err(error) = core.close().await {
                tracing::debug!(lease = core.lease.id, %error, "the lease is left to its TTL");
            }
        });
    }
}

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

    fn forget_holds(&self) {
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

    async fn close(&self) -> Result<(), BackendError> {
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
