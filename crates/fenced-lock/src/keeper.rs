//! A session that is replaced when it is lost.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::mutex::{Source, Told};
use super::process::spawn_on;
use super::session::runtime_of;
use super::{
    Backend, GrantToken, Guard, LockError, LostReason, Mutex, ObservedClaim, Owner, Session,
    SessionOptions, Token,
};

/// Locks for the life of a service: opens a session, and the next one when it is lost.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use fenced_lock::{LockError, MemoryBackend, Owner, SessionKeeper, SessionOptions};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let options = SessionOptions::new(Duration::from_secs(30)).hold_for(Duration::from_secs(60));
/// let locks = SessionKeeper::start(Arc::new(MemoryBackend::new()), options);
///
/// let left = locks.with("stock", async |guard| {
///     // write, and send the token along
///     guard.token().revision()
/// });
/// println!("{}", left.await?);
///
/// // nested calls pass the owner on, who enters again without a request
/// let mut owner = Owner::new();
/// let _outer = locks.lock_as("stock", &mut owner).await?;
/// let _inner = locks.lock_as("stock", &mut owner).await?;
/// locks.close().await;
/// # Ok(())
/// # }
/// ```
///
/// # What is retried
///
/// If [`lock`](Self::lock) loses its claim or its session while it waits, or the service has no room, it makes a new claim, if
/// necessary in the next session. It retries for one TTL after the first failure, and then returns the latest error. A
/// claim without an answer is repeated for as long as its session lives. Errors that no retry can mend, such as a wrong password,
/// are returned at once.
///
/// Locks that were *held* in a lost session stay lost: each guard reports the loss, and its holder decides whether to do the work
/// again. After an outage, the claims of the lost session stay in their queues until its lease ends.
///
/// Failures are also logged with `tracing`, and returned by [`latest_error`](Self::latest_error).
///
/// When the last clone of a keeper is dropped, its session closes in the background, as soon as its last guard is gone.
///
/// # Panics
/// `lock`, `try_lock` and `with` outside of a tokio runtime with timers.
#[derive(Clone)]
pub struct SessionKeeper<T: GrantToken = Token> {
    backend: Arc<dyn Backend<Token = T>>,
    state: watch::Receiver<State<T>>,
    /// How long [`lock`](Self::lock) tries again.
    patience: Duration,
    stop: CancellationToken,
}

/// The state of the keeper's task. The task has stopped when the channel is closed.
#[derive(Clone, Debug)]
struct State<T: GrantToken> {
    session: Option<Session<T>>,
    /// The error of the latest attempt to open a session, if it failed.
    error: Option<LockError>,
    /// How many sessions were lost so far.
    losses: u64,
}

impl<T: GrantToken> SessionKeeper<T> {
    /// Starts to open a session. Retries with pauses that grow to a second while the lock service does not answer, and to a
    /// minute after a permanent refusal, such as of a wrong password.
    ///
    /// # Panics
    /// Outside of a tokio runtime with timers, if the backend has no runtime of its own.
    pub fn start(backend: Arc<dyn Backend<Token = T>>, options: SessionOptions) -> Self {
        let state = State { session: None, error: None, losses: 0 };
        let (publish, state) = watch::channel(state);
        let stop = CancellationToken::new();
        let runtime = runtime_of(&*backend);
        let patience = options.ttl;
        spawn_on(&runtime, keep_open(Arc::clone(&backend), options, publish, stop.clone()));
        Self { backend, state, patience, stop }
    }

    /// Shows the holder of this lock, also while there is no session: see [`Backend::watch_holder`].
    /// Clone what you borrow from the receiver: the backend waits for the end of a borrow.
    pub fn watch_holder(&self, name: &str) -> Option<watch::Receiver<Option<ObservedClaim>>> {
        self.backend.watch_holder(name)
    }

    /// The mutex of this name, which can do more than [`lock`](Self::lock): it shows the queue, and [stands by](Mutex::standby).
    /// Its `lock` returns a refusal of the service at once, and waits for a session without a limit: this suits callers with
    /// a deadline that handle refusals themselves.
    ///
    /// # Errors
    /// [`LockError::InvalidName`].
    pub fn mutex(&self, name: &str) -> Result<Mutex<T>, LockError> {
        Mutex::new(Source::Keeper(self.clone()), name)
    }

    /// Takes the lock of this name. Waits for as long as others hold it: bound that with [`tokio::time::timeout`].
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    ///
    /// # Errors
    /// The errors that are not retried, see [the type](Self#what-is-retried): [`LockError::Backend`], [`LockError::InvalidName`];
    /// [`LockError::SessionLost`] once the keeper was closed; [`LockError::Timeout`] if there was no session for a TTL.
    pub async fn lock(&self, name: &str) -> Result<Guard<T>, LockError> {
        self.lock_as(name, &mut Owner::new()).await
    }

    /// Takes the lock of this name for `owner`; at once and without a request if `owner` holds it already: see
    /// [`Mutex::lock_as`].
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn lock_as(&self, name: &str, owner: &mut Owner) -> Result<Guard<T>, LockError> {
        self.lock_again(&self.mutex(name)?, owner, None, Some(self.patience)).await
    }

    /// Takes the lock. Replaces a lost claim, in the next session if necessary. `limit`: for how long there may be no session,
    /// and for how long refusals are retried. Without it, waits for a session without limit, and returns a refusal at once.
    pub(super) async fn lock_again(
        &self,
        mutex: &Mutex<T>,
        owner: &Owner,
        told: Option<Told>,
        limit: Option<Duration>,
    ) -> Result<Guard<T>, LockError> {
        let mut backoff = Backoff::default();
        let mut failing_since: Option<Instant> = None;
        loop {
            let failing_for = failing_since.map_or(Duration::ZERO, |at| at.elapsed());
            let session = match limit {
                Some(limit) => self.session_within(limit.saturating_sub(failing_for)).await?,
                None => self.session().await?,
            };
            let asked_at = Instant::now();
            let error = match mutex.lock_in(&session, owner, told.clone()).await {
                Err(error) if limit.is_some() && passes(&error) => error,
                Err(error @ (LockError::Lost { .. } | LockError::SessionLost { .. })) => error,
                locked => return locked,
            };
            // after a long wait, earlier failures do not count
            if asked_at.elapsed() > self.patience {
                (failing_since, backoff) = (None, Backoff::default());
            }
            let pause = backoff.next();
            let failing_for = failing_since.get_or_insert_with(Instant::now).elapsed();
            if limit.is_some_and(|limit| failing_for + pause >= limit) {
                return Err(error);
            }
            tracing::debug!(name = mutex.name(), ?error, "could not lock: trying again");
            sleep(pause).await;
        }
    }

    /// Takes the lock of this name if it is free; `None` if there is another claim. Waits for a session for at most a TTL, and
    /// tries once.
    ///
    /// # Cancel safety
    /// As [`Mutex::try_lock`].
    ///
    /// # Errors
    /// As [`Mutex::try_lock`] and [`lock`](Self::lock).
    pub async fn try_lock(&self, name: &str) -> Result<Option<Guard<T>>, LockError> {
        self.try_lock_as(name, &mut Owner::new()).await
    }

    /// Takes the lock of this name for `owner` if it is free or the owner's.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock).
    pub async fn try_lock_as(
        &self,
        name: &str,
        owner: &mut Owner,
    ) -> Result<Option<Guard<T>>, LockError> {
        self.session_within(self.patience).await?.mutex(name)?.try_lock_as(owner).await
    }

    /// Takes the lock of this name, runs `work` and unlocks. Returns the result of `work`, if the lock was held until `work`
    /// ended. `work` gets a guard of its own, [re-entered](Guard::reenter). A guard that outlives `work` keeps the lock.
    ///
    /// If the hold is lost meanwhile, `work` is dropped at the point where it waits, and no part of it is repeated: see
    /// [`Guard::run`]. If you need the outcome of the work in any case, take the lock by [`lock`](Self::lock), and ask
    /// [`Guard::is_lost`].
    ///
    /// The future is `Send` if the future of `work` is. Then a task can run it:
    ///
    /// ```
    /// use fenced_lock::{Guard, SessionKeeper};
    ///
    /// fn in_background<F>(locks: SessionKeeper, work: impl FnOnce(Guard) -> F + Send + 'static)
    /// where
    ///     F: Future<Output = ()> + Send + 'static,
    /// {
    ///     tokio::spawn(async move { locks.with("orders", work).await });
    /// }
    /// ```
    ///
    /// # Cancel safety
    /// When the future is dropped, `work` is dropped, too, and the lock is released in the background.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), before `work` began; [`LockError::Lost`] or [`LockError::SessionLost`] if the hold was lost
    /// before `work` ended, even if only the release showed it: writes that the store accepted with the token stand.
    pub async fn with<F: Future>(
        &self,
        name: &str,
        work: impl FnOnce(Guard<T>) -> F,
    ) -> Result<F::Output, LockError> {
        self.lock(name).await?.with(work).await
    }

    /// The session. Waits for one to be opened, but no longer than `limit`.
    async fn session_within(&self, limit: Duration) -> Result<Session<T>, LockError> {
        let late = |_| {
            let timeout = || LockError::Timeout { what: "lock session".into(), waited: limit };
            Err(self.latest_error().unwrap_or_else(timeout))
        };
        timeout(limit, self.session()).await.unwrap_or_else(late)
    }

    /// The session. Waits for one to be opened: bound the wait with a timeout, since it lasts for as long as the lock service is
    /// away.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// # Errors
    /// [`LockError::SessionLost`] once the keeper was closed; [`LockError::Backend`] if a session was refused for a reason that
    /// waiting does not mend.
    pub async fn session(&self) -> Result<Session<T>, LockError> {
        // a session that is being closed looks alive while it drains
        if self.stop.is_cancelled() {
            return Err(LockError::SessionLost { reason: LostReason::Closed });
        }
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| {
            state.session.as_ref().is_some_and(|session| !session.is_lost())
                || state.error.as_ref().is_some_and(|error| !passes(error))
        });
        match settled.await.as_deref() {
            Ok(State { session: Some(session), .. }) => Ok(session.clone()),
            Ok(State { error: Some(error), .. }) => Err(error.clone()),
            _ => Err(LockError::SessionLost { reason: LostReason::Closed }),
        }
    }

    /// The session, if one is open now.
    pub fn current(&self) -> Option<Session<T>> {
        self.state.borrow().session.clone().filter(|session| !session.is_lost())
    }

    /// The error of the latest attempt to open a session, until one succeeds.
    pub fn latest_error(&self) -> Option<LockError> {
        self.state.borrow().error.clone()
    }

    /// How many sessions were lost so far. Closed sessions do not count.
    pub fn losses(&self) -> u64 {
        self.state.borrow().losses
    }

    /// Closes the open session, see [`Session::close`], and opens no other.
    ///
    /// # Cancel safety
    /// When the future is dropped, closing goes on in the background.
    pub async fn close(&self) {
        self.stop.cancel();
        let mut state = self.state.clone();
        while state.changed().await.is_ok() {}
    }
}

impl<T: GrantToken> fmt::Debug for SessionKeeper<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionKeeper")
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}

/// Keeps a session open until `stop`, or until the last keeper is dropped.
async fn keep_open<T: GrantToken>(
    backend: Arc<dyn Backend<Token = T>>,
    options: SessionOptions,
    publish: watch::Sender<State<T>>,
    stop: CancellationToken,
) {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        // this drops the session, which closes when its last guard is gone, too
        () = publish.closed() => return,
        () = open_again(backend, options, &publish) => {}
    }
    let losses = publish.borrow().losses;
    let last = publish.send_replace(State { session: None, error: None, losses });
    if let Some(session) = last.session
        && let Err(error) = session.close().await
    {
        tracing::warn!(?error, "the lease is left to its TTL");
    }
}

/// Opens one session after the other, for ever.
async fn open_again<T: GrantToken>(
    backend: Arc<dyn Backend<Token = T>>,
    options: SessionOptions,
    publish: &watch::Sender<State<T>>,
) {
    let (mut backoff, mut refusals) = (Backoff::default(), Backoff::default());
    let (mut failures, mut losses) = (0_u64, 0);
    loop {
        let pause;
        match Session::open(Arc::clone(&backend), options.clone()).await {
            Ok(session) => {
                (failures, refusals) = (0, Backoff::default());
                let opened_at = Instant::now();
                let open = Some(session.clone());
                publish.send_replace(State { session: open, error: None, losses });
                let reason = session.lost().await;
                losses += u64::from(reason != LostReason::Closed);
                tracing::warn!(%reason, "lost the lock session: opening another one");
                publish.send_replace(State { session: None, error: None, losses });
                // a pause between sessions that are lost soon after they were opened
                if opened_at.elapsed() >= options.ttl {
                    backoff = Backoff::default();
                    continue;
                }
                pause = backoff.next();
            }
            Err(error) => {
                failures += 1;
                let may_pass = passes(&error);
                let is_told = publish.borrow().error.as_ref() == Some(&error);
                // an outage may last for hours: log the first failure in a row, the second, the fourth and so on; log a refusal
                // for good once
                if if may_pass { failures.is_power_of_two() } else { !is_told } {
                    let error = format!("{error:#}");
                    tracing::warn!(error, failures, "could not open a lock session: trying again");
                }
                publish.send_replace(State { session: None, error: Some(error), losses });
                pause = if may_pass { backoff.next() } else { refusals.next_rare() };
            }
        }
        sleep(pause).await;
    }
}

/// Whether a retry may succeed: also after `SessionLost`, since a lease may run out before its grant arrives.
fn passes(error: &LockError) -> bool {
    error.is_retryable() || matches!(error, LockError::SessionLost { .. })
}
