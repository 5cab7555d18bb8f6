//! One lease, kept alive, with everything that hangs on it.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::inner::SessionInner;
use super::mutex::Source;
use super::options::LONGEST;
use super::process::spawn_on;
use super::validity::FOR_EVER;
use super::{Backend, BackendError, GrantToken, Lease, LockError, LostReason, Mutex, Token};

/// The behaviour of a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    pub(super) ttl: Duration,
    pub(super) margin: Duration,
    pub(super) label: String,
    pub(super) hold_for: Option<Duration>,
}

impl SessionOptions {
    /// Options for a TTL: the time for which the claims of a process outlive it when it dies or is cut off, while other processes
    /// wait. 10 to 30 s suit most services: a hold survives an outage of the lock service of about half the TTL, which must be
    /// longer than an election takes. A backend may grant more (etcd: at least 1.5 election timeouts, whole seconds). More than a
    /// day counts as a day. Less than a millisecond is refused when the session is opened.
    pub fn new(ttl: Duration) -> Self {
        let ttl = ttl.min(LONGEST);
        Self { ttl, margin: ttl / 10, label: String::new(), hold_for: None }
    }

    /// The session counts as lost this long before the lease can end; a tenth of the TTL by default. The margin covers the time
    /// between looking at the clock and acting on it, and clocks that run at different speeds. At most half of the TTL counts.
    #[must_use]
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = margin;
        self
    }

    /// The name of this process, for a human who looks at the queue. At most 256 characters count.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        // services refuse large requests, some of them without an error
        self.label = label.into().chars().take(256).collect();
        self
    }

    /// The longest time that a hold may last; no limit by default. It stops a hung task from keeping a lock: then the guards of
    /// a hold are lost. Its claim is released a [`margin`](Self::margin) later, or a tenth of `limit` if that is less. More than
    /// a year counts as a year; less than a millisecond is refused when the session is opened.
    #[must_use]
    pub fn hold_for(mut self, limit: Duration) -> Self {
        self.hold_for = Some(limit.min(FOR_EVER));
        self
    }
}

/// One lease, kept alive for the life of a process; all its claims hang on it.
///
/// Clones are the same session. When the last one is gone, with all its mutexes and guards, the session closes in the background;
/// [`close`](Self::close) waits for it. Close the session before the process ends: the end cuts off releases in the background,
/// and their claims stay until the lease ends.
///
/// A session that is lost stays lost: open another one, or let a [`SessionKeeper`](super::SessionKeeper) do so.
#[derive(Clone)]
pub struct Session<T: GrantToken = Token> {
    pub(super) inner: Arc<SessionInner<T>>,
    // the last field, so that it is dropped after everything that may still release a claim
    _closer: Arc<CloseOnDrop<T>>,
}

impl<T: GrantToken> Session<T> {
    /// Opens a session: one lease, renewed from now on.
    ///
    /// # Cancel safety
    /// When the future is dropped, the session is closed in the background, as soon as it is open. Like every future of this
    /// crate, it delays nobody else if its caller polls it slowly or never again.
    ///
    /// # Errors
    /// [`LockError::Backend`] if the backend grants no lease, or the options have a time that is too short;
    /// [`LockError::SessionLost`] if it took so long that the lease cannot be believed in.
    ///
    /// # Panics
    /// Outside of a tokio runtime with timers, if the backend has none of its own ([`Backend::runtime`]). A session with such a
    /// backend is lost when the runtime that opened it ends.
    pub async fn open(
        backend: Arc<dyn Backend<Token = T>>,
        options: SessionOptions,
    ) -> Result<Self, LockError> {
        let runtime = runtime_of(&*backend);
        // a task of its own: if nobody waits any more, the session is dropped there, which closes it
        let opened = spawn_on(&runtime, Self::open_on(runtime.clone(), backend, options)).await;
        opened.unwrap_or_else(|ended| Err(BackendError::transient(ended).into()))
    }

    async fn open_on(
        runtime: Handle,
        backend: Arc<dyn Backend<Token = T>>,
        options: SessionOptions,
    ) -> Result<Self, LockError> {
        let inner = SessionInner::open(runtime, backend, options).await?;
        let session = Self { _closer: Arc::new(CloseOnDrop { inner: Arc::clone(&inner) }), inner };
        // a slow answer of the service may have used up the lease
        session.inner.check()?;
        Ok(session)
    }

    /// The mutex of this name. All mutexes of one name, of all sessions of all processes, are one lock.
    ///
    /// # Errors
    /// [`LockError::InvalidName`].
    pub fn mutex(&self, name: &str) -> Result<Mutex<T>, LockError> {
        Mutex::new(Source::Session(self.clone()), name)
    }

    /// The lease, as the backend granted it.
    pub fn lease(&self) -> Lease {
        self.inner.lease
    }

    /// The reason of the loss, if the session is lost.
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.inner.validity.lost_reason()
    }

    /// Whether the session is lost, or closed.
    pub fn is_lost(&self) -> bool {
        self.lost_reason().is_some()
    }

    /// Whether the backend answered the latest request. A silent backend is asked again until the session is lost; meanwhile no
    /// lock is granted.
    pub fn is_answered(&self) -> bool {
        self.inner.is_answered()
    }

    /// Waits until the session is lost, or closed. Its holds are lost with it.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// # Panics
    /// Outside of a tokio runtime with timers.
    pub async fn lost(&self) -> LostReason {
        self.inner.validity.lost().await
    }

    /// Closes the session: waiters fail, releases under way end, the lease is revoked. Guards that still live are lost. A second
    /// call has the result of the first. On SIGTERM, end the work first, then close. If the service is silent, this takes up to
    /// two TTLs: bound it with a timeout.
    ///
    /// # Cancel safety
    /// When the future is dropped, closing goes on in the background.
    ///
    /// # Errors
    /// [`LockError::Backend`] if the lease could not be revoked within a TTL: it ends by itself.
    pub async fn close(&self) -> Result<(), LockError> {
        let inner = Arc::clone(&self.inner);
        let closing = spawn_on(&self.inner.runtime, async move { inner.close().await });
        match closing.await {
            Ok(result) => Ok(result?),
            // only a runtime that shuts down ends the task early, and the renewals end with that runtime
            Err(_) => Err(LockError::SessionLost { reason: LostReason::Closed }),
        }
    }
}

/// The runtime for the tasks of a session. Panics here, not in the tasks, if the runtime has no timers.
pub(super) fn runtime_of<T: GrantToken>(backend: &dyn Backend<Token = T>) -> Handle {
    let runtime = backend.runtime().unwrap_or_else(Handle::current);
    let entered = runtime.enter();
    drop(sleep(Duration::ZERO));
    drop(entered);
    runtime
}

impl<T: GrantToken> std::fmt::Debug for Session<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("lease", &self.inner.lease)
            .field("lost", &self.inner.validity.lost_reason())
            .finish_non_exhaustive()
    }
}

/// Closes the session when its last handle is dropped.
struct CloseOnDrop<T: GrantToken> {
    inner: Arc<SessionInner<T>>,
}

impl<T: GrantToken> Drop for CloseOnDrop<T> {
    fn drop(&mut self) {
        let inner = Arc::clone(&self.inner);
        spawn_on(&self.inner.runtime, async move {
            // an error is logged there
            drop(inner.close().await);
        });
    }
}
