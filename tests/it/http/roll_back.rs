//! Goal: a rolled-back store stops the sale with a clear error until an operator has decided, and the
//! operator's command says what it will do before it does it. Method: an instance in process over a
//! Redis that is started again with older data; the command as a process.

use std::time::Duration;

use flash_sale::inventory::{Item, Replicas};
use serde_json::json;
use testkit::copies::{DataCopy, restart_with};
use testkit::shared::{Raw, shared_endpoint};
use testkit::wait::{eventually, within};
use testkit::{EtcdOptions, OwnedDir, PrivateEtcd, RedisOptions, ReplicatedRedis};

use super::limits::patient;
use crate::program::{program, run};
use crate::shop::{Shop, ShopOptions};
use crate::support::store::connect;

/// Runs `flash-sale recover` on the shop's servers, which ends with this status, and returns what it prints.
async fn recover(what: &str, shop: &Shop, flags: &[&str], expected: i32) -> String {
    let (status, text) = run(&[&recovery(what, shop)[..], flags].concat()).await;
    assert_eq!(status, Some(expected), "{text}");
    text
}

fn recovery<'a>(what: &'a str, shop: &'a Shop) -> [&'a str; 8] {
    let (etcd, redis, lock) = (&shop.etcd, &shop.redis, &shop.lock_name);
    ["recover", what, "--etcd", etcd, "--redis", redis, "--lock-name", lock]
}

/// Asserts that every call about the item is refused. Above all, an old copy must not answer `sold out`.
async fn assert_stopped(shop: &Shop) {
    // the connection may still be seen as open for a moment
    eventually("the store answers", async || {
        shop.call("GET /readyz").await.text.contains("store-rolled-back")
    })
    .await;
    let paths =
        ["POST /stock/reduce", "GET /readyz", "GET /stock", "GET /orders", "GET /orders/a-1"];
    for line in paths {
        let reply = shop.ask(line).await;
        let problem = reply.problem(503, "store-rolled-back");
        assert!(!reply.headers.contains_key("retry-after"), "waiting mends nothing");
        assert!(problem["detail"].as_str().unwrap().contains("recover store"), "{problem}");
    }
    assert_eq!(shop.call("GET /healthz").await.status, 200);
}

/// Goal: without `--yes` the command shows the state and changes nothing; with it the sale goes on.
#[tokio::test]
async fn an_operator_accepts_the_loss() {
    let (mut redis, shop) = Shop::with_own_redis(patient()).await;
    let text = recover("store", &shop, &[], 1).await;
    assert!(text.contains("no stock of default"), "{text}");

    shop.start(0).await;
    let sold_out = DataCopy::of(&redis);
    shop.start(5).await;
    shop.order("a-1").await.json(200);
    let older = DataCopy::of(&redis);
    shop.order("a-2").await.json(200);
    for copy in [&sold_out, &older] {
        restart_with(&mut redis, Some(copy)).await;
        assert_stopped(&shop).await;
    }
    let mut raw = Raw::connect(&redis.url()).await;
    let before = raw.dump().await;
    let text = recover("store", &shop, &[], 3).await;
    for words in ["4 left and 1 sold, of 5", "1 orders, the latest is a-1", "Rerun with --yes"] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    assert_eq!(raw.dump().await, before);
    assert_stopped(&shop).await;

    let metrics = shop.call("GET /metrics").await.text;
    assert!(metrics.contains("\nflash_sale_rolled_back_items 1\n"), "{metrics}");
    recover("store", &shop, &["--yes"], 0).await;
    assert_eq!(shop.call("GET /readyz").await.status, 200);
    assert_eq!(shop.order("a-3").await.json(200)["remaining"], 3);
    let ledger = shop.ask("GET /orders").await.text;
    assert!(ledger.contains("a-1") && !ledger.contains("a-2"), "{ledger}");
}

/// Goal: an operator can end the sale of an item whose keys were deleted on purpose, also with a closed
/// standard output.
#[tokio::test]
async fn an_operator_ends_a_sale_that_is_gone() {
    let (redis, shop) = Shop::with_own_redis(patient()).await;
    shop.start(5).await;
    shop.order("a-1").await.json(200);
    Raw::connect(&redis.url()).await.run::<()>("FLUSHDB").await;
    assert_stopped(&shop).await;
    let text = recover("store", &shop, &[], 3).await;
    for words in ["stock    none", "missing  its sale is gone", "would end the sale"] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    let mut child = program().args(recovery("store", &shop)).arg("--yes").spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(within("it ends", child.wait()).await.unwrap().code(), Some(0));
    assert_eq!(shop.call("GET /readyz").await.status, 200);
    shop.order("a-2").await.problem(404, "unknown-item");
    shop.start(5).await;
    shop.order("a-2").await.json(200);
}

/// Goal: after etcd was set up anew, nothing is sold until an operator accepts its cluster. The command waits
/// for a lock that is held, and names its holder.
#[tokio::test]
async fn an_operator_accepts_another_cluster() {
    let (redis, before) = Shop::with_own_redis(patient()).await;
    before.start(5).await;
    let etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    let shop = Shop::at(etcd.endpoint(), redis.url(), patient());
    for line in ["POST /stock/reduce", "GET /readyz"] {
        let reply = shop.call(line).await;
        let problem = reply.problem(503, "foreign-fence");
        assert!(problem["detail"].as_str().unwrap().contains("recover cluster"), "{problem}");
        assert!(!reply.headers.contains_key("retry-after"), "waiting mends nothing");
    }

    let text = recover("store", &shop, &["--yes"], 1).await;
    assert!(text.contains("recover cluster"), "{text}");
    recover("cluster", &shop, &[], 3).await;
    shop.order("a-1").await.problem(503, "foreign-fence");

    let held = shop.hold_lock().await;
    let text = recover("cluster", &shop, &["--yes", "--wait-timeout", "1s"], 1).await;
    assert!(text.contains("\"other\"") && text.contains("holds it"), "{text}");
    drop(held);

    recover("cluster", &shop, &["--yes"], 0).await;
    shop.order("a-1").await.json(200);
    before.order("a-2").await.problem(503, "foreign-fence");
    let text = recover("cluster", &shop, &["--yes"], 0).await;
    assert!(text.contains("Nothing to do"), "{text}");
}

/// Goal: damaged data keep nobody from accepting another cluster: a new sale, which mends them, needs that first.
#[tokio::test]
async fn an_operator_accepts_another_cluster_for_damaged_data() {
    let (redis, before) = Shop::with_own_redis(patient()).await;
    before.start(5).await;
    let etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    let shop = Shop::at(etcd.endpoint(), redis.url(), patient());
    shop.raw().await.run::<()>("SET lucky none").await;
    let text = recover("store", &shop, &["--yes"], 1).await;
    assert!(text.contains("lucky is not a whole number"), "{text}");
    let text = recover("cluster", &shop, &[], 3).await;
    assert!(text.contains("damaged  lucky is not a whole number"), "{text}");
    shop.put("default", r#"{"stock":5}"#).await.problem(503, "foreign-fence");
    recover("cluster", &shop, &["--yes"], 0).await;
    shop.start(5).await;
    shop.order("a-1").await.json(200);
}

/// Goal: a sleeping replica makes the outcome unknown; a retry with the id from that reply gets its answer only when the replica
/// has the order, also if nothing is left by then, and takes nothing twice.
#[tokio::test]
async fn without_its_replica_an_order_is_unknown() {
    let dir = OwnedDir::create().unwrap();
    let mut pair = ReplicatedRedis::start_in(&dir, RedisOptions::default()).await.unwrap();
    let options =
        ShopOptions { replicas: 1, wait_timeout: Duration::from_secs(1), ..ShopOptions::default() };
    let shop = Shop::at(shared_endpoint().await, pair.url(), options);
    // a busy machine may take longer than the shop waits
    let patient = Replicas { count: 1, timeout: Duration::from_secs(20) };
    let inventory = connect(&pair.url()).await.with_replicas(patient);
    inventory.start(&Item::DEFAULT, None, 1).await.unwrap();
    pair.replica.child().pause().unwrap();
    let problem = shop.call("POST /stock/reduce").await.problem(504, "outcome-unknown");
    let id = problem["order"].as_str().expect("the id to ask with");
    assert_eq!(shop.order(id).await.problem(504, "outcome-unknown")["order"], id);
    assert_eq!(shop.raw().await.run::<u64>("GET stock").await, 0, "it was the last unit");
    pair.replica.child().resume().unwrap();
    eventually("the replica has it", async || shop.order(id).await.status == 200).await;
    let stock = shop.stock().await;
    assert_eq!((&stock["lucky"], &stock["orders"]), (&json!(1), &json!(1)));
}
