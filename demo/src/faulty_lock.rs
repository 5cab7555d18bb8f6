//! A lock service with a fault point at the release of a claim.

use std::collections::HashMap;
use std::sync::Arc;

use fenced_lock::{Backend, Claim, ClaimStatus, Ticket, Token};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::decorated::{Decorated, Decoration};
use crate::fault::{self, Point};
use crate::writer::Writer;

/// A lock service with [`Point::BeforeRelease`] before a claim is released or handed over. Only claims count under
/// which the writer wrote: not those of waiters, nor that of a sale's start.
pub(crate) type FaultyLock = Decorated<Token, BeforeRelease>;

pub(crate) struct BeforeRelease {
    writer: Arc<Writer>,
    /// The status of each claim that was not released yet.
    claims: Mutex<HashMap<Claim, watch::Receiver<ClaimStatus>>>,
}

impl FaultyLock {
    pub(crate) fn new(lock: Arc<dyn Backend<Token = Token>>, writer: &Arc<Writer>) -> Self {
        Self::with(lock, BeforeRelease { writer: Arc::clone(writer), claims: Mutex::default() })
    }
}

impl Decoration<Token> for BeforeRelease {
    fn ticket(&self, claim: &Claim, ticket: Ticket) -> Ticket {
        self.claims.lock().insert(claim.clone(), ticket.status.clone());
        ticket
    }

    fn before_release<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let status = self.claims.lock().remove(claim);
            let status = status.map(|status| *status.borrow());
            if let Some(ClaimStatus::Granted(token)) = status
                && self.writer.tenures.until_now(token, false)
            {
                fault::at(Point::BeforeRelease).await;
            }
        })
    }
}
