//! Goal: `--without` takes a safeguard out, of the sale and of the lock. The fault suite has a control for each.

use fenced_lock::Session;
use serde_json::json;
use testkit::shared::{fresh_database, fresh_lock_name};
use testkit::wait::eventually;
use testkit::{EtcdOptions, PrivateEtcd, Proxy};

use super::program::Program;
use crate::support::etcd::session;

/// Waits until so many claims are in the queue for the lock `name`.
async fn until_claims(session: &Session, name: &str, expected: usize) {
    let mutex = session.mutex(name).unwrap();
    eventually(&format!("{expected} claims"), async || {
        mutex.queue().await.unwrap().len() == expected
    })
    .await;
}

#[tokio::test]
async fn without_order_ids_a_retry_buys_again() {
    let program = Program::selling(&["--without", "order-ids"]).await;
    for _ in 0..2 {
        assert_eq!(program.order("a").await.status, 200);
    }
    let mut redis = program.redis().await;
    assert_eq!(redis.run::<u32>("GET stock").await, 8);
    assert_eq!(redis.run::<Vec<String>>("LRANGE ledger 0 -1").await, ["a", "a"]);
    assert_eq!(program.json("/version").await["without"], json!(["order-ids"]));
}

#[tokio::test]
async fn without_claim_cleanup_a_claim_stays() {
    let program = Program::selling(&["--without", "claim-cleanup"]).await;
    let (other, lock) = (program.other_session().await, &program.lock);
    let _guard = other.mutex(lock).unwrap().lock().await.unwrap();
    let order = program.send_order("a").await;
    until_claims(&other, lock, 2).await;
    drop(order);
    eventually("no order waits any more", async || {
        program.metric("flash_sale_orders_waiting").await == 0
    })
    .await;
    let _order = program.send_order("b").await;
    until_claims(&other, lock, 3).await;
}

/// Whether an order that waits behind another client is served after the watch was broken, and what happened
/// meanwhile was compacted.
async fn is_served_after_a_break(flags: &[&str], is_compacted: bool) -> bool {
    let etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    let (redis, lock) = (fresh_database().await, fresh_lock_name());
    let proxy = Proxy::to(etcd.port()).await.unwrap();
    let flags = [&["--wait-timeout", "5s"], flags].concat();
    let program = Program::start(&proxy.url(), &redis, &lock, &flags).await;
    program.sell(10).await;
    let other = session(&etcd.endpoint(), "other").await;
    let guard = other.mutex(&lock).unwrap().lock().await.unwrap();
    let mut order = program.send_order("a").await;
    until_claims(&other, &lock, 2).await;

    proxy.freeze();
    proxy.cut();
    guard.unlock().await.unwrap();
    let mut client = etcd_client::Client::connect([etcd.endpoint()], None).await.unwrap();
    let mut revision = 0;
    for _ in 0..3 {
        revision = client.put("noise", "", None).await.unwrap().header().unwrap().revision();
    }
    if is_compacted {
        client.compact(revision, None).await.unwrap();
    }
    proxy.release();
    match order.answer().await {
        answer if answer.status == 200 => true,
        answer => {
            answer.assert_problem(503, "wait-too-long");
            false
        }
    }
}

#[tokio::test]
async fn without_re_watch_or_relist_a_break_hides_what_happened() {
    assert!(is_served_after_a_break(&[], true).await);
    for (safeguard, is_compacted) in [("re-watch", false), ("relist", false), ("relist", true)] {
        assert!(!is_served_after_a_break(&["--without", safeguard], is_compacted).await);
    }
}
