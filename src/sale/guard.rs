//! What is held while the stock is touched.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use super::combiner::Combiner;
use super::peers::Peer;
use crate::inventory::Item;
use crate::lock::SessionKeeper;

/// What guards a sale.
pub(super) enum SaleGuard {
    /// The lock that all instances share.
    Distributed {
        sessions: SessionKeeper,
        lock_name: String,
        /// There unless each order takes the lock for itself.
        combiner: Option<Arc<Combiner>>,
    },
    /// A mutex of this process for each item.
    Local(LocalLocks),
    /// Another way, to compare with.
    Peer(Peer),
    /// Nothing.
    Nothing,
}

/// The local mutexes. There is one for each item that was ever ordered: this mode is for showing
/// what goes wrong.
#[derive(Default)]
pub(super) struct LocalLocks(StdMutex<HashMap<Item, Arc<tokio::sync::Mutex<()>>>>);

impl LocalLocks {
    pub(super) fn of(&self, item: &Item) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(locks.entry(item.clone()).or_default())
    }
}
