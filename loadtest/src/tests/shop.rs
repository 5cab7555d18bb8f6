//! A shop with the service's interface, for the load test's own tests: one store behind two
//! instances, and one fault at most.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HeaderMap, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::sale::Sale;
use crate::checker::model::Change;
use crate::checker::{ALL_HELD, Event, FinalOutcome, StockState, u64_from};

/// The fault of a shop. A number says how many of the first orders it hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// The order is accepted, and the connection is closed without an answer.
    LoseAnswers(u32),
    /// No answer, ever.
    Hang(u32),
    /// An answer with this status. Its problem has this type, or is empty as from a gateway; types that pass get `Retry-After:
    /// 1`.
    Problem(u32, u16, &'static str),
    /// An order that is sent again gets an answer with this many more units left; with 0, its answer is not marked as repeated.
    Anew(i64),
    /// With the first order, a change makes holds last so many seconds.
    LongerHolds(u64),
    /// The second instance vanishes after this many orders.
    LeaveAfter(u32),
    /// Only the header `x-user` names users.
    UserHeader,
    /// Starting a sale needs the second token; confirming, and reading the ledger, need either one.
    Tokens(&'static str, &'static str),
    /// The shop has only the calls of buyers.
    ForBuyers,
    /// The shop has other paths, as another program would.
    Foreign,
    NotReady,
}

/// The open shop; closes when it is dropped.
pub(super) struct Shop {
    /// Base URLs with a path, as behind a gateway: the path names the instance.
    pub(super) urls: Vec<String>,
    _instances: JoinSet<()>,
}

/// A sale, and the ends of its holds, in order.
type Open = (Sale, VecDeque<(Instant, String)>);

struct Store {
    fault: Mutex<Fault>,
    /// The sales by item.
    sales: Mutex<HashMap<String, Open>>,
    /// Makes the second instance vanish.
    leave: CancellationToken,
}

type Reply = Response<Full<Bytes>>;

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
            let store = Arc::clone(&store);
            instances.spawn(async move {
                stay.run_until_cancelled(serve(&listener, &store, address.port())).await;
                // nobody else can get a port that is still bound
                while listener.accept().await.is_ok() {}
            });
        }
        Self { urls, _instances: instances }
    }
}

async fn serve(listener: &TcpListener, store: &Arc<Store>, port: u16) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let store = Arc::clone(store);
        // an error closes the connection without an answer
        let service = service_fn(move |request| answer(Arc::clone(&store), port, request));
        connections.spawn(async move {
            let http = hyper::server::conn::http1::Builder::new();
            drop(http.serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

fn reply(status: u16, body: &Value) -> Reply {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let reply = Response::builder().status(status).body(Full::from(body));
    reply.expect("a status")
}

fn problem(status: u16, kind: &str) -> Reply {
    if kind.is_empty() {
        return reply(status, &Value::Null);
    }
    let title = kind.replace('-', " ");
    let mut reply = reply(status, &json!({ "type": format!("/problems/{kind}"), "title": title }));
    if status == 429 || kind == ALL_HELD || status > 500 && kind != "foreign-fence" {
        reply.headers_mut().insert(RETRY_AFTER, 1.into());
    }
    reply
}

/// Refuses a call because of its token or its path.
fn refuses(
    fault: Fault,
    is_admins: bool,
    path: &str,
    headers: &HeaderMap,
) -> Option<(u16, &'static str)> {
    let shows = |token: &str| {
        let given = headers.get(AUTHORIZATION);
        given.is_some_and(|given| *given == *format!("Bearer {token}"))
    };
    let is_shops = path == "/orders" || path.ends_with("/confirm") || path.ends_with("/return");
    match fault {
        Fault::Tokens(_, admin) if is_admins && !shows(admin) => Some((401, "no-admin")),
        Fault::Tokens(shop, admin) if is_shops && !shows(shop) && !shows(admin) => {
            Some((401, "no-shop"))
        }
        Fault::ForBuyers if path == "/orders" => Some((404, "not-found")),
        Fault::ForBuyers if is_admins => Some((405, "method-not-allowed")),
        Fault::Foreign => Some((404, "")),
        _ => None,
    }
}

async fn answer(store: Arc<Store>, port: u16, request: Request<Incoming>) -> io::Result<Reply> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let query = head.uri.query().unwrap_or_default().split('&');
    let query: HashMap<_, _> = query.filter_map(|pair| pair.split_once('=')).collect();
    let number = |name: &str| query[name].parse().expect("the load test sends numbers");
    let item = query.get("item").copied().unwrap_or_default();
    let (method, path) = (&head.method, head.uri.path().strip_prefix(&format!("/{port}")));
    let path = path.expect("requests begin with the base URL's path");
    let fault = if path == "/stock/reduce" { store.next_fault() } else { *store.fault() };
    if let Fault::Hang(_) = fault
        && path == "/stock/reduce"
    {
        return std::future::pending().await;
    }

    let is_admins = (method, path) == (&Method::PUT, "/stock");
    if let Some((status, kind)) = refuses(fault, is_admins, path, &head.headers) {
        return Ok(problem(status, kind));
    }
    let mut sales = store.sales.lock().expect("no test panics with the lock");
    if path == "/readyz" {
        let is_ready = fault != Fault::NotReady;
        return Ok(if is_ready { reply(200, &Value::Null) } else { problem(503, "no-lock") });
    }
    if is_admins {
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        let terms = StockState {
            per_user: body["per_user"].as_u64(),
            hold_seconds: body["hold_seconds"].as_u64(),
            ..StockState::default()
        };
        let units = body["stock"].as_i64().expect("the load test sends a number");
        sales.insert(item.to_owned(), (Sale::new(units, terms), VecDeque::new()));
        return Ok(reply(200, &Value::Null));
    }
    let Some((sale, holds)) = sales.get_mut(item) else { return Ok(problem(404, "unknown-item")) };
    sale.instance = port.to_string();
    while let Some((_, order)) = holds.pop_front_if(|(end, _)| *end <= Instant::now()) {
        sale.change(&order, Event::Expired);
    }
    let user = match fault {
        Fault::UserHeader => head.headers.get("x-user").map(|user| user.to_str().expect("a name")),
        _ => query.get("user").copied(),
    };
    let user = user.unwrap_or_default();
    match (path, fault) {
        ("/stock", _) => Ok(reply(200, &json!(sale.state()))),
        ("/orders", _) => {
            let after = query.get("after").copied().unwrap_or("0");
            let after = if after == "0" { "sale-1:0" } else { after };
            let after = after.strip_prefix("sale-1:").expect("a position of this sale");
            let after: usize = after.parse().expect("a number");
            let limit: usize = number("limit");
            let page: Vec<_> = sale.ledger.iter().skip(after).take(limit).collect();
            let end = after + page.len();
            let cursor = format!("sale-1:{end}");
            let next = (end < sale.ledger.len()).then_some(&cursor);
            Ok(reply(200, &json!({ "orders": page, "next": next, "cursor": cursor })))
        }
        ("/stock/reduce", Fault::Problem(_, status, kind)) => Ok(problem(status, kind)),
        ("/stock/reduce", _) => {
            let order = head.headers["idempotency-key"].to_str().expect("visible ASCII");
            let quantity = number("quantity");
            if let Fault::LongerHolds(seconds) = fault
                && sale.ledger.is_empty()
            {
                sale.write(Event::Changed, "", "", 0);
                sale.before.hold_seconds = Some(seconds);
                sale.ledger[0].change =
                    Some(Change { hold_seconds: Some(seconds), ..Change::default() });
            }
            let mut outcome = sale.order(order, user, u64_from(quantity));
            if let Some(seconds) = sale.before.hold_seconds {
                let end = Instant::now() + Duration::from_secs(seconds);
                holds.push_back((end, order.to_owned()));
            }
            if let (Fault::Anew(more), FinalOutcome::Acknowledged(answer)) = (fault, &mut outcome)
                && answer.replayed
            {
                (answer.remaining, answer.replayed) = (answer.remaining + more, more != 0);
            }
            let reply = told(&outcome, Event::Reserved, order, u64_from(quantity));
            let is_lost = matches!(fault, Fault::LoseAnswers(_));
            if is_lost { Err(io::Error::other("lost")) } else { Ok(reply) }
        }
        _ => {
            let mut words = path.split('/').skip(2);
            let (order, verb) = (words.next().unwrap_or_default(), words.next());
            let event = match verb {
                Some("confirm") => Event::Confirmed,
                Some("return") => Event::Returned,
                _ => Event::Cancelled,
            };
            Ok(told(&sale.change(order, event), event, order, 1))
        }
    }
}

impl Store {
    fn fault(&self) -> MutexGuard<'_, Fault> {
        self.fault.lock().expect("no test panics with the lock")
    }

    /// The fault, if it still has to happen; counts down.
    fn next_fault(&self) -> Fault {
        let mut fault = self.fault();
        let now = *fault;
        match &mut *fault {
            Fault::LeaveAfter(n) => {
                *n = n.saturating_sub(1);
                if *n == 0 {
                    self.leave.cancel();
                }
            }
            Fault::LoseAnswers(0) | Fault::Hang(0) | Fault::Problem(0, ..) => return Fault::None,
            Fault::LoseAnswers(n) | Fault::Hang(n) | Fault::Problem(n, ..) => *n -= 1,
            _ => {}
        }
        now
    }
}

/// The answer to a buyer, from the order's outcome.
fn told(outcome: &FinalOutcome, event: Event, order: &str, quantity: u64) -> Reply {
    match outcome {
        FinalOutcome::Acknowledged(answer) => {
            let mut body = json!(answer);
            body["outcome"] = json!(event);
            body["order"] = order.into();
            body["quantity"] = quantity.into();
            let mut reply = reply(200, &body);
            if answer.replayed {
                let mark = ("idempotency-replayed", "true");
                reply.headers_mut().insert(mark.0, mark.1.parse().expect("a header"));
            }
            reply
        }
        FinalOutcome::SoldOut => problem(409, "sold-out"),
        FinalOutcome::HeldOut => problem(409, ALL_HELD),
        FinalOutcome::LimitReached => problem(409, "limit-reached"),
        FinalOutcome::Over(Event::Confirmed) => problem(409, "order-final"),
        FinalOutcome::Over(Event::Cancelled) => problem(410, "cancelled"),
        FinalOutcome::Over(Event::Returned) => problem(410, "returned"),
        FinalOutcome::Over(_) => problem(410, "expired"),
        _ => problem(404, "unknown-order"),
    }
}
