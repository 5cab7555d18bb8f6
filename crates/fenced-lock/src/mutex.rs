//! A lock by its name.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use super::acquire::acquire;
use super::error::MAX_NAME_LENGTH_BYTES;
use super::{
    GrantToken, Guard, LockError, Owner, PutMode, QueueEntry, Session, SessionKeeper, Token,
};

/// A lock, known to all processes by its name, which is 1 to 256 bytes without control characters. Names are compared byte by
/// byte: `a`, `a/` and `/a` are three locks, as they are to etcd's own tools. Waiters are served in the order in which they
/// queued, across all processes.
///
/// The methods without an owner cannot tell who calls: a task that holds the lock and calls [`lock`](Self::lock) waits
/// for ever, as with [`tokio::sync::Mutex`]. The methods with an [`Owner`] let the owner in again, without a request:
///
/// ```
/// use fenced_lock::{LockError, Mutex, Owner};
///
/// async fn outer(mutex: &Mutex) -> Result<(), LockError> {
///     let mut owner = Owner::new();
///     let guard = mutex.lock_as(&mut owner).await?;
///     inner(mutex, &mut owner).await?;
///     guard.unlock().await
/// }
///
/// async fn inner(mutex: &Mutex, owner: &mut Owner) -> Result<(), LockError> {
///     let _guard = mutex.lock_as(owner).await?;
///     Ok(())
/// }
/// ```
///
/// The mutex of a [`Session`] fails when the session is lost. The mutex of a [`SessionKeeper`] goes on in the next session, and
/// keeps the keeper's session open.
#[derive(Clone, Debug)]
pub struct Mutex<T: GrantToken = Token> {
    source: Source<T>,
    name: Arc<str>,
    standby: Option<Standby>,
}

/// The source of a mutex's session.
#[derive(Clone, Debug)]
pub(super) enum Source<T: GrantToken> {
    Session(Session<T>),
    Keeper(SessionKeeper<T>),
}

/// The note of standby claims, and the signal to them.
#[derive(Clone, Debug)]
pub(super) struct Standby {
    pub(super) note: Arc<str>,
    /// Tells the waiting claims to ask for a turn.
    pub(super) asks: watch::Sender<()>,
}

/// The standby of a claim, and the receiver of its signal.
pub(super) type Told = (Standby, watch::Receiver<()>);

impl Standby {
    /// The standby for one call, whose later claims use it too if the first is lost: none of them misses the signal.
    pub(super) fn told(&self) -> Told {
        (self.clone(), self.asks.subscribe())
    }
}

impl<T: GrantToken> Mutex<T> {
    pub(super) fn new(source: Source<T>, name: &str) -> Result<Self, LockError> {
        let valid = (1..=MAX_NAME_LENGTH_BYTES).contains(&name.len())
            && !name.chars().any(char::is_control);
        if !valid {
            return Err(LockError::InvalidName { name: name.to_owned() });
        }
        Ok(Self { source, name: name.into(), standby: None })
    }

    /// The same lock, for claims that stand by: they wait in the queue as all others do, and are granted in their order, but do
    /// not ask the holder for a turn. The holder is not [contended](Guard::is_contended) because of them, and keeps the lock for
    /// as long as it likes. When it is gone, the next claim in the queue takes over at once. This is for processes that let the
    /// holder do their work, and only want to succeed it.
    ///
    /// [`ask_for_turn`](Self::ask_for_turn) ends the standby of claims that wait. Later claims, also those of
    /// [`Guard::requeue`], stand by again.
    ///
    /// Each claim shows `note`, to [all who see the queue](QueueEntry::note) or [watch the holder](super::Backend::watch_holder):
    /// for example the address at which this process can be reached.
    ///
    /// Not every backend can tell such claims from others: see [`Promises::standby`](super::Promises::standby). With other
    /// backends they ask for a turn from the start.
    ///
    /// # Errors
    /// [`LockError::InvalidNote`], unless `note` has at most 256 bytes, of visible ASCII.
    pub fn standby(mut self, note: impl Into<Arc<str>>) -> Result<Self, LockError> {
        let note = note.into();
        if note.len() > MAX_NAME_LENGTH_BYTES || !note.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(LockError::InvalidNote { note: note.to_string() });
        }
        self.standby = Some(Standby { note, asks: watch::Sender::new(()) });
        Ok(self)
    }

    /// Makes the waiting claims of this mutex and its clones ask for a turn, if they [stand by](Self::standby). They keep their
    /// places. The request to the backend runs in the background, and is repeated until it succeeds.
    pub fn ask_for_turn(&self) {
        if let Some(standby) = &self.standby {
            standby.asks.send_replace(());
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the lock, however long it takes. In a session, it waits until the session is lost. The mutex of a keeper waits for a
    /// session, and makes another claim, if necessary in the next session, when its claim or session is lost.
    ///
    /// # Cancel safety
    /// A future that is dropped loses its place in the queue and leaves no claim behind. A grant that it would have got goes to
    /// the next in the queue. A future that is kept and not polled delays only those who wait for this lock: the lock is
    /// granted to the future in its turn, and then held until the future is dropped, or for [the longest
    /// hold](super::SessionOptions::hold_for).
    ///
    /// # Errors
    /// [`LockError::SessionLost`] when the session is lost, or the session or the keeper closed, also while waiting;
    /// [`LockError::Lost`] when the claim was deleted: call again. A keeper's mutex does so itself. [`LockError::Backend`] when
    /// the backend refuses. A request without an answer is repeated until it is answered or the session is lost.
    pub async fn lock(&self) -> Result<Guard<T>, LockError> {
        self.lock_as(&mut Owner::new()).await
    }

    /// Takes the lock for `owner`; at once and without a request if the owner holds it already. An owner that lost its hold
    /// queues again: the new guard has a larger token, and the old guards stay lost.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn lock_as(&self, owner: &mut Owner) -> Result<Guard<T>, LockError> {
        let told = self.standby.as_ref().map(Standby::told);
        match &self.source {
            Source::Session(session) => self.lock_in(session, owner, told).await,
            Source::Keeper(keeper) => keeper.lock_again(self, owner, told, None).await,
        }
    }

    /// Takes the lock in this session.
    pub(super) async fn lock_in(
        &self,
        session: &Session<T>,
        owner: &Owner,
        told: Option<Told>,
    ) -> Result<Guard<T>, LockError> {
        let asked_at = Instant::now();
        let lost = || LockError::Lost { name: Arc::clone(&self.name), after: asked_at.elapsed() };
        self.enter(session, owner, PutMode::AtEnd, told).await?.ok_or_else(lost)
    }

    /// Takes the lock if it is free; `None` if there is another claim. Right after a guard was dropped, the lock may still be
    /// held; after [`unlock`](Guard::unlock) it is not.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    ///
    /// # Errors
    /// As [`lock`](Self::lock), but a request without an answer fails and is not repeated.
    pub async fn try_lock(&self) -> Result<Option<Guard<T>>, LockError> {
        self.try_lock_as(&mut Owner::new()).await
    }

    /// Takes the lock for `owner` if it is free or the owner's.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock) and [`lock_as`](Self::lock_as).
    pub async fn try_lock_as(&self, owner: &mut Owner) -> Result<Option<Guard<T>>, LockError> {
        let told = self.standby.as_ref().map(Standby::told);
        self.enter(&self.session().await?, owner, PutMode::IfEmpty, told).await
    }

    /// Takes the lock, runs `work` and unlocks: see [`SessionKeeper::with`](super::SessionKeeper::with).
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock) and [`Guard::run`].
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and [`LockError::Lost`] if the hold was lost before the work ended.
    ///
    /// # Panics
    /// Outside of a tokio runtime with timers.
    pub async fn with<F: Future>(
        &self,
        work: impl FnOnce(Guard<T>) -> F,
    ) -> Result<F::Output, LockError> {
        self.lock().await?.with(work).await
    }

    /// The present queue, with the claims of all processes, the holder first.
    ///
    /// # Cancel safety
    /// Safe. A future that is dropped, or polled slowly or not again, delays nobody.
    ///
    /// # Errors
    /// [`LockError::Backend`].
    pub async fn queue(&self) -> Result<Vec<QueueEntry>, LockError> {
        Ok(self.session().await?.inner.backend.queue(&self.name).await?)
    }

    /// The holder of the lock, in any process; `None` if the lock is free. Fails if the backend can tell, without a claim, that
    /// it would refuse a claim for lack of permission or room.
    ///
    /// # Cancel safety
    /// As [`queue`](Self::queue).
    ///
    /// # Errors
    /// [`LockError::Backend`].
    pub async fn probe(&self) -> Result<Option<QueueEntry>, LockError> {
        Ok(self.session().await?.inner.backend.probe(&self.name).await?)
    }

    /// The session. The mutex of a keeper waits for one to be opened.
    async fn session(&self) -> Result<Session<T>, LockError> {
        match &self.source {
            Source::Session(session) => Ok(session.clone()),
            Source::Keeper(keeper) => keeper.session().await,
        }
    }

    async fn enter(
        &self,
        session: &Session<T>,
        owner: &Owner,
        mode: PutMode,
        told: Option<Told>,
    ) -> Result<Option<Guard<T>>, LockError> {
        let current = session.inner.hold_of(&self.name);
        // a lost hold does not count, though it is known for as long as one of its guards lives
        let current = current.filter(|hold| hold.owner == owner.id && !hold.is_lost());
        // another task may just have dropped the last guard
        if let Some(hold) = current
            && hold.enter()?
        {
            return Ok(Some(Guard::new(hold, session.clone())));
        }
        acquire(session, &self.name, owner.id, mode, told).await
    }
}
