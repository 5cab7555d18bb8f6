//! Goal: each safeguard of the sale and of the store can be removed. Method: the fault against which it protects, once.

use std::os::unix::process::ExitStatusExt;

use serde_json::json;
use testkit::shared::{Raw, fresh_lock_name, shared_endpoint};
use testkit::wait::eventually;
use testkit::{PrivateRedis, Proxy, RedisOptions};

use super::program::Program;

#[tokio::test]
async fn without_order_ids_a_retry_buys_again() {
    let program = Program::selling(&["--without", "order-ids"]).await;
    for _ in 0..2 {
        assert_eq!(program.order("a").await.status, 200);
    }
    let mut redis = program.redis().await;
    assert_eq!(redis.run::<u32>("GET stock").await, 8);
    assert_eq!(redis.run::<Vec<String>>("LRANGE ledger 0 -1").await, ["a", "a"]);
}

#[tokio::test]
async fn without_an_atomic_ledger_a_death_loses_units() {
    let flags = ["--without", "atomic-ledger", "--fault-at", "between-writes:kill:DIR/now"];
    let mut program = Program::selling(&flags).await;
    let mut redis = program.redis().await;
    assert_eq!(program.order("a").await.status, 200);
    assert_eq!(redis.run::<(u32, u32)>("MGET stock lucky").await, (9, 1));
    assert_eq!(redis.run::<u32>("LLEN ledger").await, 1);
    program.ask_for("now");
    let _order = program.send_order("b").await;
    assert_eq!(program.exit().await.signal(), Some(9));
    assert_eq!(redis.run::<(u32, u32)>("MGET stock lucky").await, (8, 1));
    assert_eq!(redis.run::<u32>("LLEN ledger").await, 1);
}

#[tokio::test]
async fn without_batch_ownership_the_client_is_told_otherwise() {
    let flags = ["--without", "batch-ownership", "--fault-at", "after-send:pause=5s:DIR/now"];
    let program = Program::selling(&flags).await;
    program.ask_for("now");
    program.order("a").await.assert_problem(503, "wait-too-long");
    assert_eq!(program.redis().await.run::<Vec<String>>("LRANGE ledger 0 -1").await, ["a"]);
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

/// Goal: with these flags a repetition still gets its first answer, marked as such; but without a reload, a store that forgot its
/// scripts ends the sale.
#[tokio::test]
async fn without_script_reload_a_flush_ends_the_sale() {
    let redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let flags = ["--without", "script-reload"];
    let program =
        Program::start(&shared_endpoint().await, &redis.url(), &fresh_lock_name(), &flags).await;
    program.sell(10).await;
    let [first, again] = [program.order("a").await, program.order("a").await];
    assert_eq!((first.status, &first.body), (200, &again.body));
    let marks = [first, again].map(|it| it.header("idempotency-replayed").is_some());
    assert_eq!(marks, [false, true]);
    let () = Raw::connect(&redis.url()).await.run("SCRIPT FLUSH").await;
    program.order("b").await.assert_problem(503, "store-misconfigured");
}

#[tokio::test]
async fn without_deadlines_an_order_waits_for_ever() {
    let flags = ["--without", "deadlines", "--wait-timeout", "10ms"];
    let program = Program::selling(&flags).await;
    let other = program.other_session().await;
    let guard = other.mutex(&program.lock).unwrap().lock().await.unwrap();
    let mut order = program.send_order("a").await;
    // with the deadline it would be answered after a fifth of this
    assert!(order.is_silent().await);
    guard.unlock().await.unwrap();
    assert_eq!(order.answer().await.status, 200);
}

#[tokio::test]
async fn without_limits_a_head_of_any_size_is_taken() {
    let program = Program::selling(&["--without", "limits"]).await;
    let mut connection = program.connection().await;
    let head = format!("X-Large: {}\r\n", "x".repeat(1 << 20));
    connection.send(format!("GET /stock HTTP/1.1\r\nHost: test\r\n{head}\r\n")).await;
    assert_eq!(connection.answer().await.status, 200);
    assert_eq!(program.json("/version").await["without"], json!(["limits"]));
}
