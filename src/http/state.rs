//! The state that the handlers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Semaphore;

use super::access::StartAccess;
use super::events::{DEFAULT_WATCHERS, Events};
use super::extension::Extension;
use super::lock::MAX_READS;
use super::probes::Readiness;
use crate::sale::Sale;

/// The state that the handlers of one instance share.
pub struct AppState {
    pub(super) sale: Sale,
    pub(super) access: StartAccess,
    pub(super) events: Events,
    pub(super) extension: Option<Arc<dyn Extension>>,
    /// Permits for reads of queues.
    pub(super) queue_reads: Arc<Semaphore>,
    pub(super) readiness: Readiness,
    stopping: AtomicBool,
}

impl AppState {
    /// The state of an instance that sells with `sale`; `access` says who may start a sale.
    pub fn new(sale: Sale, access: StartAccess) -> Self {
        let events = Events::new(DEFAULT_WATCHERS);
        Self {
            sale,
            access,
            events,
            extension: None,
            queue_reads: Arc::new(Semaphore::new(MAX_READS)),
            readiness: Readiness::default(),
            stopping: AtomicBool::new(false),
        }
    }

    /// The same, with at most so many watchers.
    #[must_use]
    pub fn with_watchers(mut self, most: usize) -> Self {
        self.events = Events::new(most);
        self
    }

    /// The same, with an extension.
    #[must_use]
    pub fn with_extension(mut self, extension: Arc<dyn Extension>) -> Self {
        self.extension = Some(extension);
        self
    }

    /// The instance is not ready from now on, so that a load balancer sends its requests elsewhere. The event
    /// streams end, which they would not do by themselves.
    pub fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.events.stop();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}
