//! Gives every request an id, a span, an answer even after a panic, and a count by its status.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use parking_lot::Mutex;
use tokio::task_local;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::Instrument as _;
use uuid::Uuid;

use super::cross_origin::CrossOrigin;
use super::problem::Problem;
use super::state::OperatorsPort;

/// The header with the id of a request.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The most bytes of an id that a client or a proxy chose.
const MAX_ID_BYTES: usize = 128;

task_local! {
    static REQUEST_ID: HeaderValue;
}

/// The id of the request that this task answers; `None` outside of a request.
pub fn current_id() -> Option<String> {
    REQUEST_ID.try_with(|id| id.to_str().ok().map(str::to_owned)).ok().flatten()
}

/// The state that the requests of one instance share.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// The number of answers of each route, by status. All unknown paths are one route, so the number of entries is bounded.
    pub(super) answers: Mutex<BTreeMap<String, BTreeMap<u16, u64>>>,
    /// Whether the instance will stop soon: each answer is then the last one of its connection.
    pub(super) is_draining: AtomicBool,
}

impl Traffic {
    fn count(&self, route: &str, status: StatusCode) {
        let mut routes = self.answers.lock();
        let statuses = match routes.get_mut(route) {
            Some(statuses) => statuses,
            None => routes.entry(route.to_owned()).or_default(),
        };
        *statuses.entry(status.as_u16()).or_default() += 1;
    }
}

/// Adds the work of this module to the routes.
pub(super) fn observed(
    routes: Router,
    traffic: Arc<Traffic>,
    others: Option<Arc<CrossOrigin>>,
) -> Router {
    let observe = move |request, next| observe(Arc::clone(&traffic), others.clone(), request, next);
    routes.layer((
        from_fn(observe),
        CatchPanicLayer::custom(after_panic as fn(Box<dyn Any + Send>) -> Response),
    ))
}

/// Answers a request under its id, in a span. `others` are the origins whose pages may order at the buyers' port.
async fn observe(
    traffic: Arc<Traffic>,
    others: Option<Arc<CrossOrigin>>,
    request: Request,
    next: Next,
) -> Response {
    // tower-http's layers for ids accept any id, and add a quarter to the instructions that an order takes to its handler
    let id = id_in(request.headers()).unwrap_or_else(new_id);
    let (method, path) = (request.method(), request.uri().path());
    let span = tracing::debug_span!("request", id = id.to_str().ok(), %method, path);
    #[cfg(feature = "otel")]
    crate::logging::otel::continue_trace(&span, request.headers());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let others = others.filter(|_| request.extensions().get::<OperatorsPort>().is_none());
    let answer = async {
        // boxed: they are large, and each future around them would contain them
        let answer = match others {
            Some(others) => Box::pin(others.call(request, next)).await,
            None => Box::pin(refused_or(request, next)).await,
        };
        tracing::debug!(status = answer.status().as_u16(), "answered");
        answer
    };
    let mut answer = REQUEST_ID.scope(id.clone(), answer.instrument(span)).await;
    traffic.count(route.as_ref().map_or("none", MatchedPath::as_str), answer.status());
    answer.headers_mut().insert(X_REQUEST_ID, id);
    if traffic.is_draining.load(Ordering::Relaxed) {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// The answer of the routes. If the server refused the request, its [`Problem`] is an extension, and no handler sees the request.
pub(super) async fn refused_or(mut request: Request, next: Next) -> Response {
    match request.extensions_mut().remove::<Problem>() {
        Some(problem) => problem.into_response(),
        None => next.run(request).await,
    }
}

/// Tells the client only that there was a fault. The log has the panic's message.
#[allow(clippy::needless_pass_by_value, reason = "the signature that the layer asks for")]
fn after_panic(payload: Box<dyn Any + Send>) -> Response {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let message = text.or_else(|| payload.downcast_ref::<&str>().copied());
    let request_id = current_id();
    tracing::error!(request_id, "a handler panicked: {}", message.unwrap_or("(no message)"));
    Problem::panicked().into_response()
}

/// The id that the client or a proxy chose, if there is exactly one and it is visible ASCII.
fn id_in(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut values = headers.get_all(X_REQUEST_ID).iter();
    let id = values.next().filter(|_| values.next().is_none())?;
    let is_valid =
        (1..=MAX_ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    is_valid.then(|| id.clone())
}

/// An id that no other process makes: the process's random digits, and a number. A random id for each request would cost more.
fn new_id() -> HeaderValue {
    static PROCESS: LazyLock<String> = LazyLock::new(|| Uuid::new_v4().simple().to_string());
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let id = format!("{}-{}", *PROCESS, COUNT.fetch_add(1, Ordering::Relaxed));
    HeaderValue::try_from(id).expect("letters, digits and a -")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_text_of_visible_ascii() {
        let headers = |values: &[&str]| -> HeaderMap {
            let value = |text: &&str| HeaderValue::from_bytes(text.as_bytes()).expect("a value");
            values.iter().map(|text| (X_REQUEST_ID, value(text))).collect()
        };
        let [longest, too_long] = [MAX_ID_BYTES, MAX_ID_BYTES + 1].map(|length| "x".repeat(length));
        for id in ["a", "4bf92f35-77b3\"<~", &longest] {
            assert_eq!(id_in(&headers(&[id])).expect("valid"), id);
        }
        for bad in ["", "a b", "ü", "a\tb", &too_long] {
            assert_eq!(id_in(&headers(&[bad])), None, "{bad:?}");
        }
        assert_eq!(id_in(&headers(&["a", "a"])), None);
        assert_ne!(new_id(), new_id());
    }
}
