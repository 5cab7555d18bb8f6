//! The state of a sale, for watchers.

use std::time::Duration;

use fenced_lock::{QueueSnapshot, Session};

use super::{GuardStatus, Sale, SaleError};
use crate::inventory::{Cursor, InventoryError, Item, SaleUpdate};

/// The state of the lock service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockHealth {
    /// It answers.
    Answers,
    /// It did not answer the latest request.
    Silent,
    /// No session is open: the last one was lost, or the first one is being opened.
    NoSession,
}

impl Sale {
    /// What guards the orders that come now.
    pub fn guard_status(&self) -> GuardStatus {
        self.0.guard.status()
    }

    /// The state of `item` and the new orders of its ledger: see
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

    /// Whether `item` has a sale, in any state.
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

    /// The queue for the lock of `item` as this instance sees it, without a request; `None` without a
    /// distributed lock or without a session.
    pub fn queue_snapshot(&self, item: &Item) -> Option<QueueSnapshot> {
        let name = self.lock_name(item)?;
        self.session()?.mutex(&name).ok()?.queue_snapshot()
    }

    /// The state of the lock service; `None` without a distributed lock.
    pub fn lock_health(&self) -> Option<LockHealth> {
        let sessions = self.0.guard.sessions()?;
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
        self.0.guard.sessions()?.current()
    }
}
