//! Goal: an outage differs from a sale that ended, sells nothing, and leaves nothing behind.
//! Method: servers of the test's own, killed, paused and started again.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{EtcdOptions, PrivateEtcd, PrivateRedis, RedisOptions};

use super::events::{Watcher, has};
use crate::shop::{Shop, ShopOptions};

/// Goal: while a server is away nothing is sold, watchers are told, and calls that do not need it are answered.
#[tokio::test]
async fn without_redis_or_etcd_nothing_is_sold() {
    let mut etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    let mut redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let options =
        ShopOptions { wait_timeout: Duration::from_millis(500), ..ShopOptions::default() };
    let shop = Shop::at(etcd.endpoint(), redis.url(), options);
    shop.until_ready().await;
    shop.start(5).await;
    let mut watcher = Watcher::open(&shop.router, "/events").await;
    watcher.until("all is well", |view| view["alerts"] == json!([])).await;

    redis.kill().await.unwrap();
    let reply = shop.order("a-1").await;
    reply.problem(503, "store-unavailable");
    reply.assert_retry_after();
    for path in ["/readyz", "/stock", "/orders", "/orders/a-1"] {
        shop.ask(&format!("GET {path}")).await.problem(503, "store-unavailable");
    }
    watcher.until("Redis is away", |view| has(view, "redis-away")).await;
    assert_eq!(watcher.view["stock"]["stock"], 5, "the last that is known");
    redis.restart().await.unwrap();
    // a failed attempt to connect is not kept for the next caller
    assert_eq!(shop.stock().await["stock"], 5);
    shop.until_ready().await;
    watcher.until("Redis is back", |view| !has(view, "redis-away")).await;

    etcd.kill().await.unwrap();
    let reply = shop.order("a-1").await;
    reply.problem(503, "lock-unavailable");
    reply.assert_retry_after();
    assert_eq!(shop.call("GET /readyz").await.status, 503);
    assert_eq!(shop.call("GET /healthz").await.status, 200);
    // what needs no lock is still answered
    assert_eq!(shop.stock().await["stock"], 5);
    let is_away = |view: &Value| has(view, "etcd-away") || has(view, "lock-lost");
    watcher.until("etcd is away", is_away).await;
    etcd.restart().await.unwrap();
    shop.until_ready().await;
    watcher.until("etcd is back", |view| !is_away(view)).await;
    shop.order("a-1").await.json(200);
    assert_eq!(shop.stock().await["stock"], 4);
}
