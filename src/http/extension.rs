//! The seam at which an instance serves more.

use std::sync::Arc;

use axum::Router;
use axum::http::request::Parts;

use super::problem::Problem;

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
