//! Goal: an outage differs from a sale that ended, sells nothing, and leaves nothing behind.
//! Method: servers of the test's own, killed, paused and started again.

use std::time::Duration;

use axum::body::Body;
use serde_json::json;
use testkit::shared::{fresh_database, shared_endpoint};
use testkit::{EtcdOptions, PrivateEtcd, PrivateRedis, RedisOptions};

use crate::shop::{Shop, ShopOptions};

fn impatient() -> ShopOptions {
    ShopOptions { wait_timeout: Duration::from_millis(500), ..ShopOptions::default() }
}

#[tokio::test]
async fn without_etcd_nothing_is_sold() {
    let mut etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    let shop = Shop::at(etcd.endpoint(), fresh_database().await, impatient());
    shop.until_ready().await;
    shop.start(5).await;
    etcd.kill().await.unwrap();

    let reply = shop.order("a-1").await;
    reply.problem(503, "lock-unavailable");
    assert_eq!(reply.headers["retry-after"], "1");
    assert_eq!(shop.call("GET /readyz").await.status, 503);
    assert_eq!(shop.call("GET /healthz").await.status, 200);
    // what needs no lock is still answered
    assert_eq!(shop.stock().await["stock"], 5);

    etcd.restart().await.unwrap();
    shop.until_ready().await;
    shop.order("a-1").await.json(200);
    assert_eq!(shop.stock().await["stock"], 4);
}

#[tokio::test]
async fn without_redis_nothing_is_sold() {
    let mut redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let shop = Shop::at(shared_endpoint().await, redis.url(), ShopOptions::default());
    shop.start(5).await;
    redis.kill().await.unwrap();

    let reply = shop.order("a-1").await;
    reply.problem(503, "store-unavailable");
    assert_eq!(reply.headers["retry-after"], "1");
    for path in ["/readyz", "/stock", "/orders", "/orders/a-1"] {
        shop.call(&format!("GET {path}")).await.problem(503, "store-unavailable");
    }
    redis.restart().await.unwrap();
    // a failed attempt to connect is not kept for the next caller
    assert_eq!(shop.stock().await["stock"], 5);
    shop.until_ready().await;
    shop.order("a-1").await.json(200);
    assert_eq!(shop.stock().await["stock"], 4);
}

/// Goal: when Redis stops between an order and its answer, the outcome is unknown; a retry with the id of the
/// answer gets it and takes nothing twice.
#[tokio::test]
async fn a_lost_answer_is_an_unknown_outcome() {
    let mut redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let wait_timeout = Duration::from_secs(2);
    let options = ShopOptions { wait_timeout, ..ShopOptions::default() };
    let shop = Shop::at(shared_endpoint().await, redis.url(), options);
    shop.start(5).await;

    // while another one holds the lock, the order has looked at the stock and has not touched it
    let (_session, guard) = shop.hold_lock().await;
    let (reply, ()) = tokio::join!(shop.call("POST /stock/reduce"), async {
        shop.until_queued(2).await;
        redis.child().pause().unwrap();
        guard.unlock().await.unwrap();
    });
    let problem = reply.problem(504, "outcome-unknown");
    let id = problem["order"].as_str().expect("the id to ask with");

    redis.child().resume().unwrap();
    shop.until_ready().await;
    let key = [("idempotency-key", id)];
    let again = shop.call_with("POST /stock/reduce", &key, Body::empty()).await.json(200);
    assert_eq!(again["order"], id);
    let stock = shop.stock().await;
    assert_eq!((&stock["lucky"], &stock["orders"]), (&json!(1), &json!(1)));
}
