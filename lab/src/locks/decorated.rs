//! A lock service with an addition to its grants and releases: tokens that the store counts, or a fault point.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fenced_lock::{
    Backend, BackendError, Claim, GrantToken, Lease, ObservedClaim, Promises, PutMode, QueueEntry,
    Released, Ticket, Token,
};
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// The addition to a lock service.
pub trait Decoration<T: GrantToken>: Send + Sync + 'static {
    /// The ticket of a claim, made from the lock's own ticket.
    fn ticket(&self, claim: &Claim, ticket: Ticket<T>) -> Ticket;

    /// Called before a claim is released or handed over.
    fn before_release<'a>(&'a self, _claim: &'a Claim) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    fn promises(&self, of_the_lock: Promises) -> Promises {
        of_the_lock
    }

    fn lease(&self, of_the_lock: Lease) -> Lease {
        of_the_lock
    }
}

/// A lock service with an addition.
pub struct Decorated<T: GrantToken, D> {
    lock: Arc<dyn Backend<Token = T>>,
    decoration: D,
}

impl<T: GrantToken, D: Decoration<T>> Decorated<T, D> {
    pub(crate) fn with(lock: Arc<dyn Backend<Token = T>>, decoration: D) -> Self {
        Self { lock, decoration }
    }
}

#[async_trait]
impl<T: GrantToken, D: Decoration<T>> Backend for Decorated<T, D> {
    type Token = Token;

    fn promises(&self) -> Promises {
        self.decoration.promises(self.lock.promises())
    }

    async fn open(&self, ttl: Duration) -> Result<Lease, BackendError> {
        Ok(self.decoration.lease(self.lock.open(ttl).await?))
    }

    async fn put(&self, claim: &Claim, mode: &PutMode) -> Result<Option<Ticket>, BackendError> {
        if let PutMode::After(held) = mode {
            self.decoration.before_release(held).await;
        }
        let ticket = self.lock.put(claim, mode).await?;
        Ok(ticket.map(|ticket| self.decoration.ticket(claim, ticket)))
    }

    async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
        self.decoration.before_release(claim).await;
        self.lock.release(claim).await
    }

    // the lock's own methods

    fn runtime(&self) -> Option<Handle> {
        self.lock.runtime()
    }

    async fn renew(&self, lease: Lease) -> Result<Duration, BackendError> {
        self.lock.renew(lease).await
    }

    async fn close(&self, lease: Lease) -> Result<(), BackendError> {
        self.lock.close(lease).await
    }

    async fn ask_for_turn(&self, claim: &Claim) -> Result<(), BackendError> {
        self.lock.ask_for_turn(claim).await
    }

    fn watch_holder(&self, name: &str) -> Option<watch::Receiver<Option<ObservedClaim>>> {
        self.lock.watch_holder(name)
    }

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, BackendError> {
        self.lock.queue(name).await
    }

    async fn probe(&self, name: &str) -> Result<Option<QueueEntry>, BackendError> {
        self.lock.probe(name).await
    }
}
