//! A lock service that does something more at its grants and its releases.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{
    Backend, BackendFuture, Claim, GrantToken, Lease, Promises, PutMode, QueueEntry, Released,
    Ticket, Token,
};
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

/// What is done more.
pub trait Decoration<T: GrantToken>: Send + Sync + 'static {
    /// The ticket for a claim that has this one at the lock.
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

/// A lock service with a decoration.
pub struct Decorated<T: GrantToken, D> {
    lock: Arc<dyn Backend<Token = T>>,
    decoration: D,
}

impl<T: GrantToken, D: Decoration<T>> Decorated<T, D> {
    pub(crate) fn with(lock: Arc<dyn Backend<Token = T>>, decoration: D) -> Self {
        Self { lock, decoration }
    }
}

impl<T: GrantToken, D: Decoration<T>> Backend for Decorated<T, D> {
    type Token = Token;

    fn promises(&self) -> Promises {
        self.decoration.promises(self.lock.promises())
    }

    fn open(&self, ttl: Duration) -> BackendFuture<'_, Lease> {
        Box::pin(async move { Ok(self.decoration.lease(self.lock.open(ttl).await?)) })
    }

    fn put<'a>(&'a self, claim: &'a Claim, mode: PutMode<'a>) -> BackendFuture<'a, Option<Ticket>> {
        Box::pin(async move {
            if let PutMode::After(held) = mode {
                self.decoration.before_release(held).await;
            }
            let ticket = self.lock.put(claim, mode).await?;
            Ok(ticket.map(|ticket| self.decoration.ticket(claim, ticket)))
        })
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> BackendFuture<'a, Released> {
        Box::pin(async move {
            self.decoration.before_release(claim).await;
            self.lock.release(claim).await
        })
    }

    // the rest as it is

    fn runtime(&self) -> Option<Handle> {
        self.lock.runtime()
    }

    fn renew(&self, lease: Lease) -> BackendFuture<'_, Duration> {
        self.lock.renew(lease)
    }

    fn close(&self, lease: Lease) -> BackendFuture<'_, ()> {
        self.lock.close(lease)
    }

    fn queue<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Vec<QueueEntry>> {
        self.lock.queue(name)
    }

    fn probe<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Option<QueueEntry>> {
        self.lock.probe(name)
    }
}
