//! The interface of a lock service.

use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::{BackendError, Claim, GrantToken, Lease, ObservedClaim, Promises, QueueEntry, Ticket};

/// How to put a claim into its queue.
#[derive(Clone, Debug)]
pub enum PutMode {
    /// At the end.
    AtEnd,
    /// Only if the queue is empty.
    IfEmpty,
    /// At the end, after removing this claim of the same name. If that claim is gone, puts nothing. The service does both in one
    /// step if it can. If the session repeats the request after an error of the kind `Transient`, it takes `None` to mean that
    /// the claim was removed, and puts the new one at the end.
    After(Claim),
}

/// The outcome of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// This request took the claim out of its queue.
    Done,
    /// The claim was gone before the request.
    Gone,
    /// The claim is gone. An earlier request without an answer may have taken it out.
    Unknown,
}

/// A lock service: a queue of claims for each name, in an order that all its clients agree on, and
/// leases that remove the claims of a dead client.
///
/// The trait is narrow on purpose: the [`Session`](super::Session) handles owners, re-entry, guards, cancellation, retries and
/// the local deadline, for every backend. Taking a lock has two steps, [`put`](Self::put) and the wait for [`Ticket::status`],
/// which differ when the caller goes away. The wait can be dropped at any time. A put that was sent must run to its end:
/// otherwise the claim could appear after it was withdrawn.
///
/// Every request must end in bounded time. Each may be repeated: the repetition finds the effect of the first one. Futures of
/// `open`, `renew`, `ask_for_turn`, `queue` and `close` may be dropped at any point.
///
/// No future may hold anything that other requests need, such as a permit or a connection that it makes: its caller may keep the
/// future without polling it. The requests of this crate's backends run in tasks of their own, see [`OnThread`](super::OnThread).
///
/// [`MemoryBackend`](super::MemoryBackend) is the example to follow; for a service that must be asked where a claim stands, see
/// the example in [`asked`](super::asked). A backend may also wrap another one:
///
/// ```
/// use std::time::Duration;
/// use fenced_lock::{
///     Backend, BackendError, Claim, Lease, ObservedClaim, Promises, PutMode, QueueEntry, Released, Ticket,
///     async_trait,
/// };
/// use tokio::runtime::Handle;
/// use tokio::sync::watch;
///
/// /// The locks of one tenant: each name stands below the tenant's.
/// struct Tenant<B> {
///     locks: B,
///     tenant: &'static str,
/// }
///
/// impl<B> Tenant<B> {
///     fn name(&self, name: &str) -> String {
///         format!("{}/{name}", self.tenant)
///     }
///
///     fn claim(&self, claim: &Claim) -> Claim {
///         Claim { name: self.name(&claim.name).into(), ..claim.clone() }
///     }
/// }
///
/// #[async_trait]
/// impl<B: Backend> Backend for Tenant<B> {
///     type Token = B::Token;
///
///     fn promises(&self) -> Promises {
///         self.locks.promises()
///     }
///
///     fn runtime(&self) -> Option<Handle> {
///         self.locks.runtime()
///     }
///
///     async fn open(&self, ttl: Duration) -> Result<Lease, BackendError> {
///         self.locks.open(ttl).await
///     }
///
///     async fn renew(&self, lease: Lease) -> Result<Duration, BackendError> {
///         self.locks.renew(lease).await
///     }
///
///     async fn close(&self, lease: Lease) -> Result<(), BackendError> {
///         self.locks.close(lease).await
///     }
///
///     async fn put(
///         &self,
///         claim: &Claim,
///         mode: &PutMode,
///     ) -> Result<Option<Ticket<B::Token>>, BackendError> {
///         let mode = match mode {
///             PutMode::After(held) => PutMode::After(self.claim(held)),
///             other => other.clone(),
///         };
///         self.locks.put(&self.claim(claim), &mode).await
///     }
///
///     async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
///         self.locks.release(&self.claim(claim)).await
///     }
///
///     async fn ask_for_turn(&self, claim: &Claim) -> Result<(), BackendError> {
///         self.locks.ask_for_turn(&self.claim(claim)).await
///     }
///
///     async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, BackendError> {
///         self.locks.queue(&self.name(name)).await
///     }
///
///     fn watch_holder(&self, name: &str) -> Option<watch::Receiver<Option<ObservedClaim>>> {
///         self.locks.watch_holder(&self.name(name))
///     }
///
///     async fn probe(&self, name: &str) -> Result<Option<QueueEntry>, BackendError> {
///         self.locks.probe(&self.name(name)).await
///     }
/// }
/// ```
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// The type that a grant carries: [`Token`](super::Token), or [`Unfenced`](super::Unfenced).
    type Token: GrantToken;

    /// The promises of this service.
    fn promises(&self) -> Promises;

    /// The runtime on which a session should run its tasks; `None` for the one that opens it. A backend with a thread of its own
    /// renews leases also while the service's runtime is busy.
    fn runtime(&self) -> Option<Handle> {
        None
    }

    /// Grants a lease of at least `ttl`. No two leases have the same id.
    async fn open(&self, ttl: Duration) -> Result<Lease, BackendError>;

    /// Renews the lease. Returns how long it lives from now on.
    async fn renew(&self, lease: Lease) -> Result<Duration, BackendError>;

    /// Revokes the lease and ends its claims.
    async fn close(&self, lease: Lease) -> Result<(), BackendError>;

    /// Puts the claim into its name's queue, in this `mode`. Returns `None` if `mode` forbids it, or if the claim is gone again.
    /// After an error of the kind `Transient` the claim may be in the queue; after any other error it is not, unless an earlier
    /// request put it there.
    async fn put(
        &self,
        claim: &Claim,
        mode: &PutMode,
    ) -> Result<Option<Ticket<Self::Token>>, BackendError>;

    /// Takes the claim out of its queue, wherever it stands.
    async fn release(&self, claim: &Claim) -> Result<Released, BackendError>;

    /// Makes a [standby](Claim::standby) claim in its queue ask for a turn, from now on and at its place. Does not put a
    /// claim into the queue. The default is for a backend that does not [tell](Promises::standby) such claims from others. After
    /// an error other than `LeaseGone` the session asks again.
    async fn ask_for_turn(&self, _claim: &Claim) -> Result<(), BackendError> {
        Ok(())
    }

    /// Shows the holder of `name`, and each new one, as far as this process knows it. Makes no request: the backend's watch shows
    /// a new holder, and after an interruption the receiver keeps the old one until the watch is back. `None` in the receiver
    /// means that nobody holds, or that nothing is known yet. The queue is watched for as long as the receiver lives. The channel
    /// is closed when the backend is gone. While a holder is borrowed from the receiver, the backend cannot note another one, and all
    /// its requests wait.
    ///
    /// Returns `None` if the backend cannot do that, as the default does. `EtcdBackend` and
    /// [`MemoryBackend`](super::MemoryBackend) can. For other backends there is [`HolderWatch`](super::HolderWatch).
    fn watch_holder(&self, _name: &str) -> Option<watch::Receiver<Option<ObservedClaim>>> {
        None
    }

    /// The present queue of `name`, the holder first.
    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, BackendError>;

    /// The first claim in the queue of `name`. Fails if the backend knows that a claim would be refused.
    async fn probe(&self, name: &str) -> Result<Option<QueueEntry>, BackendError> {
        Ok(self.queue(name).await?.into_iter().next())
    }
}
