//! The HTTP interface of one instance.
//!
//! | call | answer |
//! |---|---|
//! | `GET` or `POST /stock/reduce?item=&quantity=&user=` | takes units; header `Idempotency-Key` names the order |
//! | `POST /orders/{id}/confirm?item=&user=`, `/cancel` | ends the hold of an order |
//! | `GET /stock?item=` | the item's state |
//! | `PUT /stock?item=` | starts a new sale |
//! | `GET /sales?item=`, `DELETE /sales/{id}?item=` | the sale that runs and those that it replaced |
//! | `GET /orders?item=&sale=&after=&limit=&wait=` | a ledger, page by page |
//! | `GET /orders/{id}?item=&user=` | the answer to one order again |
//! | `GET /lock?item=` | the holder and the queue of the lock |
//! | `GET /events?item=` | the sale and its changes, as server-sent events |
//! | `GET /`, `/static/..` | the page |
//! | `GET /healthz`, `/readyz`, `/version`, `/metrics` | for load balancers and operators |
//!
//! [`router`] is the interface without a socket, [`buyers_router`] the part for buyers; [`server`] serves them on sockets.
//! Errors are in [`problem`]. An [`Extension`] adds routes.

pub mod body;
mod client_io;
mod events;
mod lock;
mod metrics;
mod orders;
mod page;
mod params;
mod probes;
pub mod problem;
pub mod rate_limit;
mod reduce;
pub mod reply;
mod request_head;
mod sales;
pub mod server;
mod state;
mod stock;

use std::any::Any;
use std::sync::Arc;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post, put};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::trace::{DefaultOnFailure, TraceLayer};
use tracing::Level;

pub use body::{BODY_TIMEOUT, MAX_BODY_BYTES};
pub use events::stale_batch;
pub use request_head::{MAX_HEADER_BYTES, MAX_URI_BYTES};
pub use state::{AppState, Extension};

use problem::{Problem, ProblemType};

/// All routes of an instance.
pub fn router(state: Arc<AppState>) -> Router {
    let extension = state.extension.clone();
    let routes = for_buyers(&state)
        .route("/stock", put(stock::start))
        .route("/orders", get(orders::list))
        .route("/sales", get(sales::list))
        .route("/sales/{id}", delete(sales::delete))
        .route("/lock", get(lock::queue))
        .route("/events", get(events::events))
        .route("/", get(page::index))
        .route("/static/{*name}", get(page::file))
        .route("/readyz", get(probes::readyz))
        .route("/version", get(probes::version))
        .route("/metrics", get(metrics::metrics))
        .with_state(state);
    with_defaults(match extension {
        Some(extension) => routes.merge(extension.routes()),
        None => routes,
    })
}

/// The routes that buyers need, where operators have a port of their own.
pub fn buyers_router(state: Arc<AppState>) -> Router {
    with_defaults(for_buyers(&state).with_state(state))
}

fn for_buyers(state: &Arc<AppState>) -> Router<Arc<AppState>> {
    let orders = Router::new()
        .route("/stock/reduce", any(reduce::reduce))
        .route("/orders/{id}/confirm", post(reduce::confirm))
        .route("/orders/{id}/cancel", post(reduce::cancel));
    rate_limit::limited(orders, state)
        .route("/stock", get(stock::read))
        .route("/orders/{id}", get(orders::one))
        .route("/healthz", get(probes::healthz))
}

/// Adds what every route needs: problems for unknown paths and methods, an answer after a
/// panic, and tracing. [`server::serve`] checks the head of each request before.
pub fn with_defaults(routes: Router) -> Router {
    let routes = routes
        .fallback(no_such_path)
        .method_not_allowed_fallback(async || no_such_method())
        .layer(CatchPanicLayer::custom(after_panic));
    // the filter of the log is set before the router is built, and does not change
    if tracing::enabled!(target: "tower_http::trace", Level::DEBUG) {
        let trace = TraceLayer::new_for_http();
        return routes.layer(trace.on_failure(DefaultOnFailure::new().level(Level::DEBUG)));
    }
    routes
}

async fn no_such_path() -> Problem {
    Problem::new(
        ProblemType::NOT_FOUND,
        "there is nothing at this path: try GET /stock or POST /stock/reduce",
    )
}

fn no_such_method() -> Problem {
    Problem::new(
        ProblemType::METHOD_NOT_ALLOWED,
        "the path does not have this method: the header Allow lists those it has",
    )
}

/// The client learns only that there was a fault; the log has the message of the panic.
#[allow(clippy::needless_pass_by_value, reason = "the signature that the layer asks for")]
fn after_panic(payload: Box<dyn Any + Send>) -> Response {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let message = text.or_else(|| payload.downcast_ref::<&str>().copied());
    tracing::error!("a handler panicked: {}", message.unwrap_or("(no message)"));
    Problem::panicked().into_response()
}
