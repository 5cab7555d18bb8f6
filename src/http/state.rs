//! What the handlers share.

use std::sync::atomic::{AtomicBool, Ordering};

use super::access::StartAccess;
use crate::inventory::Item;
use crate::sale::Sale;

/// What the handlers of one instance share.
pub struct AppState {
    pub(super) sale: Sale,
    pub(super) access: StartAccess,
    lock_name: String,
    stopping: AtomicBool,
}

impl AppState {
    /// The state of an instance that sells with `sale`, under the lock `lock_name` for the default
    /// item, and lets those in `access` start a sale.
    pub fn new(sale: Sale, lock_name: impl Into<String>, access: StartAccess) -> Self {
        Self { sale, access, lock_name: lock_name.into(), stopping: AtomicBool::new(false) }
    }

    /// From now on the instance is not ready, so that a load balancer sends its requests elsewhere.
    pub fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// The name of the lock that guards `item`.
    pub(super) fn lock_name(&self, item: &Item) -> String {
        match item.name() {
            None => self.lock_name.clone(),
            Some(name) => format!("{}:{name}", self.lock_name),
        }
    }
}
