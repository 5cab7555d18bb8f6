//! What a watcher of the sale sees.

use std::time::Duration;

use fenced_lock::{QueueSnapshot, Session};

use super::{GuardStatus, Sale, SaleError};
use crate::inventory::{Cursor, InventoryError, Item, SaleUpdate};

/// How the lock service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockHealth {
    /// It answers.
    Answers,
    /// It did not answer the latest request.
    Silent,
    /// There is no session: it was lost, or never opened, and another one is being opened.
    NoSession,
}

impl Sale {
    /// What guards the orders that come now.
    pub fn guard_status(&self) -> GuardStatus {
        self.guard().status()
    }

    /// The state of `item` and what is new in its ledger: see
    /// [`Inventory::poll_since`](crate::inventory::Inventory::poll_since).
    ///
    /// # Errors
    /// See [`InventoryError`].
    pub async fn poll_since(
        &self,
        item: &Item,
        cursor: Option<&Cursor>,
        most: u32,
    ) -> Result<SaleUpdate, InventoryError> {
        self.0.watched.poll_since(item, cursor, most).await
    }

    /// Whether there is a sale of `item`, in whatever state it is.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn check_known(&self, item: &Item) -> Result<(), SaleError> {
        match self.0.watched.poll_since(item, None, 0).await {
            Ok(_) | Err(InventoryError::Damaged { .. } | InventoryError::RolledBack { .. }) => {
                Ok(())
            }
            Err(error) => Err(SaleError::of_read(error, item)),
        }
    }

    /// What this instance sees of the queue for the lock of `item`, without a request; `None` where
    /// there is no such lock, and while there is no session.
    pub fn sighting(&self, item: &Item) -> Option<QueueSnapshot> {
        let name = self.lock_name(item)?;
        self.session()?.mutex(&name).ok()?.queue_snapshot()
    }

    /// How the lock service is; `None` for a sale that was made without one.
    pub fn lock_health(&self) -> Option<LockHealth> {
        let sessions = self.guard().sessions()?;
        Some(match sessions.current() {
            Some(session) if session.is_answered() => LockHealth::Answers,
            Some(_) => LockHealth::Silent,
            None if sessions.latest_error().is_some_and(|error| error.is_retryable()) => {
                LockHealth::Silent
            }
            None => LockHealth::NoSession,
        })
    }

    /// The lease of this instance, and its TTL, while there is a session.
    pub fn lease(&self) -> Option<(i64, Duration)> {
        self.session().map(|session| (session.lease().id, session.lease().ttl))
    }

    pub(super) fn session(&self) -> Option<Session> {
        self.guard().sessions()?.current()
    }
}
