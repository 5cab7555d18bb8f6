//! Goal: a watcher sees the true state at a bounded cost. Method: shops over the real servers, and streams that are read
//! in process, so that nothing is in flight between them.

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use testkit::wait::{DEADLINE, within};
use tokio::time::timeout;
use tower::ServiceExt as _;

use super::server::{self, Running};
use crate::shop::{SERVER, Shop, ShopOptions};
use crate::support::store::scripts_run;

/// A stream of `GET /events`.
pub(super) struct Watcher {
    body: Body,
    /// Its last message.
    pub(super) view: Value,
}

impl Watcher {
    /// Opens the stream, and reads nothing of it yet.
    pub(super) async fn open(router: &Router, path: &str) -> Self {
        let request = Request::get(path).header(SERVER.0, SERVER.1);
        let request = request.body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Self { body: answer.into_body(), view: Value::Null }
    }

    /// The kind of the next message; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Option<String> {
        let frame = within("the stream goes on or ends", self.body.frame()).await?.unwrap();
        let text = String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap();
        let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        self.view = serde_json::from_str(line("data: ").unwrap()).unwrap();
        line("event: ").map(str::to_owned)
    }

    /// Reads on until `condition` holds.
    pub(super) async fn until(&mut self, what: &str, condition: impl Fn(&Value) -> bool) {
        let reading = async {
            while !condition(&self.view) {
                self.next().await.expect("the stream goes on");
            }
        };
        // the view is shown as it was at the end
        let in_time = timeout(DEADLINE, reading).await.is_ok();
        assert!(in_time, "not in time: {what}, but {}", self.view);
    }
}

/// Whether the view has an alert of this kind.
pub(super) fn has(view: &Value, kind: &str) -> bool {
    view["alerts"].as_array().unwrap().iter().any(|alert| alert["kind"] == kind)
}

/// Goal: a snapshot comes first, then changes; what is sold is shown with the holder of the lock, also where another instance sells.
#[tokio::test]
async fn a_snapshot_then_changes() {
    let shop = Shop::selling(10, ShopOptions::default()).await;
    shop.order("first").await.json(200);
    let mut watcher = Watcher::open(&shop.router, "/events").await;
    assert_eq!(watcher.next().await.as_deref(), Some("snapshot"));
    let view = &watcher.view;
    assert_eq!((&view["stock"]["stock"], &view["instance"]), (&json!(9), &json!("8080")), "{view}");
    assert_eq!(view["guard"], "etcd", "{view}");

    let answer = shop.order("second").await.json(200);
    assert_eq!(watcher.next().await.as_deref(), Some("change"));
    watcher.until("the second order is shown", |view| view["sold"] == 2).await;
    let view = &watcher.view;
    assert_eq!(view["stock"]["fence"]["token"], answer["token"]);
    assert!(view["orders_per_second"].as_u64().is_some_and(|rate| rate >= 1), "{view}");
    let holder = &view["lock"]["holder"];
    assert_eq!((&holder["token"], &holder["instance"]), (&answer["token"], &json!("8080")));

    let there = shop.beside("8090");
    there.order("third").await.json(200);
    for router in [&shop.router, &there.router] {
        let mut watcher = Watcher::open(router, "/events").await;
        watcher.until("all orders are shown", |view| view["sold"] == 3).await;
    }
    let both = json!(["8080", "8090"]);
    watcher.until("who has queued is shown", |view| view["instances"] == both).await;
    shop.start(5).await;
    watcher.until("the new sale is shown", |view| view["stock"]["initial"] == 5).await;
    assert_eq!(watcher.view["sold"], 0, "{}", watcher.view);
}

/// Goal: nothing is buffered for a slow reader: it gets the latest state.
#[tokio::test]
async fn a_slow_reader_skips_what_it_missed() {
    let shop = Shop::selling(100, ShopOptions::default()).await;
    let mut slow = Watcher::open(&shop.router, "/events").await;
    let mut quick = Watcher::open(&shop.router, "/events").await;
    slow.next().await;
    shop.start(100).await;
    for number in 0..5 {
        shop.order(&format!("o{number}")).await.json(200);
        quick.until("the order is shown", |view| view["sold"] == number + 1).await;
    }
    slow.next().await;
    assert_eq!(slow.view["sold"], 5);
}

/// Goal: the number of watchers is bounded, and a place is free again as soon as a watcher leaves.
#[tokio::test]
async fn the_number_of_watchers_is_bounded() {
    let shop = Shop::selling(1, ShopOptions::http(|http| http.watchers = 2)).await;
    let first = Watcher::open(&shop.router, "/events").await;
    let mut second = Watcher::open(&shop.router, "/events").await;
    let refused = shop.ask("GET /events").await;
    refused.problem(503, "too-many-watchers");
    refused.assert_retry_after();
    drop(first);
    let mut third = Watcher::open(&shop.router, "/events").await;
    for watcher in [&mut second, &mut third] {
        assert_eq!(watcher.next().await.as_deref(), Some("snapshot"));
    }
}

/// Goal: visitors that come and go, each for another item, leave no more feeds than there may be watchers, and each feed polls eight
/// times a second at the most. Method: Redis counts the polls.
#[tokio::test]
async fn visitors_of_many_items_are_bounded() {
    const ITEMS: u32 = 40;
    let options = ShopOptions::http(|http| http.watchers = 2);
    let (redis, shop) = Shop::with_own_redis(options).await;
    shop.start(1).await;
    let mut raw = shop.raw().await;
    for number in 0..ITEMS {
        raw.run::<()>(&format!("SET stock:{{real-{number}}} 1")).await;
    }
    for number in 0..ITEMS {
        let mut watcher = Watcher::open(&shop.router, &format!("/events?item=real-{number}")).await;
        assert_eq!(watcher.next().await.as_deref(), Some("snapshot"));
        let made_up = format!("GET /events?item=made-up-{number}");
        shop.ask(&made_up).await.problem(404, "unknown-item");
    }
    // two feeds are left, for ten seconds; the times of the store enclose the count
    let mut last = Watcher::open(&shop.router, "/events?item=real-39").await;
    last.next().await;
    let (began_ms, before) = (last.view["now_ms"].as_f64().unwrap(), scripts_run(&redis).await);
    last.until("a while is over", |view| view["now_ms"].as_f64() > Some(began_ms + 2000.0)).await;
    let polls = scripts_run(&redis).await - before;
    last.next().await;
    let ticks = (last.view["now_ms"].as_f64().unwrap() - began_ms) / 125.0 + 1.0;
    assert!(f64::from(polls) <= 2.0 * ticks, "{polls} polls in {ticks} ticks");
}

/// Goal: the streams end when the instance stops, so that it does not wait for them.
#[tokio::test]
async fn streams_end_at_shutdown() {
    let shop = Shop::selling(1, ShopOptions::default()).await;
    let server = Running::start(shop.router.clone(), server::OPTIONS);
    let mut over_a_socket = server.connect().await;
    let (name, token) = SERVER;
    let request = format!("GET /events HTTP/1.1\r\nHost: test\r\n{name}: {token}\r\n\r\n");
    over_a_socket.send(request).await;
    let mut watcher = Watcher::open(&shop.router, "/events").await;
    watcher.next().await;

    shop.state.set_stopping();
    server.stop.send(()).unwrap();
    let mut rest = 0;
    while watcher.next().await.is_some() {
        rest += 1;
        assert!(rest < 10, "the stream ends");
    }
    assert_eq!(Running::end(server.ended).await, 0);
    shop.ask("GET /events").await.problem(503, "stopping");
}

/// Goal: a named item has a stream once it has a sale; the default item always has one, which says so while there is no sale.
#[tokio::test]
async fn each_item_has_a_stream_of_its_own() {
    let shop = Shop::empty(ShopOptions::default()).await;
    let mut default = Watcher::open(&shop.router, "/events").await;
    default.next().await;
    assert_eq!(default.view["stock"], Value::Null);
    assert!(has(&default.view, "no-sale"), "{}", default.view);
    shop.start(7).await;
    default.until("its sale is shown", |view| view["stock"]["stock"] == 7).await;
    assert!(!has(&default.view, "no-sale"), "{}", default.view);

    let problem = shop.ask("GET /events?item=tea").await.problem(404, "unknown-item");
    assert_eq!(problem["item"], "tea");
    shop.put("tea", r#"{"stock":3}"#).await.json(200);
    let mut other = Watcher::open(&shop.router, "/events?item=tea").await;
    other.until("its sale is shown", |view| view["stock"]["stock"] == 3).await;
    assert_eq!(other.view["item"], "tea");
    shop.raw().await.run::<()>("SET stock:{tea} many").await;
    other.until("it is damaged", |view| has(view, "damaged")).await;
    let mut damaged = Watcher::open(&shop.beside("8090").router, "/events?item=tea").await;
    damaged.next().await;
    damaged.until("what is damaged is shown", |view| has(view, "damaged")).await;
    shop.ask("GET /events?item=T").await.problem(400, "bad-item");
    shop.ask("GET /events?items=t").await.problem(400, "bad-parameter");
}

/// Goal: watchers see a holder that keeps the lock while others wait.
#[tokio::test]
async fn a_silent_holder_is_shown() {
    let shop = Shop::selling(1, ShopOptions::default()).await;
    let mut watcher = Watcher::open(&shop.router, "/events").await;
    watcher.next().await;
    let (_session, guard) = shop.hold_lock().await;
    let (sold, ()) = tokio::join!(shop.order("a"), async {
        watcher.until("it is shown", |view| has(view, "holder-silent")).await;
        guard.unlock().await.unwrap();
    });
    sold.json(200);
    watcher.until("another one has the lock", |view| !has(view, "holder-silent")).await;
}
