//! Goal: each safeguard of the lock can be removed. Method: the fault against which it protects, once without it, and once with
//! it if that is quick.

use fenced_lock::Session;
use testkit::shared::{fresh_database, fresh_lock_name, shared_endpoint};
use testkit::wait::{eventually, within};
use testkit::{EtcdOptions, PrivateEtcd, Proxy};

use super::program::Program;
use crate::support::etcd::session;

/// How many claims are in the queue for the lock `name`.
async fn claims(session: &Session, name: &str) -> usize {
    session.mutex(name).unwrap().queue().await.unwrap().len()
}

#[tokio::test]
async fn without_claim_cleanup_a_claim_stays() {
    let program = Program::selling(&["--without", "claim-cleanup"]).await;
    let (other, lock) = (program.other_session().await, &program.lock);
    let _guard = other.mutex(lock).unwrap().lock().await.unwrap();
    let order = program.send_order("a").await;
    eventually("the order waits", async || claims(&other, lock).await == 2).await;
    drop(order);
    eventually("no order waits any more", async || {
        program.metric("flash_sale_orders_waiting").await == 0
    })
    .await;
    let _order = program.send_order("b").await;
    eventually("the next claim stands behind it", async || claims(&other, lock).await == 3).await;
}

/// Sends orders to a program that is cut off from etcd, until another one has sold. Returns how many of
/// its batches were refused by then.
async fn refused_after_a_cut(flags: &[&str]) -> u64 {
    let etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    let (redis, lock) = (fresh_database().await, fresh_lock_name());
    let proxy = Proxy::to(etcd.port()).await.unwrap();
    let common = ["--lock-ttl", "2s", "--tenure", "1m"];
    let of_cut_off = [&common[..], &["--wait-timeout", "2s"], flags].concat();
    let cut_off = Program::start(&proxy.url(), &redis, &lock, &of_cut_off).await;
    let other = Program::start(&etcd.endpoint(), &redis, &lock, &common).await;
    cut_off.sell(1000).await;
    assert_eq!(cut_off.order("a").await.status, 200);
    proxy.freeze();
    let mut waiting = other.send_order("b").await;
    let mut orders = Vec::new();
    // a holder without orders gives the lock up
    eventually("the other one sells", async || {
        orders.push(cut_off.send_order(&format!("a{}", orders.len())).await);
        other.metric("flash_sale_orders_total{outcome=\"reserved\"}").await == 1
    })
    .await;
    assert_eq!(waiting.answer().await.status, 200);
    // its answer comes after what the store said of it, if it was sent
    assert_eq!(cut_off.order("last").await.status, 503);
    cut_off.metric("flash_sale_stale_batches_total").await
}

#[tokio::test]
async fn without_local_expiry_a_stale_batch_is_sent() {
    // one, or the second of those on their way as well
    let refused = refused_after_a_cut(&["--without", "local-expiry"]).await;
    assert!(matches!(refused, 1 | 2), "{refused}");
    assert_eq!(refused_after_a_cut(&[]).await, 0);
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
    eventually("the order waits", async || claims(&other, &lock).await == 2).await;

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

/// Starves the runtime for longer than a lease lasts, and waits until so many sessions were lost.
async fn loses_while_starved(flags: &[&str], lost: u64) {
    let flags = [&["--lock-ttl", "4s", "--fault-at", "after-answer:starve=6s:DIR/now"], flags];
    let program = Program::selling(&flags.concat()).await;
    program.ask_for("now");
    let mut order = program.send_order("a").await;
    // the answer waits for a worker
    assert_eq!(within("the order is answered", order.answer()).await.status, 200);
    eventually("so many are lost", async || {
        program.metric("flash_sale_lost_sessions_total").await == lost
    })
    .await;
}

#[tokio::test]
async fn without_its_own_thread_a_busy_runtime_loses_the_lease() {
    loses_while_starved(&["--without", "own-thread"], 1).await;
    loses_while_starved(&[], 0).await;
}

/// Whether two programs of one name can hold the lock at the same time.
async fn are_taken_for_one(flags: &[&str]) -> bool {
    let (etcd, redis, lock) = (shared_endpoint().await, fresh_database().await, fresh_lock_name());
    let flags = [&["--instance", "same", "--fault-at", "after-answer:stop:DIR/now"], flags];
    let flags = flags.concat();
    let one = Program::start(&etcd, &redis, &lock, &flags).await;
    let other = Program::start(&etcd, &redis, &lock, &flags).await;
    one.sell(10).await;
    one.ask_for("now");
    let mut first = one.send_order("a").await;
    one.until_stopped().await;
    let mut second = other.send_order("b").await;
    let watcher = session(&etcd, "watcher").await;
    let mut is_answered = false;
    eventually("the other one queues, or sells", async || {
        is_answered = other.metric("flash_sale_orders_total{outcome=\"reserved\"}").await == 1;
        is_answered || claims(&watcher, &lock).await == 2
    })
    .await;
    one.signal(rustix::process::Signal::CONT);
    assert_eq!(first.answer().await.status, 200);
    assert_eq!(second.answer().await.status, 200);
    is_answered
}

#[tokio::test]
async fn without_owner_by_claim_a_name_is_enough() {
    assert!(are_taken_for_one(&["--without", "owner-by-claim"]).await);
    assert!(!are_taken_for_one(&[]).await);
}

/// The status of an order of item `a` while another client holds the lock of item `a-b`.
async fn beside_a_longer_name(flags: &[&str]) -> u16 {
    let program = Program::selling(&[&["--wait-timeout", "1s"], flags].concat()).await;
    let () = program.redis().await.run("SET stock:{a} 10").await;
    let other = program.other_session().await;
    let _guard = other.mutex(&format!("{}:a-b", program.lock)).unwrap().lock().await.unwrap();
    program.send_order_of("?item=a", "a").await.answer().await.status
}

#[tokio::test]
async fn without_an_exact_prefix_items_are_in_each_others_way() {
    assert_eq!(beside_a_longer_name(&["--without", "exact-prefix"]).await, 503);
    assert_eq!(beside_a_longer_name(&[]).await, 200);
}
