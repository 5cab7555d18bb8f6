//! Always a live session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Backend, GrantToken, LockError, LostReason, Session, SessionOptions, Token};

/// How long to wait before a session is opened again.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Opens a session, and the next one whenever it is lost, for the life of a service. Failures are logged with `tracing`,
/// and told by [`latest_error`](Self::latest_error). After an outage, the claims of the lost session stand until its lease
/// ends.
///
/// What was held in a lost session stays lost. Its holders find out through their guards, and lock again in the
/// new session:
///
/// ```
/// use fenced_lock::{Guard, LockError, SessionKeeper};
///
/// /// Takes the lock, in the next session if one is lost meanwhile. Ends when the keeper is closed.
/// async fn lock(sessions: &SessionKeeper, name: &str) -> Result<Guard, LockError> {
///     loop {
///         match sessions.session().await?.mutex(name)?.lock().await {
///             Err(LockError::Lost | LockError::SessionLost { .. }) => {}
///             locked => return locked,
///         }
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct SessionKeeper<T: GrantToken = Token> {
    state: watch::Receiver<State<T>>,
    stop: CancellationToken,
    losses: Arc<AtomicU64>,
}

/// What the keeper's task has got so far. The task has stopped when the channel is closed.
#[derive(Clone, Debug)]
enum State<T: GrantToken> {
    /// No session, and why the latest attempt to open one failed, if it has.
    Opening(Option<LockError>),
    Open(Session<T>),
}

impl<T: GrantToken> SessionKeeper<T> {
    /// Starts to open a session. A lock service that is not there yet is asked again, twice a second
    /// at the most.
    ///
    /// # Panics
    /// Outside of a tokio runtime, with a backend that has none of its own.
    pub fn start(backend: Arc<dyn Backend<Token = T>>, options: SessionOptions) -> Self {
        let (publish, state) = watch::channel(State::Opening(None));
        let stop = CancellationToken::new();
        let runtime = backend.runtime().unwrap_or_else(Handle::current);
        let losses = Arc::default();
        runtime.spawn(keep_open(backend, options, publish, stop.clone(), Arc::clone(&losses)));
        Self { state, stop, losses }
    }

    /// The session, waiting for one to be opened. Bound the wait with a timeout: it lasts for as
    /// long as the lock service is away.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// # Errors
    /// [`LockError::SessionLost`] once the keeper was closed; [`LockError::Backend`] if a session was
    /// refused for a reason that waiting does not mend.
    pub async fn session(&self) -> Result<Session<T>, LockError> {
        // the session that is being closed still looks alive while it drains
        if self.stop.is_cancelled() {
            return Err(LockError::SessionLost { reason: LostReason::Closed });
        }
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| match state {
            State::Opening(failed) => failed.as_ref().is_some_and(|error| !passes(error)),
            State::Open(session) => !session.is_lost(),
        });
        match settled.await.as_deref() {
            Ok(State::Open(session)) => Ok(session.clone()),
            Ok(State::Opening(Some(error))) => Err(error.clone()),
            Ok(State::Opening(None)) | Err(_) => {
                Err(LockError::SessionLost { reason: LostReason::Closed })
            }
        }
    }

    /// The session, if one is open now.
    pub fn current(&self) -> Option<Session<T>> {
        match &*self.state.borrow() {
            State::Open(session) if !session.is_lost() => Some(session.clone()),
            _ => None,
        }
    }

    /// Why the latest attempt to open a session failed, until one succeeds.
    pub fn latest_error(&self) -> Option<LockError> {
        match &*self.state.borrow() {
            State::Opening(failed) => failed.clone(),
            State::Open(_) => None,
        }
    }

    /// How many sessions were lost so far; one that was closed is not.
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// Opens no more sessions and closes the one that is open, see [`Session::close`].
    ///
    /// # Cancel safety
    /// When the future is dropped, closing goes on in the background.
    pub async fn close(&self) {
        self.stop.cancel();
        let mut state = self.state.clone();
        while state.changed().await.is_ok() {}
    }
}

/// Keeps a session open until `stop`, or until the last keeper was dropped.
async fn keep_open<T: GrantToken>(
    backend: Arc<dyn Backend<Token = T>>,
    options: SessionOptions,
    publish: watch::Sender<State<T>>,
    stop: CancellationToken,
    losses: Arc<AtomicU64>,
) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = publish.closed() => {}
        () = open_again(backend, options, &publish, &losses) => {}
    }
    if let State::Open(session) = publish.send_replace(State::Opening(None))
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
    losses: &AtomicU64,
) {
    let mut pause = SHORTEST_PAUSE;
    let mut failures: u64 = 0;
    loop {
        match Session::open(Arc::clone(&backend), options.clone()).await {
            Ok(session) => {
                failures = 0;
                let opened_at = Instant::now();
                publish.send_replace(State::Open(session.clone()));
                let reason = session.lost().await;
                if reason != LostReason::Closed {
                    losses.fetch_add(1, Ordering::Relaxed);
                }
                tracing::warn!(%reason, "lost the lock session: opening another one");
                publish.send_replace(State::Opening(None));
                // sessions that are lost as soon as they are opened do not follow each other at once
                if opened_at.elapsed() >= options.ttl {
                    pause = SHORTEST_PAUSE;
                    continue;
                }
            }
            Err(error) => {
                failures += 1;
                warn_of(&error, failures);
                publish.send_replace(State::Opening(Some(error)));
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Whether waiting may help: also against a lease that had run out when it was granted.
fn passes(error: &LockError) -> bool {
    error.is_retryable() || matches!(error, LockError::SessionLost { .. })
}

/// Warns of the first failure in a row, the second, the fourth and so on: an outage may last for hours.
fn warn_of(error: &LockError, failures: u64) {
    if failures.is_power_of_two() {
        let error = format!("{error:#}");
        tracing::warn!(error, failures, "could not open a lock session: trying again");
    }
}
