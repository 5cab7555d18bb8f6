//! The state that the handlers share, and the interface for further routes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::HeaderName;
use axum::http::request::Parts;
use tokio_util::sync::CancellationToken;

use super::events::Events;
use super::probes::Readiness;
use super::problem::Problem;
use super::rate_limit::RateLimit;
use super::requests::Answers;
use crate::config::Rate;
use crate::sale::Sale;
use crate::secret::SecretSource;
use crate::throttle::Pace;

/// The state that the handlers of one instance share.
pub struct AppState {
    pub(super) sale: Sale,
    pub(super) admin_token: Option<SecretSource>,
    pub(super) rate_limit: Option<RateLimit>,
    pub(super) events: Events,
    pub(super) answers: Arc<Answers>,
    pub(super) extension: Option<Arc<dyn Extension>>,
    /// For reads of queues in etcd, which the lock needs as well.
    pub(super) queue_reads: Pace,
    pub(super) readiness: Readiness,
    /// Whether the instance will stop soon.
    pub(super) is_draining: AtomicBool,
    /// The header in which the gateway names the buyer.
    pub(super) user_header: Option<HeaderName>,
    /// Cancelled when the instance stops.
    pub(super) stop: CancellationToken,
}

impl AppState {
    /// The state of an instance that sells with `sale` and has at most so many watchers. `admin_token` permits to
    /// start a sale.
    pub fn new(
        sale: Sale,
        admin_token: Option<SecretSource>,
        watchers: usize,
        extension: Option<Arc<dyn Extension>>,
    ) -> Self {
        Self {
            events: Events::new(sale.inventory(), watchers),
            answers: Arc::default(),
            admin_token,
            rate_limit: None,
            extension,
            queue_reads: Pace::default(),
            readiness: Readiness::default(),
            user_header: None,
            sale,
            is_draining: AtomicBool::new(false),
            stop: CancellationToken::new(),
        }
    }

    /// The same, with a limit on the orders of one client, if any.
    #[must_use]
    pub fn with_rate_limit(self, rate: Option<Rate>) -> Self {
        Self { rate_limit: rate.map(RateLimit::new), ..self }
    }

    /// The same, with the buyer named by a header that the gateway sets.
    #[must_use]
    pub fn with_user_header(mut self, name: Option<HeaderName>) -> Self {
        self.user_header = name;
        self
    }

    /// The instance is not ready from now on, so that a load balancer sends its requests elsewhere.
    pub fn set_draining(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// The event streams end, which they would not do by themselves.
    pub fn set_stopping(&self) {
        self.stop.cancel();
    }
}

/// Further routes and data of an instance. The service has none; the laboratory plugs in the controls of the
/// page.
pub trait Extension: Send + Sync + 'static {
    /// Its routes. Limits, unknown paths and panics are handled as for the routes of the service.
    fn routes(self: Arc<Self>) -> Router;

    /// Whether this request may start a sale, or delete one. It replaces the check of the admin token.
    ///
    /// # Errors
    /// The request may not.
    fn check_start(&self, head: &Parts) -> Result<(), Problem>;

    /// The member `demo` of the events. Called several times a second while the sale is watched; it must not block.
    fn view(self: Arc<Self>) -> serde_json::Value;
}
