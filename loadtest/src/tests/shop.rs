//! A shop with the service's interface, for the load test's own tests: one store behind two
//! instances, and one fault at most.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What is wrong with a shop. A number is how many orders it happens to, the first ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// The order is accepted, and the connection is closed without an answer.
    LoseAnswers(u32),
    /// No answer, ever.
    Hang(u32),
    /// This status with a problem of this type, or none as of a gateway, and `Retry-After: 1` for a type that passes.
    Problem(u32, u16, &'static str),
    /// The second instance is gone after this many orders.
    LeaveAfter(u32),
    /// Users are known by the header `x-user` alone.
    UserHeader,
    /// Starting a sale needs this token.
    AdminToken(&'static str),
    NotReady,
}

/// The open shop; closes when it is dropped.
pub(super) struct Shop {
    /// Base URLs with a path, as behind a gateway: the path names the instance.
    pub(super) urls: Vec<String>,
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
    /// What the sale was started with.
    terms: Value,
    /// When the open holds end.
    holds: HashMap<String, Instant>,
    /// What became of the others.
    ends: HashMap<String, Value>,
    /// The units of each user.
    users: HashMap<String, i64>,
}

struct Store {
    fault: Mutex<Fault>,
    sales: Mutex<HashMap<String, Sale>>,
    /// Tells the second instance to go.
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
                // a closed port could become that of another test's shop
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
        // an error closes the connection without a word
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
    if status == 429 || status > 500 && kind != "foreign-fence" {
        reply.headers_mut().insert(RETRY_AFTER, 1.into());
    }
    reply
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

    let mut sales = store.sales.lock().expect("no test panics with the lock");
    if path == "/readyz" {
        let is_ready = fault != Fault::NotReady;
        return Ok(if is_ready { reply(200, &Value::Null) } else { problem(503, "no-lock") });
    }
    if (method, path) == (&Method::PUT, "/stock") {
        if let Fault::AdminToken(token) = fault
            && head
                .headers
                .get(AUTHORIZATION)
                .is_none_or(|given| *given != *format!("Bearer {token}"))
        {
            return Ok(problem(401, "no-admin"));
        }
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        let units = body["stock"].as_i64().expect("the load test sends a number");
        let sale = Sale { stock: units, initial: units, terms: body, ..Sale::default() };
        sales.insert(item.to_owned(), sale);
        return Ok(reply(200, &Value::Null));
    }
    let Some(sale) = sales.get_mut(item) else { return Ok(problem(404, "unknown-item")) };
    sale.end_holds(port);
    let user = match fault {
        Fault::UserHeader => head.headers.get("x-user").map(|user| user.to_str().expect("a name")),
        _ => query.get("user").copied(),
    };
    let user = user.unwrap_or_default();
    match (path, fault) {
        ("/stock", _) => {
            let state = json!({
                "stock": sale.stock, "lucky": sale.lucky, "initial": sale.initial, "held": sale.holds.len(),
                "orders": sale.answers.len(), "entries": sale.ledger.len(),
                "per_user": sale.terms["per_user"], "hold_seconds": sale.terms["hold_seconds"],
            });
            Ok(reply(200, &state))
        }
        ("/orders", _) => {
            // behind the sale, on the second page
            let after = query["after"].trim_start_matches("sale-1:");
            let after: usize = after.parse().expect("a number, or what was in `next`");
            let limit: usize = number("limit");
            let page: Vec<_> = sale.ledger.iter().skip(after).take(limit).collect();
            let end = after + page.len();
            let next = (end < sale.ledger.len()).then(|| format!("sale-1:{end}"));
            Ok(reply(200, &json!({ "orders": page, "next": next })))
        }
        ("/stock/reduce", Fault::Problem(_, status, kind)) => Ok(problem(status, kind)),
        ("/stock/reduce", _) => {
            let order = head.headers["idempotency-key"].to_str().expect("visible ASCII");
            let quantity = number("quantity").try_into().expect("small");
            let reply = sale.reduce(order, user, quantity, port);
            let is_lost = matches!(fault, Fault::LoseAnswers(_));
            if is_lost { Err(io::Error::other("lost")) } else { Ok(reply) }
        }
        _ => Ok(match path.split('/').collect::<Vec<_>>()[..] {
            ["", "orders", order, "confirm"] => sale.change(order, "confirmed", port),
            ["", "orders", order, "cancel"] => sale.change(order, "cancelled", port),
            _ => reply(404, &Value::Null),
        }),
    }
}

impl Store {
    fn fault(&self) -> MutexGuard<'_, Fault> {
        self.fault.lock().expect("no test panics with the lock")
    }

    /// The fault, if it is still to happen; counts it down.
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

impl Sale {
    /// Ends the holds whose time is over.
    fn end_holds(&mut self, port: u16) {
        let now = Instant::now();
        let due = self.holds.iter().filter(|(_, end)| **end <= now);
        for order in due.map(|(order, _)| order.clone()).collect::<Vec<_>>() {
            self.end(&order, "expired", port);
        }
    }

    fn end(&mut self, order: &str, event: &str, port: u16) -> Reply {
        self.holds.remove(order);
        let mut entry = self.answers[order].clone();
        if event != "confirmed" {
            let quantity = entry["quantity"].as_i64().expect("a number");
            let user = entry["user"].as_str().expect("a text").to_owned();
            self.stock += quantity;
            self.lucky -= quantity;
            *self.users.entry(user).or_default() -= quantity;
        }
        entry["event"] = event.into();
        entry["outcome"] = event.into();
        entry["position"] = (self.ledger.len() + 1).into();
        entry["remaining"] = self.stock.into();
        entry["token"] = (1000 + self.ledger.len() / 10).into();
        entry["instance"] = port.to_string().into();
        self.ledger.push(entry.clone());
        self.ends.insert(order.to_owned(), entry.clone());
        reply(200, &entry)
    }

    fn change(&mut self, order: &str, event: &str, port: u16) -> Reply {
        match self.ends.get(order) {
            Some(end) if end["event"] == event => reply(200, end),
            Some(end) if end["event"] == "confirmed" => problem(409, "order-final"),
            Some(end) => problem(410, end["event"].as_str().expect("a text")),
            None if self.answers.contains_key(order) => self.end(order, event, port),
            None => problem(404, "unknown-order"),
        }
    }

    fn reduce(&mut self, order: &str, user: &str, quantity: i64, port: u16) -> Reply {
        if let Some(answer) = self.answers.get(order) {
            return reply(200, answer);
        }
        if self.stock < quantity {
            return problem(409, "sold-out");
        }
        let has = self.users.entry(user.to_owned()).or_default();
        if self.terms["per_user"].as_i64().is_some_and(|limit| *has + quantity > limit) {
            return problem(409, "limit-reached");
        }
        *has += quantity;
        if let Some(seconds) = self.terms["hold_seconds"].as_u64() {
            self.holds.insert(order.to_owned(), Instant::now() + Duration::from_secs(seconds));
        }
        self.stock -= quantity;
        self.lucky += quantity;
        let position = self.ledger.len() + 1;
        let answer = json!({
            "outcome": "reserved", "position": position, "order": order, "quantity": quantity,
            "user": user, "remaining": self.stock, "instance": port.to_string(), "token": 1000 + position / 10,
        });
        self.ledger.push(answer.clone());
        self.answers.insert(order.to_owned(), answer.clone());
        reply(200, &answer)
    }
}
