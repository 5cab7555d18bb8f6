//! The state that the handlers share, and the interface for further routes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue};
use tokio_util::sync::CancellationToken;

use super::access::Access;
use super::cross_origin::CrossOrigin;
use super::events::Events;
use super::probes::Readiness;
use super::problem::Problem;
use super::rate_limit::{Proxies, Rate, RateLimit};
use super::requests::Traffic;
use crate::sale::Sale;
use crate::secret::SecretSource;
use crate::throttle::Pace;

/// The settings of an instance's HTTP interface.
#[derive(Clone, Default)]
pub struct HttpOptions {
    /// The tokens of the shop's server, which confirms and returns orders and reads the ledger.
    pub shop_token: Option<SecretSource>,
    /// The tokens of operators, who may make every call.
    pub admin_token: Option<SecretSource>,
    /// The limit on the orders of one client.
    pub rate_limit: Option<Rate>,
    /// The header in which the gateway names the buyer.
    pub user_header: Option<HeaderName>,
    /// The proxies that pass on the addresses of clients.
    pub proxies: Proxies,
    /// The origins whose pages may order, as browsers write them.
    pub allow_origins: Vec<HeaderValue>,
    /// The most clients that wait for events.
    pub watchers: usize,
    /// The routes in place of the page's.
    pub extension: Option<Arc<dyn Extension>>,
}

/// Marks requests at the operators' port. They have no rate limit, since the shop's server confirms there for all buyers, and
/// pages of other origins do not send them.
#[derive(Clone)]
pub struct OperatorsPort;

/// The state that the handlers of one instance share.
pub struct AppState {
    pub(super) sale: Sale,
    pub(super) access: Access,
    pub(super) options: HttpOptions,
    pub(super) rate_limit: Option<RateLimit>,
    /// The other origins whose pages may order.
    pub(super) cross_origin: Option<Arc<CrossOrigin>>,
    pub(super) events: Events,
    pub(super) traffic: Arc<Traffic>,
    /// Paces the reads of queues in etcd, since the lock needs etcd, too.
    pub(super) queue_reads: Pace,
    pub(super) readiness: Readiness,
    /// Cancelled when the instance stops.
    pub(super) stop: CancellationToken,
}

impl AppState {
    /// The state of an instance that sells with `sale`.
    pub fn new(sale: Sale, options: HttpOptions) -> Self {
        Self {
            access: Access::new(&options),
            cross_origin: CrossOrigin::new(&options.allow_origins).map(Arc::new),
            events: Events::new(sale.inventory(), options.watchers),
            traffic: Arc::default(),
            rate_limit: options.rate_limit.map(RateLimit::new),
            queue_reads: Pace::default(),
            readiness: Readiness::default(),
            stop: CancellationToken::new(),
            sale,
            options,
        }
    }

    /// Makes the instance not ready, so that a load balancer sends requests elsewhere. From now on, each answer is the last one
    /// of its connection.
    pub fn set_draining(&self) {
        self.traffic.is_draining.store(true, Ordering::Relaxed);
    }

    /// Ends the event streams, which would not end otherwise.
    pub fn set_stopping(&self) {
        self.stop.cancel();
    }
}

/// Other routes in place of the page's. The service has none; the demo and the lab have routes for their controls.
pub trait Extension: Send + Sync + 'static {
    /// The routes. Limits, unknown paths and panics are handled as for the routes of the service.
    fn routes(self: Arc<Self>) -> Router;

    /// Whether this request may start, change or delete a sale. An instance with an extension checks no tokens.
    ///
    /// # Errors
    /// The request may not do this.
    fn check_start(&self, head: &Parts) -> Result<(), Problem>;
}
