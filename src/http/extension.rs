//! What else an instance can serve.

use std::sync::Arc;

use axum::Router;
use axum::http::request::Parts;

use super::problem::Problem;

/// What an instance serves besides its own routes. The service has none; the laboratory plugs in the
/// controls of the page.
pub trait Extension: Send + Sync + 'static {
    /// Its routes. Limits, unknown paths and panics are handled as for the routes of the service.
    fn routes(self: Arc<Self>) -> Router;

    /// Whether this request may start a sale. It decides in the place of [`StartAccess`](super::StartAccess).
    ///
    /// # Errors
    /// The request may not.
    fn check_start(&self, head: &Parts) -> Result<(), Problem>;

    /// Called several times a second while a client watches the events. It must not block.
    fn refresh(self: Arc<Self>);

    /// The member `demo` of the events.
    fn view(&self) -> serde_json::Value;

    /// Further instances of the sale, for the member `instances` of the events.
    fn instances(&self) -> Vec<Arc<str>>;

    /// Kind and text of what has happened since the last call, for the member `notes` of the events.
    fn take_notes(&self) -> Vec<(&'static str, String)>;
}
