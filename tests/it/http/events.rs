//! Goal: a watcher sees the true state, in order, at a bounded cost. Method: shops over the real servers,
//! and streams that are read in process, so that nothing is in flight between them.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{ClusterId, Token};
use flash_sale::inventory::Item;
use serde_json::Value;
use testkit::shared::shared_endpoint;
use testkit::{EtcdOptions, PrivateEtcd, PrivateRedis, RedisOptions};
use tokio::time::Instant;

use super::server::{self, Running};
use super::watching::Watcher;
use crate::shop::{Shop, ShopOptions};
use crate::support::store::{connect, order, scripts_run};

/// Whether a `list` of the view has an entry of this kind.
fn has(view: &Value, list: &str, kind: &str) -> bool {
    view[list].as_array().unwrap().iter().any(|entry| entry["kind"] == kind)
}

/// Goal: a snapshot comes first, then changes; every order is shown once, with its position and the tenure in
/// which it was sold.
#[tokio::test]
async fn a_snapshot_then_changes() {
    let shop = Shop::selling(10, ShopOptions::default()).await;
    shop.order("first").await.json(200);
    let mut watcher = Watcher::open(&shop.router, "/events").await;
    let first = watcher.next().await;
    assert_eq!(first.event, "snapshot");
    assert_eq!(first.data["stock"]["stock"], 9, "{}", first.data);
    assert_eq!(first.data["orders"][0]["order"], "first");
    assert_eq!(first.data["instance"], "8080");
    assert_eq!(first.data["guard"], "etcd");
    assert_eq!(first.data["demo"], Value::Null);

    let answer = shop.order("second").await.json(200);
    watcher.until("the second order is shown", |view| view["sold"] == 2).await;
    let view = &watcher.view;
    assert_eq!(view["stock"]["stock"], 8, "{view}");
    assert_eq!(view["stock"]["fence"]["token"], answer["token"]);
    let orders: Vec<_> = view["orders"].as_array().unwrap().iter().map(|o| &o["order"]).collect();
    assert_eq!(orders, ["first", "second"]);
    assert_eq!(view["orders"][1]["token"], answer["token"]);
    assert_eq!(view["here"]["orders"]["reserved"], 2);
    let holds = |view: &Value| view["lock"]["holder"]["token"] == answer["token"];
    assert!(holds(view), "{view}");
    assert_eq!(view["lock"]["holder"]["instance"], "8080");
    let of_token = |view: &Value| {
        let tenures = view["tenures"].as_array().unwrap();
        tenures.iter().find(|tenure| tenure["token"] == answer["token"]).cloned()
    };
    let tenure = of_token(view).expect("the tenure of the order");
    assert_eq!((&tenure["orders"], &tenure["instance"]), (&2.into(), &"8080".into()));
    assert_eq!((&tenure["exact"], &tenure["end_ms"]), (&true.into(), &Value::Null));

    shop.start(5).await;
    watcher.until("the new sale is shown", |view| view["stock"]["initial"] == 5).await;
    assert!(has(&watcher.view, "notes", "sale-started"), "{}", watcher.view);
    assert!(watcher.view["orders"].as_array().unwrap().is_empty(), "{}", watcher.view);
    watcher
        .until("its tenure has ended", |view| !of_token(view).unwrap()["end_ms"].is_null())
        .await;
}

/// Goal: at most ten messages a second, however fast the sale. Method: the least time for a number of
/// messages, each read as soon as it is there.
#[tokio::test]
async fn at_most_ten_messages_a_second() {
    let shop = Arc::new(Shop::selling(1_000_000, ShopOptions::default()).await);
    let buyer = Arc::clone(&shop);
    let buying = tokio::spawn(async move {
        for number in 0_u64.. {
            buyer.order(&number.to_string()).await.json(200);
        }
    });
    let mut watcher = Watcher::open(&shop.router, "/events").await;
    watcher.next().await;
    let first_at = Instant::now();
    for _ in 0..15 {
        watcher.next().await;
    }
    let took = first_at.elapsed();
    buying.abort();
    assert!(took >= Duration::from_millis(1500), "15 messages in {took:?}");
}

/// Goal: nothing is buffered for a slow reader: it gets one message with the present state. A watcher that returns soon
/// finds what happened meanwhile.
#[tokio::test]
async fn a_slow_reader_skips_what_it_missed() {
    let shop = Shop::selling(100, ShopOptions::default()).await;
    let mut slow = Watcher::open(&shop.router, "/events").await;
    let mut quick = Watcher::open(&shop.router, "/events").await;
    let seen = slow.next().await.data["version"].as_u64().unwrap();
    for number in 0..5 {
        shop.order(&format!("o{number}")).await.json(200);
        quick.until("the order is shown", |view| view["sold"] == number + 1).await;
    }
    assert!(quick.version > seen + 1);
    let next = slow.next().await;
    assert_eq!(next.event, "snapshot");
    assert_eq!(next.data["sold"], 5);
    assert!(slow.version >= quick.version);
    assert_eq!(slow.view["orders"].as_array().unwrap().len(), 5);

    let version = slow.version;
    drop((slow, quick));
    let mut again = Watcher::open(&shop.router, "/events").await;
    assert_eq!(again.next().await.event, "snapshot");
    assert!(again.version >= version, "the same feed");
    let points = again.view["points"].as_array().unwrap().len();
    assert!(points > 0 && again.view["orders"][0]["order"] == "o0", "{}", again.view);
}

/// Goal: the number of watchers is bounded, and a place is free again as soon as a watcher leaves.
#[tokio::test]
async fn the_number_of_watchers_is_bounded() {
    let shop = Shop::selling(1, ShopOptions { watchers: 2, ..ShopOptions::default() }).await;
    let first = Watcher::open(&shop.router, "/events").await;
    let mut second = Watcher::open(&shop.router, "/events").await;
    let refused = shop.call("GET /events").await;
    refused.problem(503, "too-many-watchers");
    refused.assert_retry_after();
    drop(first);
    let mut third = Watcher::open(&shop.router, "/events").await;
    assert_eq!(third.next().await.event, "snapshot");
    assert_eq!(second.next().await.event, "snapshot");
}

/// Goal: visitors that come and go, each for another item, cost the store a bounded number of polls a second, and
/// start no more feeds than may watch. Method: many visitors come; Redis counts the polls.
#[tokio::test]
async fn visitors_of_many_items_are_bounded() {
    const ITEMS: u32 = 40;
    let redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let options = ShopOptions { watchers: 2, ..ShopOptions::default() };
    let shop = Shop::at(shared_endpoint().await, redis.url(), options);
    shop.start(1).await;
    let mut raw = shop.raw().await;
    for number in 0..ITEMS {
        raw.run::<()>(&format!("SET stock:{{real-{number}}} 1")).await;
    }
    let (before, began_at) = (scripts_run(&redis).await, Instant::now());
    for number in 0..ITEMS {
        let mut watcher = Watcher::open(&shop.router, &format!("/events?item=real-{number}")).await;
        assert_eq!(watcher.next().await.event, "snapshot");
        let made_up = format!("GET /events?item=made-up-{number}");
        shop.call(&made_up).await.problem(404, "unknown-item");
    }
    // each visitor has the item checked, and its feed polls at once; two feeds are left, for ten seconds
    tokio::time::sleep(Duration::from_secs(2)).await;
    let ticks = u32::try_from(began_at.elapsed().as_millis() / 125).unwrap() + 1;
    let polls = scripts_run(&redis).await - before;
    assert!(polls <= 4 * ITEMS + 2 * ticks, "{polls} polls in {ticks} ticks");
}

/// Goal: the streams end when the instance stops, so that it does not wait for them.
#[tokio::test]
async fn streams_end_at_shutdown() {
    let shop = Shop::selling(1, ShopOptions::default()).await;
    let server = Running::start(shop.router.clone(), server::OPTIONS);
    let mut over_a_socket = server.connect().await;
    over_a_socket.send_get("/events").await;
    let mut watcher = Watcher::open(&shop.router, "/events").await;
    watcher.next().await;

    shop.state.set_stopping();
    server.stop.send(()).unwrap();
    let mut rest = 0;
    while watcher.try_next().await.is_some() {
        rest += 1;
        assert!(rest < 10, "the stream ends");
    }
    assert_eq!(Running::end(server.ended).await, 0);
    shop.call("GET /events").await.problem(503, "stopping");
}

/// Goal: both instances show the same sale, whichever of them sells.
#[tokio::test]
async fn all_instances_show_the_whole_sale() {
    let here = Shop::selling(100, ShopOptions::default()).await;
    let there = here.beside("8090");
    let mut watchers = Vec::new();
    for shop in [&here, &there] {
        let mut watcher = Watcher::open(&shop.router, "/events").await;
        // a tenure that ends before the queue is watched is not shown
        watcher.until("the queue is watched", |view| view["lock"]["known"] == true).await;
        watchers.push(watcher);
    }
    let mut tokens = Vec::new();
    for number in 0..6 {
        let shop = if number % 2 == 0 { &here } else { &there };
        tokens.push(shop.order(&format!("o{number}")).await.json(200)["token"].clone());
    }
    for watcher in &mut watchers {
        let is_shown = |view: &Value| {
            let tenures = view["tenures"].as_array().unwrap();
            let sold: u64 = tenures.iter().map(|tenure| tenure["orders"].as_u64().unwrap()).sum();
            sold == 6 && view["sold"] == 6
        };
        watcher.until("all six orders and their tenures are shown", is_shown).await;
        let view = &watcher.view;
        let orders = view["orders"].as_array().unwrap();
        let shown: Vec<_> = orders.iter().map(|order| order["token"].clone()).collect();
        assert_eq!(shown, tokens, "{view}");
        let by: Vec<_> = orders.iter().map(|order| order["instance"].as_str().unwrap()).collect();
        assert_eq!(by, ["8080", "8090"].repeat(3), "{view}");
        assert_eq!(view["instances"], serde_json::json!(["8080", "8090"]));
        for tenure in view["tenures"].as_array().unwrap().iter().filter(|t| t["orders"] != 0) {
            let order = orders.iter().find(|order| order["token"] == tenure["token"]).unwrap();
            assert_eq!(order["instance"], tenure["instance"], "{view}");
        }
    }
    there.sale.close().await;
}

/// Goal: a named item has a stream once it has a sale; the stream of the default item says that there is
/// none.
#[tokio::test]
async fn each_item_has_a_stream_of_its_own() {
    let shop = Shop::empty(ShopOptions::default()).await;
    let mut default = Watcher::open(&shop.router, "/events").await;
    default.next().await;
    assert_eq!(default.view["stock"], Value::Null);
    assert!(has(&default.view, "troubles", "no-sale"), "{}", default.view);
    shop.start(7).await;
    default.until("its sale is shown", |view| view["stock"]["stock"] == 7).await;
    assert!(!has(&default.view, "troubles", "no-sale"), "{}", default.view);

    let problem = shop.call("GET /events?item=tea").await.problem(404, "unknown-item");
    assert_eq!(problem["item"], "tea");
    shop.put("tea", r#"{"stock":3}"#).await.json(200);
    let mut other = Watcher::open(&shop.router, "/events?item=tea").await;
    other.until("its sale is shown", |view| view["stock"]["stock"] == 3).await;
    assert_eq!(other.view["item"], "tea");
    shop.raw().await.run::<()>("SET stock:{tea} many").await;
    other.until("it is damaged", |view| has(view, "troubles", "damaged")).await;
    let mut damaged = Watcher::open(&shop.beside("8090").router, "/events?item=tea").await;
    damaged.next().await;
    damaged.until("what is damaged is shown", |view| has(view, "troubles", "damaged")).await;
    shop.call("GET /events?item=T").await.problem(400, "bad-item");
    shop.call("GET /events?items=t").await.problem(400, "bad-parameter");
}

/// Goal: older data is shown as a roll-back and not as a new sale, also by an instance that sold nothing.
#[tokio::test]
async fn a_roll_back_is_no_new_sale() {
    let shop = Shop::empty(ShopOptions::default()).await;
    let elsewhere = connect(&shop.redis).await;
    let token = |revision| Some(Token::new(ClusterId(7), revision));
    elsewhere.start(&Item::DEFAULT, token(1), 5).await.unwrap();
    elsewhere.reduce(&Item::DEFAULT, token(2), "8090", &[order("a-1", 1)]).await.unwrap();
    let mut watcher = Watcher::open(&shop.router, "/events").await;
    watcher.until("the order is shown", |view| view["sold"] == 1).await;
    shop.raw().await.run_with::<()>("MSET stock 5 lucky 0 fence", "7 1").await;
    watcher.until("the older data is shown", |view| view["sold"] == 0).await;
    assert!(has(&watcher.view, "notes", "rolled-back"), "{}", watcher.view);
    assert!(!has(&watcher.view, "notes", "sale-started"), "{}", watcher.view);
}

/// Goal: an outage and its end are shown, and the stream goes on meanwhile.
#[tokio::test]
async fn outages_are_shown() {
    let mut etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    let mut redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let shop = Shop::at(etcd.endpoint(), redis.url(), ShopOptions::default());
    shop.start(5).await;
    let mut watcher = Watcher::open(&shop.router, "/events").await;
    watcher.next().await;
    assert_eq!(watcher.view["troubles"], serde_json::json!([]));

    redis.kill().await.unwrap();
    watcher.until("Redis is away", |view| has(view, "troubles", "redis-away")).await;
    assert_eq!(watcher.view["stock"]["stock"], 5, "the last that is known");
    redis.restart().await.unwrap();
    watcher.until("Redis is back", |view| !has(view, "troubles", "redis-away")).await;
    assert!(has(&watcher.view, "notes", "store-back"), "{}", watcher.view);

    etcd.kill().await.unwrap();
    let is_away =
        |view: &Value| has(view, "troubles", "etcd-away") || has(view, "troubles", "lock-lost");
    watcher.until("etcd is away", is_away).await;
    etcd.restart().await.unwrap();
    watcher.until("etcd is back", |view| !is_away(view)).await;
    assert!(has(&watcher.view, "notes", "etcd-back"), "{}", watcher.view);
}
