//! The way from a call to a grant.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};
use tokio::time::{Instant, sleep};
use tracing::Instrument as _;

use super::backoff::Backoff;
use super::chaos::Safeguard;
use super::hold::Hold;
use super::inner::SessionInner;
use super::mutex::Told;
use super::owner::OwnerId;
use super::{
    BackendErrorKind, Claim, ClaimStatus, GrantToken, Guard, LockError, PutMode, Session, Ticket,
    observe,
};

/// Takes the lock. `None` if a try found it taken, or if the claim to hand over is gone.
///
/// A task of the session does the work. If the caller drops the future, the task goes on, and withdraws the claim or releases the
/// grant.
pub(super) async fn acquire<T: GrantToken>(
    session: &Session<T>,
    name: &Arc<str>,
    owner: OwnerId,
    mode: PutMode,
    standby: Option<Told>,
) -> Result<Option<Guard<T>>, LockError> {
    let inner = &session.inner;
    if let Err(error) = inner.check() {
        if let PutMode::After(held) = mode {
            inner.spawn_release(held, None);
        }
        return Err(error);
    }
    let waiting = tracing::debug_span!("lock", %name);
    let (reply, answer) = oneshot::channel();
    let claim = inner.new_claim(name, standby.as_ref().map(|(standby, _)| standby));
    let session = session.clone();
    let attempt =
        Attempt { session, claim, may_exist: false, owner, mode, standby, reply, under_way: None };
    inner.spawn_tracked(attempt.run().instrument(waiting));
    // without an answer, the runtime has dropped the task, since the runtime shuts down
    answer.await.unwrap_or_else(|_| Err(inner.ended()))
}

struct Attempt<T: GrantToken> {
    session: Session<T>,
    claim: Claim,
    /// Whether the claim may be in the queue.
    may_exist: bool,
    owner: OwnerId,
    mode: PutMode,
    /// The signal to ask for a turn, for a claim that stands by.
    standby: Option<Told>,
    reply: oneshot::Sender<Result<Option<Guard<T>>, LockError>>,
    /// Present until the claim's request is answered.
    under_way: Option<OwnedSemaphorePermit>,
}

impl<T: GrantToken> Attempt<T> {
    async fn run(mut self) {
        let inner = Arc::clone(self.inner());
        // only the loss of the lease may drop a request: see `Backend`
        let granted = tokio::select! {
            biased;
            granted = self.granted() => granted,
            reason = inner.validity.lost() => Err(LockError::SessionLost { reason }),
        };
        // a try that found the lock taken has put nothing into the queue
        let is_left = !Safeguard::ClaimCleanup.is_on() && self.reply.is_closed();
        if granted.is_err() && !is_left {
            if self.may_exist {
                inner.spawn_release(self.claim.clone(), self.under_way.take());
            }
            if let PutMode::After(held) = &self.mode {
                inner.spawn_release(held.clone(), None);
            }
        }
        // if the caller has dropped the future, this drops the guard, too, which releases the lock
        drop(self.reply.send(granted));
    }

    fn inner(&self) -> &Arc<SessionInner<T>> {
        &self.session.inner
    }

    async fn granted(&mut self) -> Result<Option<Guard<T>>, LockError> {
        let (inner, asked_at) = (Arc::clone(self.inner()), Instant::now());
        let Some((mut ticket, enqueued_in)) = self.enqueue().await? else { return Ok(None) };
        // if the caller has gone, the claim must be withdrawn, and counts as under way until then
        if !self.reply.is_closed() {
            self.under_way = None;
        }
        let (standby, asked) = self.standby.take().unzip();
        let asking = ask_for_turn(Arc::clone(&inner), self.claim.clone(), asked);
        let granted = async {
            tokio::select! {
                biased;
                // an error means that the backend forgot the claim, which is no longer in the queue
                reached = ticket.status.wait_for(|status| *status != ClaimStatus::Waiting) => {
                    reached.map_or(ClaimStatus::Gone, |status| *status)
                }
                never = asking => match never {},
            }
        };
        // a waiter waits here
        let reached = self.unless_over(granted).await?;
        inner.check()?;
        let ClaimStatus::Granted(token) = reached else {
            let (name, after) = (Arc::clone(&self.claim.name), asked_at.elapsed());
            return Err(LockError::Lost { name, after });
        };
        observe::granted(&self.claim, token, asked_at.elapsed());
        let claim = self.claim.clone();
        let hold = Hold::begin(&inner, claim, standby, self.owner, token, enqueued_in, ticket);
        Ok(Some(Guard::new(hold, self.session.clone())))
    }

    /// Puts the claim into the queue. Repeats a request without an answer while the caller waits, except for a try. Returns the
    /// ticket, and how long the answered request took; `None` if a try found the lock taken, or if the claim to hand over is
    /// gone.
    async fn enqueue(&mut self) -> Result<Option<(Ticket<T>, Duration)>, LockError> {
        let inner = Arc::clone(self.inner());
        if matches!(self.mode, PutMode::AtEnd) {
            let room = inner.room_for(&self.claim.name);
            // in the order of the calls; the semaphore is never closed
            self.under_way = self.unless_over(room.acquire_owned()).await?.ok();
        }
        let mut backoff = Backoff::default();
        loop {
            let asked_at = Instant::now();
            let may_have_existed = std::mem::replace(&mut self.may_exist, true);
            let put = inner.ask(async { inner.backend.put(&self.claim, &self.mode).await });
            let error = match put.await {
                // an earlier request without an answer may have released the claim to hand over
                Ok(None) if may_have_existed && matches!(self.mode, PutMode::After(_)) => {
                    self.mode = PutMode::AtEnd;
                    continue;
                }
                Ok(ticket) => return Ok(ticket.map(|ticket| (ticket, asked_at.elapsed()))),
                Err(error) => error,
            };
            if error.kind != BackendErrorKind::Transient && Safeguard::Denials.is_on() {
                self.may_exist = may_have_existed;
            }
            let is_repeated = error.kind == BackendErrorKind::Transient
                || error.kind == BackendErrorKind::Refused && !Safeguard::Refusals.is_on();
            if error.kind == BackendErrorKind::LeaseGone {
                return Err(inner.revoked());
            }
            if !is_repeated || matches!(self.mode, PutMode::IfEmpty) {
                return Err(error.into());
            }
            tracing::debug!(claim = %self.claim, ?error, "could not queue: trying again");
            self.unless_over(sleep(backoff.next())).await?;
        }
    }

    /// Waits, unless the session closes or the caller drops the future.
    async fn unless_over<A>(&mut self, wait: impl Future<Output = A>) -> Result<A, LockError> {
        let inner = Arc::clone(self.inner());
        tokio::select! {
            biased;
            waited = wait => Ok(waited),
            () = inner.closing.cancelled() => Err(inner.ended()),
            () = self.reply.closed() => Err(inner.ended()),
        }
    }
}

/// Waits for the signal to ask for a turn, and repeats the backend's request until it succeeds. Never ends.
async fn ask_for_turn<T: GrantToken>(
    inner: Arc<SessionInner<T>>,
    claim: Claim,
    told: Option<watch::Receiver<()>>,
) -> Infallible {
    // an error means that the mutex and all its clones are gone
    if let Some(mut told) = told
        && told.changed().await.is_ok()
    {
        let mut backoff = Backoff::default();
        while let Err(error) = inner.ask(async { inner.backend.ask_for_turn(&claim).await }).await {
            tracing::debug!(%claim, ?error, "could not ask for a turn: trying again");
            if error.kind == BackendErrorKind::LeaseGone {
                drop(inner.revoked());
                break;
            }
            // even a permanent refusal may pass, for example while a password is changed
            sleep(backoff.next()).await;
        }
    }
    std::future::pending().await
}
