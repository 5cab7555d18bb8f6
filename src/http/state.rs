//! What the handlers share.

use std::sync::atomic::{AtomicBool, Ordering};

use super::access::StartAccess;
use crate::sale::Sale;

/// What the handlers of one instance share.
pub struct AppState {
    pub(super) sale: Sale,
    pub(super) access: StartAccess,
    stopping: AtomicBool,
}

impl AppState {
    /// The state of an instance that sells with `sale` and lets those in `access` start a sale.
    pub fn new(sale: Sale, access: StartAccess) -> Self {
        Self { sale, access, stopping: AtomicBool::new(false) }
    }

    /// From now on the instance is not ready, so that a load balancer sends its requests elsewhere.
    pub fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}
