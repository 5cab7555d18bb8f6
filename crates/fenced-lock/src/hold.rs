//! One tenure: a granted claim and the entries of its owner.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::inner::SessionInner;
use super::mutex::Standby;
use super::owner::OwnerId;
use super::process::spawn_on;
use super::{Claim, ClaimStatus, GrantToken, LockError, Ticket, observe};

/// A granted claim. Guards count on it, and the last one to go releases it.
pub(super) struct Hold<T: GrantToken> {
    pub(super) inner: Arc<SessionInner<T>>,
    pub(super) claim: Claim,
    /// The standby of the claim, if it has one: a requeue claims in the same way.
    pub(super) standby: Option<Standby>,
    pub(super) token: T,
    pub(super) owner: OwnerId,
    /// How long the request took that queued the claim.
    pub(super) enqueued_in: Duration,
    began_at: Instant,
    /// The number of entries. The guard of each entry has a reference to this hold, so memory ends before the number overflows.
    entries: AtomicUsize,
    status: watch::Receiver<ClaimStatus<T>>,
    pub(super) contended: watch::Receiver<bool>,
    /// When the longest hold ends, if there is one.
    limit: Option<Instant>,
    /// The task that ends the hold at the limit.
    _ending: Option<AbortOnDropHandle<()>>,
}

impl<T: GrantToken> Hold<T> {
    /// Begins a tenure with one entry, and makes it known to the session for re-entry.
    pub(super) fn begin(
        inner: &Arc<SessionInner<T>>,
        claim: Claim,
        standby: Option<Standby>,
        owner: OwnerId,
        token: T,
        enqueued_in: Duration,
        Ticket { status, contended }: Ticket<T>,
    ) -> Arc<Self> {
        let limit = inner.hold_for.map(|limit| Instant::now() + limit);
        let hold = Arc::new_cyclic(|hold| Self {
            _ending: inner.hold_for.zip(limit).map(|(hold_for, lost_at)| {
                // a holder that looked at the clock just before has a little time to act on the loss
                let ends_at = lost_at + inner.margin.min(hold_for / 10);
                let end = Self::end_at(Weak::clone(hold), ends_at);
                AbortOnDropHandle::new(spawn_on(&inner.runtime, end))
            }),
            inner: Arc::clone(inner),
            claim,
            standby,
            token,
            owner,
            enqueued_in,
            began_at: Instant::now(),
            entries: AtomicUsize::new(1),
            status,
            contended,
            limit,
        });
        inner.add_hold(&hold);
        hold
    }

    /// Releases the claim at `ends_at`, even while guards exist.
    async fn end_at(hold: Weak<Self>, ends_at: Instant) {
        sleep_until(ends_at).await;
        if let Some(hold) = hold.upgrade()
            && hold.entries.swap(0, Ordering::AcqRel) > 0
        {
            tracing::warn!(claim = %hold.claim, "the longest hold is over: the claim is released");
            hold.ended();
            hold.inner.spawn_release(hold.claim.clone(), None);
        }
    }

    /// The time at which the hold is lost if no further renewal succeeds.
    pub(super) fn valid_until(&self) -> Instant {
        let deadline = self.inner.validity.deadline();
        let until = self.limit.map_or(deadline, |ends_at| deadline.min(ends_at));
        if self.is_lost() { until.min(Instant::now()) } else { until }
    }

    /// Counts one more entry of the same owner; `false` if the last entry was given back.
    pub(super) fn enter(&self) -> Result<bool, LockError> {
        if self.is_lost() {
            return Err(self.loss());
        }
        let one_more = |entries| if entries > 0 { Some(entries + 1) } else { None };
        let entered = self.entries.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        Ok(entered.is_ok())
    }

    /// Counts one entry less. `true` if it was the last one: the caller must then release the claim.
    pub(super) fn exit(self: &Arc<Self>) -> bool {
        // no entry is left once the longest hold is over
        let one_less = |entries| usize::checked_sub(entries, 1);
        let was_last =
            self.entries.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less) == Ok(1);
        if was_last {
            self.ended();
        }
        was_last
    }

    /// As [`exit`](Self::exit) if one entry is left; otherwise changes nothing. `true` if the caller must release the claim.
    pub(super) fn exit_if_last(self: &Arc<Self>) -> Result<bool, LockError> {
        if self.is_lost() {
            return Err(self.loss());
        }
        let left = self.entries.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire);
        if left.is_ok() {
            self.ended();
        }
        Ok(left.is_ok())
    }

    /// Notes that there is no entry any more.
    fn ended(self: &Arc<Self>) {
        self.inner.remove_hold(self);
        observe::ended(&self.claim, self.token, self.began_at.elapsed(), self.is_lost());
    }

    /// The error for a caller whose hold is lost.
    pub(super) fn loss(&self) -> LockError {
        LockError::Lost { name: Arc::clone(&self.claim.name), after: self.began_at.elapsed() }
    }

    pub(super) fn is_lost(&self) -> bool {
        *self.status.borrow() == ClaimStatus::Gone
            // the backend forgot the claim
            || self.status.has_changed().is_err()
            || self.inner.validity.lost_reason().is_some()
            || self.limit.is_some_and(|ends_at| Instant::now() >= ends_at)
    }

    pub(super) async fn lost(&self) {
        let mut status = self.status.clone();
        let limit = async {
            match self.limit {
                Some(ends_at) => sleep_until(ends_at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = limit => {}
            _ = self.inner.validity.lost() => {}
            // an error means that the backend forgot the claim, which is no longer in the queue
            _ = status.wait_for(|status| *status == ClaimStatus::Gone) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterId, MemoryBackend, Owner, Session, SessionOptions, Token};

    /// Goal: a hold whose last entry was given back cannot be entered or given back again; a hold that its backend forgot is
    /// lost.
    #[tokio::test(start_paused = true)]
    async fn the_last_entry_is_given_back_once() {
        let options = SessionOptions::new(Duration::from_secs(10));
        let session = Session::open(Arc::new(MemoryBackend::new()), options).await;
        let session = session.expect("it is in memory");
        let inner = &session.inner;
        let token = Token::new(ClusterId(1), 1);
        let (backend, status) = watch::channel(ClaimStatus::Granted(token));
        let ticket = Ticket { status, contended: watch::channel(false).1 };
        let (claim, owner) = (inner.new_claim(&"a".into(), None), Owner::new().id);
        let hold = Hold::begin(inner, claim, None, owner, token, Duration::ZERO, ticket);
        assert_eq!(hold.enter(), Ok(true));
        assert!(inner.hold_of("a").is_some());
        assert_eq!([(); 3].map(|()| hold.exit()), [false, true, false]);
        assert!(inner.hold_of("a").is_none(), "it is not kept for re-entry");
        assert_eq!(hold.enter(), Ok(false));
        drop(backend);
        assert!(hold.is_lost());
    }
}
