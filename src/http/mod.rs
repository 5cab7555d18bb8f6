//! The HTTP interface of one instance.
//!
//! | call | answer |
//! |---|---|
//! | `GET` or `POST /stock/reduce?item=&quantity=&user=` | takes units; header `Idempotency-Key` names the order |
//! | `POST /order/confirm?order=&item=&user=`, `/order/cancel` | ends the hold of an order |
//! | `POST /order/return?order=&item=&user=` | takes a confirmed order back |
//! | `GET /stock?item=` | the item's state |
//! | `PUT /stock?item=` | starts a new sale |
//! | `PATCH /stock?item=` | changes the sale that runs |
//! | `GET /sales?item=`, `DELETE /sales/{id}?item=` | the sale that runs and those that it replaced |
//! | `GET /orders?item=&sale=&after=&limit=&wait=` | a ledger, page by page |
//! | `GET /order?order=&item=&user=` | the answer to one order again |
//! | `/orders/{id}`, `/orders/{id}/confirm`, `/cancel`, `/return` | the same, with the id in the path |
//! | `GET /lock?item=` | the holder and the queue of the lock |
//! | `GET /events?item=` | the sale and its changes, as server-sent events |
//! | `GET /`, `/static/..` | the page of a sale, for operators |
//! | `GET /openapi.json` | these calls, in `OpenAPI` 3.1 |
//! | `GET /healthz`, `/readyz`, `/version`, `/metrics` | for load balancers and operators |
//!
//! [`router`] has all routes, [`buyers_router`] those for buyers, without a socket; [`server`] serves them. Errors are in
//! [`problem`]. An [`Extension`] adds routes.

mod access;
pub mod body;
mod client_io;
mod cross_origin;
mod events;
mod lock;
mod metrics;
mod orders;
pub mod page;
mod params;
mod probes;
pub mod problem;
pub mod rate_limit;
mod reduce;
pub mod reply;
mod request_head;
mod requests;
mod sales;
pub mod server;
mod state;
mod stock;

use std::sync::Arc;

use axum::Router;
use axum::routing::{any, delete, get, post, put};

pub use body::{BODY_TIMEOUT, MAX_BODY_BYTES};
pub use request_head::{MAX_HEADER_BYTES, MAX_URI_BYTES};
pub use requests::{X_REQUEST_ID, current_id};
pub use state::{AppState, Extension, HttpOptions, OperatorsPort};

use crate::inventory::Action;
use cross_origin::CrossOrigin;
use page::page_routes;
use problem::{Problem, ProblemType};
use requests::Traffic;

/// All routes of an instance.
pub fn router(state: Arc<AppState>) -> Router {
    let extension = state.options.extension.clone();
    let (traffic, others) = (Arc::clone(&state.traffic), state.cross_origin.clone());
    let routes = for_buyers(&state)
        .route("/stock", put(stock::start).patch(stock::change))
        .merge(reply::compressed(Router::new().route("/orders", get(orders::list))))
        .route("/sales", get(sales::list))
        .route("/sales/{id}", delete(sales::delete))
        .route("/lock", get(lock::queue))
        .route("/events", get(events::events))
        .route("/readyz", get(probes::readyz))
        .route("/version", get(probes::version))
        .route("/metrics", get(metrics::metrics))
        .with_state(state);
    let page = extension.map_or_else(|| page_routes(page::SALE), Extension::routes);
    observed(routes.merge(page), traffic, others)
}

/// The routes for buyers, if operators have a port of their own.
pub fn buyers_router(state: Arc<AppState>) -> Router {
    let (traffic, others) = (Arc::clone(&state.traffic), state.cross_origin.clone());
    observed(for_buyers(&state).with_state(state), traffic, others)
}

fn for_buyers(state: &Arc<AppState>) -> Router<Arc<AppState>> {
    let change = |action| post(move |app, id, request| reduce::change(app, id, request, action));
    let orders = Router::new()
        .route("/stock/reduce", any(reduce::reduce))
        .route("/orders/{id}/confirm", change(Action::Confirm))
        .route("/orders/{id}/cancel", change(Action::Cancel))
        .route("/orders/{id}/return", change(Action::Return))
        .route("/order/confirm", change(Action::Confirm))
        .route("/order/return", change(Action::Return))
        .route("/order/cancel", change(Action::Cancel));
    rate_limit::limited(orders, state)
        .route("/stock", get(stock::read))
        .route("/orders/{id}", get(orders::one))
        .route("/order", get(orders::one))
        .route("/healthz", get(probes::healthz))
}

/// Adds the parts that every route needs: an id and a span for each request; problems for unknown paths and methods, for a
/// request that [`server::serve`] refuses, and after a panic.
pub fn with_defaults(routes: Router) -> Router {
    observed(routes, Arc::default(), None)
}

/// The same; also counts the answers in `traffic`, and lets pages of the origins `others` order.
fn observed(routes: Router, traffic: Arc<Traffic>, others: Option<Arc<CrossOrigin>>) -> Router {
    let routes = routes.fallback(no_such_path);
    let routes = routes.method_not_allowed_fallback(async || no_such_method());
    requests::observed(routes, traffic, others)
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
        "the header Allow lists the methods that this path has",
    )
}
