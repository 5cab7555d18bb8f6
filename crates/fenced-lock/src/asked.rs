//! The engine of the services that are asked where a claim stands.
//!
//! [`Waiters`] is its state, without any request. A service supplies requests ([`Asked`]); this driver sends them, notes
//! what is said, and asks for each claim that waits until it does not wait any more.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use super::own_thread::OwnThread;
use super::random::random_id;
use super::waiters::{Answer, Waiters};
use super::{
    Backend, BackendError, BackendErrorKind, BackendFuture, Claim, ClaimStatus, ClusterId,
    GrantToken, Lease, Promises, QueueEntry, Released, Ticket,
};

/// How to put a claim into its queue.
#[derive(Clone, Copy, Debug)]
pub enum How<'a> {
    /// At the end.
    Wait,
    /// Only if the queue is empty.
    Try,
    /// At the end, after taking out this claim.
    After(&'a Claim),
}

/// The requests of a service that is asked where a claim stands. It notes in its [`Waiters`] what it hears by itself, and
/// whether others wait behind a claim that holds.
pub trait Asked: Send + Sync + 'static {
    /// What a grant carries.
    type Token: GrantToken;

    /// What it promises.
    const PROMISES: Promises;

    /// The claims of this process.
    fn waiters(&self) -> &Waiters<Self::Token>;

    /// Grants a lease with this id.
    fn open(&self, id: i64, ttl: Duration) -> impl Future<Output = Answered<ClusterId>> + Send;

    /// Renews a lease. Says of each of these claims whether it still holds.
    fn renew(
        &self,
        lease: Lease,
        held: &[Claim],
    ) -> impl Future<Output = Answered<Vec<bool>>> + Send;

    /// Revokes a lease, on which there are these claims.
    fn close(&self, lease: Lease, claims: Vec<Claim>) -> impl Future<Output = Answered<()>> + Send;

    /// Puts a claim into its queue, once. `None` if it is not put.
    fn put(
        &self,
        claim: &Claim,
        how: How<'_>,
    ) -> impl Future<Output = Answered<Option<Answer<Self::Token>>>> + Send;

    /// Where a claim stands.
    fn ask(&self, claim: &Claim) -> impl Future<Output = Answered<Answer<Self::Token>>> + Send;

    /// Takes a claim out of its queue.
    fn release(&self, claim: &Claim) -> impl Future<Output = Answered<Released>> + Send;

    /// The first claims in a queue.
    fn queue(
        &self,
        name: &str,
        most: u32,
    ) -> impl Future<Output = Answered<Vec<QueueEntry>>> + Send;
}

/// What comes of a request.
pub(crate) type Answered<T> = Result<T, BackendError>;

/// Drives an [`Asked`] service, on a thread of its own.
pub struct Driver<A> {
    service: Arc<A>,
    runtime: OwnThread,
}

impl<A: Asked> Driver<A> {
    /// Starts the thread, and makes the service.
    pub(crate) fn start(
        thread: &str,
        make: impl FnOnce(&Handle, &Weak<A>) -> A,
    ) -> Result<Self, BackendError> {
        let runtime = OwnThread::start(thread)?;
        let service = Arc::new_cyclic(|service| make(&runtime, service));
        Ok(Self { service, runtime })
    }

    async fn open(&self, ttl: Duration) -> Result<Lease, BackendError> {
        let (id, waiters) = (random_id(), self.service.waiters());
        // first: what is heard of the lease meanwhile is heard by somebody
        waiters.leases().insert(id, ttl);
        let opened = self.service.open(id, ttl).await;
        if opened.is_err() {
            waiters.leases().remove(&id);
        }
        Ok(Lease { id, ttl, cluster: opened? })
    }

    async fn renew(&self, lease: Lease) -> Result<Duration, BackendError> {
        // those that come to hold while the service is asked are not missing
        let held = self.service.waiters().holding(lease.id);
        let kept = self.service.renew(lease, &held).await?;
        for (claim, _) in held.iter().zip(kept).filter(|(_, is_kept)| !is_kept) {
            self.service.waiters().note(claim, ClaimStatus::Gone);
        }
        Ok(lease.ttl)
    }

    async fn close(&self, lease: Lease) -> Result<(), BackendError> {
        let waiters = self.service.waiters();
        waiters.leases().remove(&lease.id);
        let claims = waiters.on_lease(lease.id);
        for claim in &claims {
            waiters.note(claim, ClaimStatus::Gone);
        }
        self.service.close(lease, claims).await
    }

    async fn put(
        &self,
        claim: &Claim,
        how: How<'_>,
    ) -> Result<Option<Ticket<A::Token>>, BackendError> {
        let waiters = self.service.waiters();
        let ticket = waiters.expect(claim);
        let answer = self.service.put(claim, how).await;
        if let (Ok(_), How::After(held)) = (&answer, how) {
            waiters.note(held, ClaimStatus::Gone);
        }
        match answer {
            Ok(Some(answer)) if answer.status == ClaimStatus::Waiting => {
                let (service, claim) = (Arc::clone(&self.service), claim.clone());
                self.runtime.spawn(async move {
                    service
                        .waiters()
                        .watch(&claim, answer, async || service.ask(&claim).await)
                        .await;
                });
                Ok(Some(ticket))
            }
            Ok(answer) => {
                let status = answer.map_or(ClaimStatus::Gone, |answer| answer.status);
                waiters.note(claim, status);
                Ok((status != ClaimStatus::Gone).then_some(ticket))
            }
            // it may be there
            Err(error) if error.kind == BackendErrorKind::Transient => Err(error),
            Err(error) => {
                waiters.note(claim, ClaimStatus::Gone);
                Err(error)
            }
        }
    }

    async fn enqueue(&self, claim: &Claim) -> Result<Ticket<A::Token>, BackendError> {
        let gone = || BackendError::new(BackendErrorKind::Transient, "the claim is gone");
        self.put(claim, How::Wait).await?.ok_or_else(gone)
    }

    async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
        let released = self.service.release(claim).await?;
        self.service.waiters().note(claim, ClaimStatus::Gone);
        Ok(released)
    }
}

/// A backend on an [`Asked`] service.
pub trait AskedBackend: Send + Sync + 'static {
    /// The service.
    type Service: Asked;

    /// What drives it.
    fn driver(&self) -> &Driver<Self::Service>;
}

impl<B: AskedBackend> Backend for B {
    type Token = <B::Service as Asked>::Token;

    fn promises(&self) -> Promises {
        B::Service::PROMISES
    }

    fn runtime(&self) -> Option<Handle> {
        Some(self.driver().runtime.clone())
    }

    fn open(&self, ttl: Duration) -> BackendFuture<'_, Lease> {
        Box::pin(self.driver().open(ttl))
    }

    fn renew(&self, lease: Lease) -> BackendFuture<'_, Duration> {
        Box::pin(self.driver().renew(lease))
    }

    fn close(&self, lease: Lease) -> BackendFuture<'_, ()> {
        Box::pin(self.driver().close(lease))
    }

    fn enqueue<'a>(&'a self, claim: &'a Claim) -> BackendFuture<'a, Ticket<Self::Token>> {
        Box::pin(self.driver().enqueue(claim))
    }

    fn try_enqueue<'a>(
        &'a self,
        claim: &'a Claim,
    ) -> BackendFuture<'a, Option<Ticket<Self::Token>>> {
        Box::pin(self.driver().put(claim, How::Try))
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> BackendFuture<'a, Released> {
        Box::pin(self.driver().release(claim))
    }

    fn hand_over<'a>(
        &'a self,
        held: &'a Claim,
        next: &'a Claim,
    ) -> BackendFuture<'a, Option<Ticket<Self::Token>>> {
        Box::pin(self.driver().put(next, How::After(held)))
    }

    fn queue<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Vec<QueueEntry>> {
        Box::pin(self.driver().service.queue(name, u32::MAX))
    }

    fn probe<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Option<QueueEntry>> {
        Box::pin(async move { Ok(self.driver().service.queue(name, 1).await?.into_iter().next()) })
    }
}

impl<A: Asked> fmt::Debug for Driver<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let claims = self.service.waiters().count();
        f.debug_struct("Driver").field("claims", &claims).finish_non_exhaustive()
    }
}
