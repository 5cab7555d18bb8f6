//! The state that the handlers share, and the seam at which an instance serves more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::request::Parts;
use tokio::sync::Semaphore;

use super::access::StartAccess;
use super::events::{DEFAULT_WATCHERS, Events};
use super::lock::MAX_READS;
use super::probes::Readiness;
use super::problem::Problem;
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

/// Further routes and data of an instance. The service has none; the laboratory plugs in the controls of the
/// page.
pub trait Extension: Send + Sync + 'static {
    /// Its routes. Limits, unknown paths and panics are handled as for the routes of the service.
    fn routes(self: Arc<Self>) -> Router;

    /// Whether this request may start a sale. It replaces [`StartAccess`](super::StartAccess).
    ///
    /// # Errors
    /// The request may not.
    fn check_start(&self, head: &Parts) -> Result<(), Problem>;

    /// Called several times a second while the sale is watched. It must not block.
    fn refresh(self: Arc<Self>);

    /// The member `demo` of the events.
    fn view(&self) -> serde_json::Value;

    /// Further instances of the sale, for the member `instances` of the events.
    fn instances(&self) -> Vec<Arc<str>>;

    /// Kind and text of the events since the last call, for the member `notes`.
    fn take_notes(&self) -> Vec<(&'static str, String)>;
}
