//! Goal: the example shop charges for what it sells, and for nothing else. Method: its programs run against real instances; the
//! test judges by the tables of the shop and of its payment provider, and by the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::Query;
use axum::http::{StatusCode, Uri};
use axum::routing::{get, post};
use futures_util::future::join_all;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::or_left_out;
use testkit::ports::free_ports;
use testkit::server::find_program;
use testkit::wait::{eventually, within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};

use super::instance::{Instance, Servers};
use super::server::{OPTIONS, Running};

const PRICE: i64 = 1900;

/// What buyers do: means of payment, how webhooks come, and what else happens to the order.
const PLANS: [(&str, &str, &str); 10] = [
    ("card", "once", ""),
    ("card", "twice", ""),
    ("card", "late", ""),
    ("at-once", "mixed", ""),
    ("card", "mixed", ""),
    ("card", "never", ""),
    ("card", "before", "returned"),
    ("fails-later", "once", ""),
    ("at-once", "twice", "cancelled before"),
    ("card", "never", "cancelled before"),
];

/// The programs of the example, and their files.
struct Example {
    python: PathBuf,
    dir: TempDir,
}

impl Example {
    fn new() -> Option<Self> {
        let python = find_program("FLASH_SALE_PYTHON", &["python3"]);
        let python = or_left_out(python, "Python is not installed (apt-get install python3)")?;
        Some(Self { python, dir: tempfile::tempdir().unwrap() })
    }

    /// A program of the example with these arguments.
    fn program(&self, name: &str, args: &[&str]) -> Command {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/shop");
        let mut command = Command::new(&self.python);
        command.arg(folder.join(name)).args(args).current_dir(self.dir.path());
        command.envs([("PYTHONDONTWRITEBYTECODE", "1"), ("SHOP_LATE_SECONDS", "0.5")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        command
    }

    /// What a query finds in a file of `SQLite`.
    async fn rows(&self, db: &str, query: &str) -> Vec<Value> {
        let script = "import json, sqlite3, sys; print(json.dumps(sqlite3.connect(sys.argv[1], isolation_level=None).execute(sys.argv[2]).fetchall()))";
        let mut command = Command::new(&self.python);
        let output = command.args(["-c", script, db, query]).current_dir(self.dir.path()).output();
        let output = output.await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// Sends a request to a server that may be gone, and returns the whole answer.
async fn ask(address: SocketAddr, line: &str, headers: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let length = body.len();
    let request = format!(
        "{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer).filter(|answer| !answer.is_empty())
}

/// The body in JSON of an answer of an instance.
async fn told(instance: &Instance, line: &str, headers: &str, body: &str) -> Value {
    let answer = ask(instance.address, line, headers, body).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
    serde_json::from_str(body).unwrap()
}

/// All entries of the ledger of a sale.
async fn entries(instance: &Instance, sale: &str) -> Vec<Value> {
    let line = format!("GET /orders?sale={sale}&limit=1000");
    let page = told(instance, &line, "Authorization: Bearer sh0p\r\n", "").await;
    page["orders"].as_array().unwrap().clone()
}

/// One buyer, who buys at the shop until the page offers nothing more to wait for.
struct Buyer<'a> {
    n: usize,
    shop: SocketAddr,
    provider: SocketAddr,
    sale: SocketAddr,
    paid: &'a AtomicUsize,
}

impl Buyer<'_> {
    async fn at_shop(&self, line: &str) -> Option<String> {
        // one buyer writes a cookie that looks like the key of another buyer's call
        let prefix = if self.n == 3 { "capture-" } else { "" };
        let order = if self.n == 3 { 1 } else { self.n };
        let cookie = format!("Cookie: shop=buyer-{:04}.{prefix}order-{order:04}\r\n", self.n);
        ask(self.shop, line, &cookie, "").await
    }

    async fn buy(self) {
        let (means, delivery, fate) = PLANS[self.n % PLANS.len()];
        let (mut is_paid, mut is_returned) = (false, false);
        eventually("the buyer knows", async || {
            let page = self.at_shop("GET /order").await.unwrap_or_default();
            if page.contains("action=/buy") {
                self.at_shop("POST /buy").await;
            } else if page.contains("action=/return") {
                if fate != "returned" || is_returned {
                    return fate != "returned";
                }
                is_returned = self.at_shop("POST /return").await.is_some();
            } else if page.contains("action=/again") {
                return true;
            } else if let Some((_, rest)) = page.split_once("/pay/").filter(|_| !is_paid) {
                let (payment, _) = rest.split_once('\'').unwrap();
                if fate == "cancelled before" {
                    let (_, order) = page.rsplit_once("Order ").unwrap();
                    let line = format!("POST /order/cancel?order={order}&user=buyer-{:04}", self.n);
                    // by id and user, without the shop
                    if !ask(self.sale, &line, "", "")
                        .await
                        .is_some_and(|told| told.contains(" 200 "))
                    {
                        return false;
                    }
                }
                let form = format!("means={means}&delivery={delivery}");
                let line = format!("POST /pay/{payment}");
                is_paid = ask(self.provider, &line, "", &form).await.is_some();
                self.paid.fetch_add(1, Ordering::Relaxed);
            }
            false
        })
        .await;
    }
}

/// Compares what became of the units with the money.
async fn judge(example: &Example, entries: &[Value]) {
    let mut units = BTreeMap::<String, String>::new();
    for entry in entries {
        let text = |name: &str| entry[name].as_str().unwrap().to_owned();
        units.insert(text("order"), text("event"));
    }
    let query = "SELECT e.id, order_id, type, e.amount FROM events e JOIN payments p ON p.id = payment ORDER BY 1";
    let money = example.rows("payments.db", query).await;
    let books = "SELECT id, order_id, type, amount FROM events ORDER BY 1";
    assert_eq!(example.rows("shop.db", books).await, money, "the shop's books");
    let mut seen = BTreeSet::new();
    for (order, unit) in &units {
        let events = money.iter().filter(|event| event[1] == **order);
        let types: Vec<_> = events.clone().map(|event| event[2].as_str().unwrap()).collect();
        let sum: i64 = events.map(|event| event[3].as_i64().unwrap()).sum();
        let ended = |word| types.iter().filter(|kind| **kind == word).count();
        let case = format!("{order} {unit}: {types:?}");
        assert_eq!(sum, if unit == "confirmed" { PRICE } else { 0 }, "{case}");
        assert!(ended("refunded") <= 1, "{case}");
        assert_eq!(ended("authorised").min(1), ended("captured").max(ended("voided")), "{case}");
        seen.extend(types.iter().map(|kind| format!("{kind}, {unit}")));
    }
    for case in [
        "captured, confirmed",
        "refunded, returned",
        "voided, returned",
        "refunded, cancelled",
        "voided, cancelled",
    ] {
        assert!(seen.contains(case), "{case} in {seen:?}");
    }
    assert!(money.iter().all(|event| units.contains_key(event[1].as_str().unwrap())));
}

/// Goal: while an instance and the shop are killed, nothing is confirmed without payment, nothing is paid without unit or refund,
/// nothing is refunded twice, and the copy is the ledger, also of a sale that was replaced. A token that is refused for a while
/// refunds nothing.
#[tokio::test]
async fn it_charges_for_what_it_sells() {
    let Some(example) = Example::new() else { return };
    let token_is = |text| std::fs::write(example.dir.path().join("token"), text).unwrap();
    token_is("sh0p\n");
    let servers = Servers::shared().await;
    // a killed instance keeps the lock for this long
    let variables = [("FLASH_SALE_LOCK_TTL", "2s"), ("FLASH_SALE_SHOP_TOKEN", "sh0p")];
    let instances = [servers.start(&variables).await, servers.start(&variables).await];
    instances[0].until_ready().await;
    instances[1].until_ready().await;
    let start = async |sale: &str, stock: u32| {
        let body = json!({"stock": stock, "sale": sale, "hold_seconds": 60}).to_string();
        let headers = "Authorization: Bearer s3cret\r\nIf-Match: *\r\n";
        told(&instances[1], "PUT /stock", headers, &body).await
    };
    start("first", 20).await;
    let [port, provider_port] = free_ports().unwrap();
    let [shop, provider] =
        [port, provider_port].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let _provider = example
        .program("payments.py", &[&provider_port.to_string(), "payments.db"])
        .spawn()
        .unwrap();
    let urls =
        instances.each_ref().map(|instance| format!("http://{}", instance.address)).join(",");
    let open_shop = || -> Child {
        let (port, provider) = (port.to_string(), format!("http://{provider}"));
        let args =
            ["--sale", &urls, "--token-file", "token", "--port", &port, "--provider", &provider];
        example.program("shop.py", &args).spawn().unwrap()
    };
    let mut open = open_shop();
    // each step is carried out twice, as after a crash behind the call
    let crash = "CREATE TRIGGER crash BEFORE DELETE ON outbox WHEN OLD.tries < 2 BEGIN SELECT RAISE(ABORT, 'crash'); END";
    eventually("it listens", async || TcpStream::connect(shop).await.is_ok()).await;
    example.rows("shop.db", crash).await;
    let (sale, paid) = (instances[1].address, &AtomicUsize::new(0));
    let buyer = |n| Buyer { n, shop, provider, sale, paid };
    let buyers = join_all((0..20).map(|n| buyer(n).buy()));
    let killing = async {
        eventually("some have paid", async || paid.load(Ordering::Relaxed) >= 6).await;
        // refused confirmations are repeated, and nobody gets money back
        token_is("wrong\n");
        let query = "SELECT 1 FROM outbox WHERE step = 'confirm' AND tries > 1";
        let is_refused = async || !example.rows("shop.db", query).await.is_empty();
        eventually("a confirmation is refused", is_refused).await;
        token_is("sh0p\n");
        instances[0].signal(Signal::KILL);
        open.kill().await.unwrap();
        open = open_shop();
    };
    tokio::join!(buyers, killing);
    let query = "SELECT * FROM outbox";
    eventually("the shop is done", async || example.rows("shop.db", query).await.is_empty()).await;

    // a sale replaces the first one while the shop is closed
    open.kill().await.unwrap();
    start("second", 1).await;
    let _open = open_shop();
    buyer(100).buy().await;
    buyer(110).buy().await;
    let refused = "SELECT user FROM orders WHERE why = 'sold-out'";
    assert_eq!(example.rows("shop.db", refused).await, [json!(["buyer-0110"])]);
    let copied = async |sale: &str| -> Vec<Value> {
        let query = format!("SELECT entry FROM ledger WHERE sale = '{sale}' ORDER BY position");
        let copied = example.rows("shop.db", &query).await.into_iter();
        copied.map(|row| serde_json::from_str(row[0].as_str().unwrap()).unwrap()).collect()
    };
    for sale in ["first", "second"] {
        eventually("the copy is the ledger", async || {
            copied(sale).await == entries(&instances[1], sale).await
        })
        .await;
    }
    assert_eq!(copied("second").await.len(), 2, "reserved and confirmed");
    eventually("the shop is done", async || example.rows("shop.db", query).await.is_empty()).await;

    let entries = [copied("first").await, copied("second").await].concat();
    judge(&example, &entries).await;
}

/// Goal: the consumer of the ledger copies entries of kinds that it does not know, each once, and rebuilds the counts beside them.
/// Method: a small server in the place of an instance of a later version; a disk that is full between entry and cursor.
#[tokio::test]
async fn it_copies_each_entry_once() {
    let Some(example) = Example::new() else { return };
    let entry = |position: u32, event: &str, order: &str| json!({"position": position, "event": event, "order": order, "user": "ann", "quantity": 2, "hold_until": "2026-11-27T08:10:00Z"});
    let ledger = [
        entry(1, "reserved", "1"),
        json!({"position": 2, "event": "changed", "note": "<b>"}),
        entry(3, "reserved", "2"),
        entry(4, "confirmed", "1"),
        entry(5, "painted", "2"),
    ];
    let page = async move |Query(query): Query<BTreeMap<String, String>>| {
        let after = &query["after"];
        if after == "lost:3" {
            return (StatusCode::CONFLICT, axum::Json(json!({"type": "sale-replaced"})));
        }
        // two at a time
        let after: usize = after.rsplit(':').next().unwrap().parse().unwrap();
        let sale = &query["sale"];
        let mut orders = ledger[after..ledger.len().min(after + 2)].to_vec();
        for entry in &mut orders {
            entry["sale"] = json!(sale);
        }
        let cursor = format!("{sale}:{}", after + orders.len());
        (StatusCode::OK, axum::Json(json!({"sale": sale, "orders": orders, "cursor": cursor})))
    };
    let units = json!({"held": 2, "confirmed": 2});
    let stock = json!({"id": "a", "entries": 5, "units": units});
    let sales = json!({"running": stock, "kept": [{"id": "old"}]});
    let router = Router::new()
        .route("/orders", get(page))
        .route("/stock", get(async move || axum::Json(stock)))
        .route("/sales", get(async move || axum::Json(sales)));
    let server = Running::start(router, OPTIONS);
    let url = format!("http://{}", server.address);
    let copy = async |url: &str| {
        let mut program = example.program("ledger.py", &["--sale", url]);
        program.stderr(Stdio::null()).status().await.unwrap().success()
    };
    assert!(!copy("http://127.0.0.1:1").await, "it has made its tables");
    for (at, copied) in [
        ("INSERT ON ledger WHEN NEW.position = 2", 0),
        ("UPDATE OF after ON cursor WHEN NEW.after = 'a:4'", 7),
    ] {
        let full =
            format!("CREATE TRIGGER full BEFORE {at} BEGIN SELECT RAISE(ABORT, 'full'); END");
        example.rows("shop.db", &full).await;
        assert!(!copy(&url).await, "{at}");
        assert_eq!(example.rows("shop.db", "SELECT * FROM ledger").await.len(), copied, "{at}");
        example.rows("shop.db", "DROP TRIGGER full").await;
    }
    // what is there is not copied again, and where the store lost entries the copy begins anew
    assert!(copy(&url).await && copy(&url).await);
    example.rows("shop.db", "UPDATE cursor SET after = 'lost:3' WHERE sale = 'a'").await;
    assert!(copy(&url).await);
    let rows =
        example.rows("shop.db", "SELECT position, event, order_id, quantity FROM ledger").await;
    assert_eq!(rows[1], json!([2, "changed", null, null]));
    assert_eq!(rows.len(), 10, "{rows:?}");
    // a sale that replaced it was lost, and it runs on
    example.rows("shop.db", "DELETE FROM ledger WHERE sale = 'a' AND position = 5").await;
    let replaced = "UPDATE cursor SET after = 'a:4', is_over = 1, is_copied = 1 WHERE sale = 'a'";
    example.rows("shop.db", replaced).await;
    assert!(copy(&url).await);
}

/// The path of a call, and the way to answer it.
type Call = (String, oneshot::Sender<(StatusCode, axum::Json<Value>)>);

/// Answers to tabs that ask at the same time: which tab, and which status.
type Answers = &'static [(usize, u16)];

/// A server in the place of an instance and of a shop: the test answers each POST.
fn stand_in() -> (Running, mpsc::UnboundedReceiver<Call>) {
    let (sender, calls) = mpsc::unbounded_channel();
    let ask_test = post(async move |uri: Uri| {
        let (answer, answered) = oneshot::channel();
        let _ = sender.send((uri.path().to_owned(), answer)); // the test may have ended
        answered.await.map_err(|_| StatusCode::BAD_GATEWAY)
    });
    (Running::start(Router::new().route("/{*path}", ask_test), OPTIONS), calls)
}

/// Goal: the shop cancels a refused order exactly where an earlier attempt may have been accepted: after a 504, whichever tab gets
/// its answer first, and after the shop was killed during the call. Method: the test answers in the place of the sale.
#[tokio::test]
async fn it_remembers_doubtful_attempts() {
    let Some(example) = Example::new() else { return };
    let (sale, mut calls) = stand_in();
    let [port] = free_ports().unwrap();
    let shop = SocketAddr::from(([127, 0, 0, 1], port));
    let (url, port) = (format!("http://{}", sale.address), port.to_string());
    let args = ["--sale", &url, "--port", &port, "--provider", "http://127.0.0.1:1"];
    // without answers the shop is killed
    let cases: [(&str, Answers, &str); 6] = [
        ("not-done", &[(0, 503)], "[]"),
        ("not-known-there-yet", &[(0, 404)], "[]"),
        ("in-doubt", &[(0, 504)], r#"[["cancel"]]"#),
        ("in-doubt-first", &[(0, 504), (1, 503)], r#"[["cancel"]]"#),
        ("in-doubt-last", &[(1, 504), (0, 503)], r#"[["cancel"]]"#),
        ("killed-during-the-call", &[], r#"[["cancel"]]"#),
    ];
    for (case, answers, steps) in cases {
        let mut open = example.program("shop.py", &args).spawn().unwrap();
        eventually("it listens", async || TcpStream::connect(shop).await.is_ok()).await;
        let cookie = format!("Cookie: shop=doubtful.{case}\r\n");
        let tab = || {
            let cookie = cookie.clone();
            tokio::spawn(async move { ask(shop, "GET /order", &cookie, "").await })
        };
        ask(shop, "POST /buy", &cookie, "").await.unwrap();
        let mut tabs = Vec::new();
        for _ in 0..answers.len().max(1) {
            let tab = tab();
            let call = loop {
                let (path, answer) = within("a call", calls.recv()).await.unwrap();
                if path == "/stock/reduce" {
                    break answer;
                }
            };
            tabs.push(Some((tab, call)));
        }
        for (at, status) in answers {
            let (tab, call) = tabs[*at].take().unwrap();
            let body = axum::Json(json!({"type": "store-unreachable"}));
            call.send((StatusCode::from_u16(*status).unwrap(), body)).unwrap();
            tab.await.unwrap().unwrap();
        }
        if answers.is_empty() {
            open.kill().await.unwrap();
            open = example.program("shop.py", &args).spawn().unwrap();
            eventually("it listens", async || TcpStream::connect(shop).await.is_ok()).await;
        }
        let last = tab();
        let (_, call) = within("a call", calls.recv()).await.unwrap();
        call.send((StatusCode::CONFLICT, axum::Json(json!({"type": "sold-out"})))).unwrap();
        assert!(last.await.unwrap().unwrap().contains("Sold out."), "{case}");
        let taken = example.rows("shop.db", "SELECT step FROM outbox").await;
        assert_eq!(Value::from(taken).to_string(), steps, "{case}");
        open.kill().await.unwrap();
        example.rows("shop.db", "DELETE FROM outbox").await;
    }
}

/// Goal: the provider takes a key for the same call alone, and sends webhooks again after its disk was full. The shop does not start
/// beside another server on its provider's port.
#[tokio::test]
async fn its_provider_keeps_calls_apart() {
    let Some(example) = Example::new() else { return };
    let (shop, mut calls) = stand_in();
    let [port] = free_ports().unwrap();
    let provider = SocketAddr::from(([127, 0, 0, 1], port));
    let _provider =
        example.program("payments.py", &[&port.to_string(), "payments.db"]).spawn().unwrap();
    eventually("it listens", async || TcpStream::connect(provider).await.is_ok()).await;
    let headers = "Authorization: Bearer only-for-the-demo\r\nIdempotency-Key: capture-1\r\n";
    let hook = format!("http://{}/webhooks", shop.address);
    let session = json!({"order": "1", "amount": PRICE, "seconds": 60, "back": "/", "hook": hook})
        .to_string();
    for _ in 0..2 {
        ask(provider, "POST /sessions", headers, &session).await.unwrap();
    }
    let payments = example.rows("payments.db", "SELECT id FROM payments").await;
    assert_eq!(payments.len(), 1, "a key repeats a call");
    let id = payments[0][0].as_str().unwrap();
    let full = "CREATE TRIGGER full BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'full'); END";
    example.rows("payments.db", full).await;
    ask(provider, &format!("POST /pay/{id}"), "", "means=card&delivery=once").await.unwrap();
    let mut delivered = async || {
        let (path, answer) = within("a call", calls.recv()).await.unwrap();
        assert_eq!(path, "/webhooks");
        answer.send((StatusCode::OK, axum::Json(json!({})))).unwrap();
    };
    delivered().await;
    delivered().await;
    example.rows("payments.db", "DROP TRIGGER full").await;
    ask(provider, &format!("POST /payments/{id}/capture"), headers, "").await.unwrap();
    let status = example.rows("payments.db", "SELECT status FROM payments").await;
    assert_eq!(status, [json!(["captured"])]);

    // the provider is on the port behind the shop's
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = (taken.local_addr().unwrap().port() - 1).to_string();
    let mut started = example.program("shop.py", &["--port", &port]).spawn().unwrap();
    assert!(!within("it ends", started.wait()).await.unwrap().success());
}
