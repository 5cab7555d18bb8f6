//! The proof of a hold.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument as _;

use super::acquire::acquire;
use super::chaos::Safeguard;
use super::hold::Hold;
use super::mutex::Standby;
use super::{GrantToken, LockError, LostReason, PutMode, Released, Session, Token};

/// Proof that its owner holds a lock; the lock is released when the owner's last guard is dropped.
///
/// It is not `Clone`: each guard stands for one entry, and only [`reenter`](Self::reenter) makes another one. Only a guard can
/// unlock, and only once:
///
/// ```compile_fail,E0382
/// # async fn example(guard: fenced_lock::Guard) {
/// guard.unlock().await;
/// guard.unlock().await;
/// # }
/// ```
///
/// A guard does not prevent the loss of the lock. After a loss (see [`lost`](Self::lost)) the guard still exists, another process
/// may hold the lock, and a paused process cannot notice the loss. Send the [`token`](Self::token) with every write to the data
/// that the lock protects, and let the store refuse a smaller token.
///
/// Dropping a guard never blocks. The session releases the lock in the background, and repeats the release until it succeeds or a
/// TTL has passed; [`unlock`](Self::unlock) waits for it. Right after a drop, [`try_lock`](super::Mutex::try_lock) may find the
/// lock still taken. A process that ends right after a drop leaves the claim until its lease ends, unless it first closes the
/// keeper or the [`Session`].
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard<T: GrantToken = Token> {
    hold: Arc<Hold<T>>,
    session: Session<T>,
    /// Whether this guard still has an entry to give back.
    armed: bool,
}

impl<T: GrantToken> Guard<T> {
    pub(super) fn new(hold: Arc<Hold<T>>, session: Session<T>) -> Self {
        Self { hold, session, armed: true }
    }

    /// The fencing token of this tenure. A re-entered guard has the same one; a later grant of the
    /// same name has a larger one. [`Unfenced`](super::Unfenced) for a lock that has no tokens.
    pub fn token(&self) -> T {
        self.hold.token
    }

    /// The claim's key in the lock service. In etcd the key exists, with the [token](Self::token)'s number as its
    /// `create_revision`, exactly as long as the lock is held. A transaction that compares that revision changes data in etcd
    /// only while the lock is held:
    ///
    /// ```no_run
    /// use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
    ///
    /// # async fn example(guard: fenced_lock::Guard) -> Result<(), etcd_client::Error> {
    /// let mut client = Client::connect(["http://127.0.0.1:2379"], None).await?;
    /// let revision = guard.token().revision();
    /// let is_held = Compare::create_revision(guard.key(), CompareOp::Equal, revision);
    /// let txn = Txn::new().when([is_held]).and_then([TxnOp::put("leader", "app-1", None)]);
    /// if !client.txn(txn).await?.succeeded() {
    ///     println!("the lock is lost, and nothing was written");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn key(&self) -> String {
        self.hold.claim.key()
    }

    /// The duration of the request that put the claim into the queue, or that handed over to it. If the backend pushes grants, a
    /// handover takes about as long: half of it for the release, half for the grant.
    pub fn enqueued_in(&self) -> Duration {
        self.hold.enqueued_in
    }

    /// The time at which the hold is lost if no further renewal of the lease succeeds. Each renewal moves it. It is not in the
    /// future if the hold is known to be lost.
    pub fn valid_until(&self) -> Instant {
        self.hold.valid_until()
    }

    /// The lock's name.
    pub fn name(&self) -> &str {
        &self.hold.claim.name
    }

    /// Another guard of the same tenure, without a request.
    ///
    /// # Errors
    /// [`LockError::Lost`].
    pub fn reenter(&self) -> Result<Self, LockError> {
        // `false` is impossible: this guard has an entry
        self.hold.enter()?;
        Ok(Self::new(Arc::clone(&self.hold), self.session.clone()))
    }

    /// Whether the hold is known to be lost. `false` says nothing about the time after the call: see [the type](Self).
    pub fn is_lost(&self) -> bool {
        self.hold.is_lost()
    }

    /// Waits until the hold is lost: the lease was not renewed in time or is gone, the session was closed, or the claim was
    /// deleted.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// # Panics
    /// Outside of a tokio runtime with timers.
    pub async fn lost(&self) {
        self.hold.lost().await;
    }

    /// Runs `future`, in the caller's task, as long as the lock is held.
    ///
    /// # Cancel safety
    /// When the hold is lost, `future` is dropped at the point where it waits. Tasks that it has spawned go on.
    ///
    /// # Errors
    /// [`LockError::Lost`] if the hold was lost before `future` ended.
    ///
    /// # Panics
    /// Outside of a tokio runtime with timers.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output, LockError> {
        let hold = tracing::debug_span!("hold", name = self.name(), token = ?self.token());
        tokio::select! {
            biased;
            () = self.lost() => Err(self.hold.loss()),
            output = future.instrument(hold) => Ok(output),
        }
    }

    /// Runs `work` with another guard of this tenure, and unlocks. See [`SessionKeeper::with`](super::SessionKeeper::with).
    pub(super) async fn with<F: Future>(
        self,
        work: impl FnOnce(Self) -> F,
    ) -> Result<F::Output, LockError> {
        let done = self.run(work(self.reenter()?)).await?;
        match self.unlock().await {
            // the hold may have been lost before the work ended
            Err(
                error @ (LockError::Lost { .. }
                | LockError::SessionLost { reason: LostReason::Revoked }),
            ) => Err(error),
            // the claim ends later, or ended while the service did not answer the release
            _ => Ok(done),
        }
    }

    /// Whether another claim waits for this lock and asks for a turn, as far as this process knows; `true` if it does not know.
    /// Makes no request. Claims that [stand by](super::Mutex::standby) do not ask.
    pub fn is_contended(&self) -> bool {
        *self.hold.contended.borrow()
    }

    /// Waits until another claim asks for a turn, as far as this process knows: see [`is_contended`](Self::is_contended).
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn contended(&self) {
        // an error means that the backend forgot the claim
        drop(self.hold.contended.clone().wait_for(|contended| *contended).await);
    }

    /// Gives this entry back. If it was the last one, waits until the lock is released. `Ok` means that the claim is gone: this
    /// release deleted it, or an earlier one whose answer was lost. If a member of the service did not answer, `Ok` can also mean
    /// that an operator deleted the claim meanwhile.
    ///
    /// # Cancel safety
    /// When the future is dropped, the release goes on in the background.
    ///
    /// # Errors
    /// [`LockError::Lost`] if the hold was lost before: another holder may have changed what the lock protects;
    /// [`LockError::SessionLost`] if its session was lost meanwhile.
    /// [`LockError::Backend`] or [`LockError::SessionLost`] if the release did not succeed within a TTL. The claim
    /// then ends with its lease, or as soon as a backend that refused the release permits it.
    pub async fn unlock(mut self) -> Result<(), LockError> {
        self.armed = false;
        let ends = self.hold.exit();
        // after the exit, since the longest hold may have ended meanwhile
        let was_lost = self.hold.is_lost();
        let mut released = Ok(Released::Done);
        if ends {
            let (inner, claim) = (Arc::clone(&self.hold.inner), self.hold.claim.clone());
            // a task of the session, which goes on when the caller drops the future
            let release = async move { inner.release(&claim).await };
            let release = self.hold.inner.spawn_tracked(release);
            // an error means that the runtime has ended, and the lease then ends by itself
            released = release.await.unwrap_or_else(|_| Err(self.hold.loss()));
        }
        if was_lost || released? == Released::Gone { Err(self.hold.loss()) } else { Ok(()) }
    }

    /// Gives the next claim its turn: releases the lock and queues for it again, in one step if the backend can do that, then
    /// waits for the next grant, which has a new token. If the owner has other guards of this tenure, it keeps the lock, and gets
    /// this guard back at once. If the claim [stood by](super::Mutex::standby) before it was granted, the next claim stands by,
    /// too.
    ///
    /// # Cancel safety
    /// When the future is dropped, the lock is released and the new claim withdrawn.
    ///
    /// # Errors
    /// As [`Mutex::lock`](super::Mutex::lock), and [`LockError::Lost`] if the hold was lost before.
    pub async fn requeue(mut self) -> Result<Self, LockError> {
        if !self.hold.exit_if_last()? {
            return Ok(self);
        }
        self.armed = false;
        let (owner, name) = (self.hold.owner, &self.hold.claim.name);
        let mut mode = PutMode::After(self.hold.claim.clone());
        if !Safeguard::Handover.is_on() {
            self.hold.inner.release(&self.hold.claim).await?;
            mode = PutMode::AtEnd;
        }
        let standby = self.hold.standby.as_ref().map(Standby::told);
        acquire(&self.session, name, owner, mode, standby).await?.ok_or_else(|| self.hold.loss())
    }
}

impl<T: GrantToken> Drop for Guard<T> {
    fn drop(&mut self) {
        if self.armed && self.hold.exit() {
            self.hold.inner.spawn_release(self.hold.claim.clone(), None);
        }
    }
}

impl<T: GrantToken> std::fmt::Debug for Guard<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.name())
            .field("token", &self.token())
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}
