//! What a lock service must be able to do.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::runtime::Handle;

use super::{BackendError, Claim, GrantToken, Lease, Promises, QueueEntry, Ticket};

/// A future that a [`Backend`] returns; boxed, so that a session can use any backend without naming
/// its type.
pub type BackendFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send + 'a>>;

/// How to put a claim into its queue.
#[derive(Clone, Copy, Debug)]
pub enum PutMode<'a> {
    /// At the end.
    AtEnd,
    /// Only if the queue is empty.
    IfEmpty,
    /// At the end, after taking out this claim of the same name; nothing is done if that is not there. In one step if the
    /// service can. After an error of the kind `Transient`, the session takes `None` for a removal that was done, and
    /// puts the claim at the end.
    After(&'a Claim),
}

/// What became of a claim that was to be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// This request took it out of its queue.
    Done,
    /// It was gone before the request.
    Gone,
    /// It is gone. An earlier request, which was not answered, may have taken it out.
    Unknown,
}

/// A lock service: a queue of claims for each name, in an order that all its clients agree on, and
/// leases that remove the claims of a dead client.
///
/// The trait is narrow on purpose: the [`Session`](super::Session) handles owners, re-entry, guards,
/// cancellation, retries and the local deadline, for every backend. Taking a lock has two steps,
/// [`put`](Self::put) and the wait for [`Ticket::status`], because they differ when the caller goes
/// away. The wait can be dropped at any time. A put that was sent must come to its end, or a claim could
/// appear after it was withdrawn.
///
/// [`MemoryBackend`](super::MemoryBackend) is the example to follow.
///
/// Every request must end in bounded time. Each may be repeated: the repetition finds what the first one did.
/// Futures of `open`, `renew`, `queue` and `close` may be dropped at any point.
pub trait Backend: Send + Sync + 'static {
    /// What a grant carries: [`Token`](super::Token), or [`Unfenced`](super::Unfenced).
    type Token: GrantToken;

    /// What this service promises, and what it does not.
    fn promises(&self) -> Promises;

    /// The runtime on which a session should run its tasks; `None` for the one that opens it. A
    /// backend with a thread of its own keeps renewing while the service's runtime is busy.
    fn runtime(&self) -> Option<Handle> {
        None
    }

    /// Grants a lease of at least `ttl`. No two have the same id.
    fn open(&self, ttl: Duration) -> BackendFuture<'_, Lease>;

    /// Renews the lease and returns how long it lives from now on.
    fn renew(&self, lease: Lease) -> BackendFuture<'_, Duration>;

    /// Revokes the lease; its claims end.
    fn close(&self, lease: Lease) -> BackendFuture<'_, ()>;

    /// Puts the claim into its name's queue, as `mode` says. `None` if `mode` forbids it, or if the claim is not there any
    /// more: nothing is left of it. An error of the kind `Transient` leaves open whether it is there; after any other this
    /// request has not put it there.
    fn put<'a>(
        &'a self,
        claim: &'a Claim,
        mode: PutMode<'a>,
    ) -> BackendFuture<'a, Option<Ticket<Self::Token>>>;

    /// Takes the claim out of its queue, wherever it stands.
    fn release<'a>(&'a self, claim: &'a Claim) -> BackendFuture<'a, Released>;

    /// The queue of `name` as it stands now, the holder first.
    fn queue<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Vec<QueueEntry>>;

    /// The first claim in the queue of `name`. It fails where a claim would be refused, if the backend can find
    /// that out without a claim.
    fn probe<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Option<QueueEntry>> {
        Box::pin(async move { Ok(self.queue(name).await?.into_iter().next()) })
    }
}
