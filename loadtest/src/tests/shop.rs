//! A shop with the service's interface, for the load test's own tests: one store behind two
//! instances, and one fault at most.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// What is wrong with a shop. A number is how many orders it happens to, the first ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// The order is accepted, and the connection is closed without an answer.
    LoseAnswers(u32),
    /// 429 with Retry-After.
    Busy(u32),
    /// No answer, ever.
    Hang(u32),
    /// 400.
    Refuse(u32),
    /// This status with a problem of this type, or none as of a gateway, and Retry-After for a type
    /// that passes.
    Problem(u32, u16, &'static str),
    /// The second instance is gone after this many orders.
    LeaveAfter(u32),
    /// Every order is accepted, and none is recorded.
    NoLock,
    /// Starting a sale needs this token.
    AdminToken(&'static str),
    NotReady,
}

/// The open shop; closes when it is dropped.
pub(super) struct Shop {
    urls: Vec<String>,
    _instances: JoinSet<()>,
}

#[derive(Default)]
struct Sale {
    stock: i64,
    lucky: i64,
    initial: i64,
    ledger: Vec<Value>,
    /// The first answer to each order.
    answers: HashMap<String, Value>,
}

struct Store {
    fault: Mutex<Fault>,
    sales: Mutex<HashMap<String, Sale>>,
    /// Tells the second instance to go.
    leave: CancellationToken,
}

type Shared = Arc<Store>;
type Parameters = Query<HashMap<String, String>>;

/// Tells the connection that this answer is to be lost.
const LOSE: &str = "x-lose";

impl Shop {
    pub(super) async fn open(fault: Fault) -> Self {
        let leave = CancellationToken::new();
        let (fault, sales) = (Mutex::new(fault), Mutex::default());
        let store = Arc::new(Store { fault, sales, leave: leave.clone() });
        let mut urls = Vec::new();
        let mut instances = JoinSet::new();
        for stay in [CancellationToken::new(), leave] {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("it is bound");
            urls.push(format!("http://{address}/{}", address.port()));
            let router = router(Arc::clone(&store));
            instances.spawn(async move {
                stay.run_until_cancelled(serve(&listener, router)).await;
                // a closed port could become that of another test's shop
                while listener.accept().await.is_ok() {}
            });
        }
        Self { urls, _instances: instances }
    }

    /// Base URLs with a path, as behind a gateway: the path names the instance.
    pub(super) fn urls(&self) -> Vec<String> {
        self.urls.clone()
    }
}

async fn serve(listener: &TcpListener, router: Router) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let router = router.clone();
        let service = service_fn(move |request| {
            let router = router.clone();
            async move {
                let response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
                // an error closes the connection without a word
                if response.headers().contains_key(LOSE) {
                    Err(io::Error::other("lost"))
                } else {
                    Ok(response)
                }
            }
        });
        connections.spawn(async move {
            let http = hyper::server::conn::http1::Builder::new();
            drop(http.serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

fn router(store: Shared) -> Router {
    Router::new()
        .route("/{instance}/readyz", get(readyz))
        .route("/{instance}/stock", get(stock).put(start))
        .route("/{instance}/stock/reduce", post(reduce))
        .route("/{instance}/orders", get(orders))
        .with_state(store)
}

fn problem(status: StatusCode, kind: &str) -> Response {
    let body = json!({ "type": format!("/problems/{kind}"), "title": kind.replace('-', " ") });
    (status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
}

fn item(parameters: &Parameters) -> String {
    parameters.get("item").cloned().unwrap_or_default()
}

fn number(parameters: &Parameters, name: &str) -> usize {
    let text = parameters.get(name).expect("the load test always says it");
    text.parse().expect("the load test sends numbers")
}

impl Store {
    fn fault(&self) -> Fault {
        *self.fault.lock().expect("no test panics with the lock")
    }

    fn sales(&self) -> std::sync::MutexGuard<'_, HashMap<String, Sale>> {
        self.sales.lock().expect("no test panics with the lock")
    }

    /// The fault, if it is still to happen; counts it down.
    fn strike(&self) -> Fault {
        let mut fault = self.fault.lock().expect("no test panics with the lock");
        let now = *fault;
        if let Fault::LeaveAfter(n) = &mut *fault {
            *n = n.saturating_sub(1);
            if *n == 0 {
                self.leave.cancel();
            }
        }
        if let Fault::LoseAnswers(n)
        | Fault::Busy(n)
        | Fault::Hang(n)
        | Fault::Refuse(n)
        | Fault::Problem(n, ..) = &mut *fault
        {
            if *n == 0 {
                return Fault::None;
            }
            *n -= 1;
        }
        now
    }
}

async fn readyz(State(store): State<Shared>) -> Response {
    match store.fault() {
        Fault::NotReady => problem(StatusCode::SERVICE_UNAVAILABLE, "no-lock"),
        _ => StatusCode::OK.into_response(),
    }
}

async fn start(
    State(store): State<Shared>,
    parameters: Parameters,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    if let Fault::AdminToken(token) = store.fault() {
        let expected = format!("Bearer {token}");
        if headers.get(header::AUTHORIZATION).is_none_or(|given| *given != *expected) {
            return problem(StatusCode::UNAUTHORIZED, "no-admin");
        }
    }
    let units = body["stock"].as_i64().expect("the load test sends a number");
    let sale = Sale { stock: units, initial: units, ..Sale::default() };
    store.sales().insert(item(&parameters), sale);
    StatusCode::OK.into_response()
}

async fn stock(State(store): State<Shared>, parameters: Parameters) -> Response {
    let item = item(&parameters);
    let sales = store.sales();
    let Some(sale) = sales.get(&item) else {
        return problem(StatusCode::NOT_FOUND, "unknown-item");
    };
    let balanced = sale.stock + sale.lucky == sale.initial;
    Json(json!({
        "item": item, "stock": sale.stock, "lucky": sale.lucky, "initial": sale.initial,
        "fence": null, "orders": sale.ledger.len(), "balanced": balanced,
    }))
    .into_response()
}

async fn orders(State(store): State<Shared>, parameters: Parameters) -> Response {
    let sales = store.sales();
    let ledger = &sales.get(&item(&parameters)).expect("the load test starts a sale first").ledger;
    let (after, limit) = (number(&parameters, "after"), number(&parameters, "limit"));
    let page: Vec<_> = ledger.iter().skip(after).take(limit).cloned().collect();
    let end = after + page.len();
    let next = (end < ledger.len()).then_some(end);
    Json(json!({ "orders": page, "next": next })).into_response()
}

async fn reduce(
    State(store): State<Shared>,
    Path(instance): Path<String>,
    parameters: Parameters,
    headers: HeaderMap,
) -> Response {
    let fault = store.strike();
    match fault {
        Fault::Hang(_) => std::future::pending().await,
        Fault::Refuse(_) => return problem(StatusCode::BAD_REQUEST, "bad-item"),
        Fault::Problem(_, status, "") => {
            return StatusCode::from_u16(status).expect("a status").into_response();
        }
        Fault::Problem(_, status, kind) => {
            let mut response = problem(StatusCode::from_u16(status).expect("a status"), kind);
            if kind != "foreign-fence" {
                response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from(1));
            }
            return response;
        }
        Fault::Busy(_) => {
            let mut response = problem(StatusCode::TOO_MANY_REQUESTS, "queue-full");
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from(1));
            return response;
        }
        _ => {}
    }
    let order = headers["idempotency-key"].to_str().expect("visible ASCII").to_owned();
    let quantity = i64::try_from(number(&parameters, "quantity")).expect("small");
    let mut sales = store.sales();
    let sale = sales.get_mut(&item(&parameters)).expect("the load test starts a sale first");
    let mut response = sale.reduce(order, quantity, &instance, fault == Fault::NoLock);
    if let Fault::LoseAnswers(_) = fault {
        response.headers_mut().insert(LOSE, header::HeaderValue::from(1));
    }
    response
}

impl Sale {
    fn reduce(&mut self, order: String, quantity: i64, instance: &str, no_lock: bool) -> Response {
        if let Some(answer) = self.answers.get(&order) {
            return Json(answer).into_response();
        }
        if no_lock {
            // two buyers read the same stock, and only one of the writes is left
            self.lucky += quantity;
            let stale = self.initial - 1;
            self.stock = stale;
            return Json(json!({
                "outcome": "reserved", "order": order, "item": null, "quantity": quantity,
                "remaining": stale, "instance": instance, "token": null,
            }))
            .into_response();
        }
        if self.stock < quantity {
            return problem(StatusCode::CONFLICT, "sold-out");
        }
        self.stock -= quantity;
        self.lucky += quantity;
        let position = self.ledger.len() + 1;
        let token = 1000 + position / 10;
        self.ledger.push(json!({
            "position": position, "order": order, "quantity": quantity, "user": "",
            "remaining": self.stock, "instance": instance, "token": token,
        }));
        let answer = json!({
            "outcome": "reserved", "order": order, "item": null, "quantity": quantity,
            "remaining": self.stock, "instance": instance, "token": token,
        });
        self.answers.insert(order, answer.clone());
        Json(answer).into_response()
    }
}
