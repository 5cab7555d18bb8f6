//! A lock service with a fault point at the release of a claim.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fenced_lock::{
    Backend, BackendFuture, Claim, ClaimStatus, Lease, Promises, QueueEntry, QueueSnapshot,
    Released, Ticket, Token,
};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::fault::{self, Point};
use crate::writer::Writer;

/// A lock service with [`Point::BeforeRelease`] before a claim is released or handed over. Only claims count under
/// which `writer` wrote: not those of waiters, nor that of a sale's start.
pub(crate) struct FaultyLock {
    lock: Arc<dyn Backend<Token = Token>>,
    writer: Arc<Writer>,
    /// Where each claim stands that was not released yet.
    claims: Mutex<HashMap<Claim, watch::Receiver<ClaimStatus>>>,
}

impl FaultyLock {
    pub(crate) fn new(lock: Arc<dyn Backend<Token = Token>>, writer: &Arc<Writer>) -> Self {
        Self { lock, writer: Arc::clone(writer), claims: Mutex::default() }
    }

    fn note(&self, claim: &Claim, ticket: Ticket) -> Ticket {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.insert(claim.clone(), ticket.status.clone());
        ticket
    }

    async fn before_release(&self, claim: &Claim) {
        let status = self.claims.lock().unwrap_or_else(PoisonError::into_inner).remove(claim);
        let status = status.map(|status| *status.borrow());
        if let Some(ClaimStatus::Granted(token)) = status
            && self.writer.has_written_under(token)
        {
            self.writer.tenures().until_now(token, false);
            fault::at(Point::BeforeRelease).await;
        }
    }
}

impl Backend for FaultyLock {
    type Token = Token;

    fn promises(&self) -> Promises {
        self.lock.promises()
    }

    fn enqueue<'a>(&'a self, claim: &'a Claim) -> BackendFuture<'a, Ticket> {
        Box::pin(async move { Ok(self.note(claim, self.lock.enqueue(claim).await?)) })
    }

    fn try_enqueue<'a>(&'a self, claim: &'a Claim) -> BackendFuture<'a, Option<Ticket>> {
        Box::pin(async move {
            let ticket = self.lock.try_enqueue(claim).await?;
            Ok(ticket.map(|ticket| self.note(claim, ticket)))
        })
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> BackendFuture<'a, Released> {
        Box::pin(async move {
            self.before_release(claim).await;
            self.lock.release(claim).await
        })
    }

    fn hand_over<'a>(
        &'a self,
        held: &'a Claim,
        next: &'a Claim,
    ) -> BackendFuture<'a, Option<Ticket>> {
        Box::pin(async move {
            self.before_release(held).await;
            let ticket = self.lock.hand_over(held, next).await?;
            Ok(ticket.map(|ticket| self.note(next, ticket)))
        })
    }

    // the rest as it is

    fn runtime(&self) -> Option<Handle> {
        self.lock.runtime()
    }

    fn open(&self, ttl: Duration) -> BackendFuture<'_, Lease> {
        self.lock.open(ttl)
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

    fn queue_snapshot(&self, name: &Arc<str>) -> Option<QueueSnapshot> {
        self.lock.queue_snapshot(name)
    }
}
