//! Goal: each safeguard of the sale and of the store can be removed. Method: the fault that it is there for,
//! once.

use std::os::unix::process::ExitStatusExt;

use serde_json::json;
use testkit::Proxy;
use testkit::shared::{Raw, fresh_database};
use testkit::shared::{fresh_lock_name, shared_endpoint};
use testkit::wait::eventually;
use testkit::{PrivateRedis, RedisOptions};

use super::program::Program;
use crate::support::etcd::session;

async fn without(flags: &[&str]) -> (Program, Raw) {
    let redis = fresh_database().await;
    let program = Program::start(&shared_endpoint().await, &redis, &fresh_lock_name(), flags).await;
    program.sell(10).await;
    (program, Raw::connect(&redis).await)
}

#[tokio::test]
async fn without_order_ids_a_retry_buys_again() {
    let (program, mut redis) = without(&["--without", "order-ids"]).await;
    for _ in 0..2 {
        assert_eq!(program.order("a").await.status, 200);
    }
    assert_eq!(redis.run::<u32>("GET stock").await, 8);
    assert_eq!(redis.run::<Vec<String>>("LRANGE ledger 0 -1").await, ["a", "a"]);
}

#[tokio::test]
async fn without_an_atomic_ledger_a_death_loses_units() {
    let flags = ["--without", "atomic-ledger", "--fault-at", "between-writes:kill:2"];
    let (mut program, mut redis) = without(&flags).await;
    assert_eq!(program.order("a").await.status, 200);
    assert_eq!(redis.run::<(u32, u32)>("MGET stock lucky").await, (9, 1));
    assert_eq!(redis.run::<u32>("LLEN ledger").await, 1);
    let _order = program.send_order("b").await;
    assert_eq!(program.exit().await.signal(), Some(9));
    assert_eq!(redis.run::<(u32, u32)>("MGET stock lucky").await, (8, 1));
    assert_eq!(redis.run::<u32>("LLEN ledger").await, 1);
}

#[tokio::test]
async fn without_batch_ownership_the_client_is_told_otherwise() {
    let flags = ["--without", "batch-ownership", "--fault-at", "after-send:pause=5s:1"];
    let (program, mut redis) = without(&flags).await;
    program.order("a").await.assert_problem(503, "wait-too-long");
    assert_eq!(redis.run::<Vec<String>>("LRANGE ledger 0 -1").await, ["a"]);
}

#[tokio::test]
async fn without_careful_retry_a_lost_answer_buys_again() {
    let redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let proxy = Proxy::to(redis.port()).await.unwrap();
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let flags = ["--without", "careful-retry"];
    let program = Program::start(&shared_endpoint().await, &url, &fresh_lock_name(), &flags).await;
    program.sell(10).await;
    assert_eq!(program.order("a").await.status, 200);
    proxy.freeze();
    let mut order = program.send_order("b").await;
    eventually("the batch is given up", async || {
        program.metric("flash_sale_store_errors_total").await > 0
    })
    .await;
    proxy.release();
    assert_eq!(order.answer().await.status, 200);
    let mut raw = Raw::connect(&redis.url()).await;
    eventually("what was sent first was sold as well", async || {
        let mut ledger: Vec<String> = raw.run("LRANGE ledger 0 -1").await;
        ledger.sort();
        ledger == ["a", "b", "b~2"]
    })
    .await;
}

#[tokio::test]
async fn without_script_reload_a_flush_ends_the_sale() {
    let redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let flags = ["--without", "script-reload"];
    let program =
        Program::start(&shared_endpoint().await, &redis.url(), &fresh_lock_name(), &flags).await;
    program.sell(10).await;
    assert_eq!(program.order("a").await.status, 200);
    let () = Raw::connect(&redis.url()).await.run("SCRIPT FLUSH").await;
    program.order("b").await.assert_problem(503, "store-misconfigured");
}

#[tokio::test]
async fn without_deadlines_an_order_waits_for_ever() {
    let (etcd, lock) = (shared_endpoint().await, fresh_lock_name());
    let flags = ["--without", "deadlines", "--wait-timeout", "10ms"];
    let program = Program::start(&etcd, &fresh_database().await, &lock, &flags).await;
    program.sell(10).await;
    let other = session(&etcd, "other").await;
    let guard = other.mutex(&lock).unwrap().lock().await.unwrap();
    let mut order = program.send_order("a").await;
    // with the deadline it would be answered after a fifth of this
    assert!(order.is_silent().await);
    guard.unlock().await.unwrap();
    assert_eq!(order.answer().await.status, 200);
}

#[tokio::test]
async fn without_limits_a_head_of_any_size_is_taken() {
    let (program, _) = without(&["--without", "limits"]).await;
    let mut connection = program.connection().await;
    let head = format!("X-Large: {}\r\n", "x".repeat(1 << 20));
    connection.send(format!("GET /stock HTTP/1.1\r\nHost: test\r\n{head}\r\n")).await;
    assert_eq!(connection.answer().await.status, 200);
    assert_eq!(program.json("/version").await["without"], json!(["limits"]));
}
