//! etcd as a lock service, with a fault point at the release of a claim.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fenced_lock::{
    Backend, BackendFuture, Claim, EtcdBackend, Lease, QueueEntry, QueueSnapshot, Released, Ticket,
    Token,
};
use tokio::runtime::Handle;

use crate::fault::{self, Point};
use crate::writer::Writer;

/// etcd, with [`Point::BeforeRelease`] before a claim is released or handed over. Only claims count under
/// which `writer` wrote: not those of waiters, nor that of a sale's start.
pub(crate) struct FaultyLock {
    etcd: EtcdBackend,
    writer: Arc<Writer>,
    /// The token of each claim that was not released yet.
    tokens: Mutex<HashMap<Claim, Token>>,
}

impl FaultyLock {
    pub(crate) fn new(etcd: EtcdBackend, writer: &Arc<Writer>) -> Self {
        Self { etcd, writer: Arc::clone(writer), tokens: Mutex::default() }
    }

    fn note(&self, claim: &Claim, ticket: Ticket) -> Ticket {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.insert(claim.clone(), ticket.token);
        ticket
    }

    async fn before_release(&self, claim: &Claim) {
        let token = self.tokens.lock().unwrap_or_else(PoisonError::into_inner).remove(claim);
        if token.is_some_and(|token| self.writer.has_written_under(token)) {
            fault::at(Point::BeforeRelease).await;
        }
    }
}

impl Backend for FaultyLock {
    fn enqueue<'a>(&'a self, claim: &'a Claim) -> BackendFuture<'a, Ticket> {
        Box::pin(async move { Ok(self.note(claim, self.etcd.enqueue(claim).await?)) })
    }

    fn try_enqueue<'a>(&'a self, claim: &'a Claim) -> BackendFuture<'a, Option<Ticket>> {
        Box::pin(async move {
            let ticket = self.etcd.try_enqueue(claim).await?;
            Ok(ticket.map(|ticket| self.note(claim, ticket)))
        })
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> BackendFuture<'a, Released> {
        Box::pin(async move {
            self.before_release(claim).await;
            self.etcd.release(claim).await
        })
    }

    fn hand_over<'a>(
        &'a self,
        held: &'a Claim,
        next: &'a Claim,
    ) -> BackendFuture<'a, Option<Ticket>> {
        Box::pin(async move {
            self.before_release(held).await;
            let ticket = self.etcd.hand_over(held, next).await?;
            Ok(ticket.map(|ticket| self.note(next, ticket)))
        })
    }

    // the rest is etcd's

    fn runtime(&self) -> Option<Handle> {
        self.etcd.runtime()
    }

    fn open(&self, ttl: Duration) -> BackendFuture<'_, Lease> {
        self.etcd.open(ttl)
    }

    fn renew(&self, lease: Lease) -> BackendFuture<'_, Duration> {
        self.etcd.renew(lease)
    }

    fn close(&self, lease: Lease) -> BackendFuture<'_, ()> {
        self.etcd.close(lease)
    }

    fn queue<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Vec<QueueEntry>> {
        self.etcd.queue(name)
    }

    fn probe<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Option<QueueEntry>> {
        self.etcd.probe(name)
    }

    fn queue_snapshot(&self, name: &Arc<str>) -> Option<QueueSnapshot> {
        self.etcd.queue_snapshot(name)
    }
}
