//! Goal: a holder that is paused between reading and writing, for longer than its lease, does harm
//! without the fence and none with it. Method: it stops itself there, another program sells, and it is
//! told to go on.

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::shared::fresh_database;
use testkit::shared::{fresh_lock_name, shared_endpoint};

use super::program::Program;

/// The paused program, once it has gone on and all were answered, and the stock.
async fn paused_before_writing(flags: &[&str]) -> (Program, Value) {
    let (etcd, redis, lock) = (shared_endpoint().await, fresh_database().await, fresh_lock_name());
    let common = [&["--lock-ttl", "2s"], flags].concat();
    let stops = [&common[..], &["--fault-at", "before-write:stop:file=DIR/now"]].concat();
    let paused = Program::start(&etcd, &redis, &lock, &stops).await;
    let other = Program::start(&etcd, &redis, &lock, &common).await;
    paused.sell(10).await;
    assert_eq!(paused.order("a1").await.status, 200);

    paused.ask_for("now");
    let mut late = paused.send_order("a2").await;
    paused.until_stopped().await;
    for id in ["b1", "b2", "b3"] {
        assert_eq!(other.order(id).await.status, 200, "{id}");
    }
    paused.signal(Signal::CONT);
    assert_eq!(late.answer().await.status, 200);
    let stock = other.json("/stock").await;
    (paused, stock)
}

#[tokio::test]
async fn a_paused_holder_is_refused() {
    let (paused, stock) = paused_before_writing(&[]).await;
    assert_eq!(
        (&stock["stock"], &stock["lucky"], &stock["orders"]),
        (&json!(5), &json!(5), &json!(5))
    );
    assert_eq!(paused.metric("flash_sale_stale_batches_total").await, 1);
    assert_eq!(paused.metric("flash_sale_lost_tenures_total").await, 1);
    assert_eq!(paused.metric("flash_sale_orders_total{outcome=\"reserved\"}").await, 2);
    assert_eq!(paused.json("/version").await["without"], json!([]));
}

#[tokio::test]
async fn without_the_fence_it_undoes_what_others_sold() {
    let (paused, stock) = paused_before_writing(&["--without", "fence"]).await;
    // it saw 9, and the others sold 3 of them
    assert_eq!(
        (&stock["stock"], &stock["lucky"], &stock["orders"]),
        (&json!(8), &json!(5), &json!(5))
    );
    assert_eq!(stock["balanced"], json!(false));
    assert_eq!(paused.metric("flash_sale_stale_batches_total").await, 0);
    assert_eq!(paused.metric("flash_sale_defence{defence=\"fence\"}").await, 0);
    assert_eq!(paused.json("/version").await["without"], json!(["fence"]));
    // the ledger has tokens that go down, and each order once all the same
    let orders = paused.json("/orders").await["orders"].as_array().unwrap().clone();
    let ids: Vec<_> = orders.iter().map(|order| order["order"].as_str().unwrap()).collect();
    assert_eq!(ids, ["a1", "b1", "b2", "b3", "a2"]);
    let tokens: Vec<_> = orders.iter().map(|order| order["token"].as_i64().unwrap()).collect();
    assert!(!tokens.is_sorted(), "{tokens:?}");
}

/// Goal: without the fence a program still sells what there is, each order once, and a reader sees a sale that adds up, and
/// no order without its record. Method: batches of one order follow each other, and a reader looks all the time.
#[tokio::test]
async fn without_the_fence_it_sells_all_the_same() {
    let (etcd, redis) = (shared_endpoint().await, fresh_database().await);
    let flags = ["--without", "fence", "--batch-size", "1"];
    let program = Program::start(&etcd, &redis, &fresh_lock_name(), &flags).await;
    program.sell(2).await;
    for (id, status) in [("a", 200), ("a", 200), ("b", 200), ("c", 409), ("b", 200)] {
        assert_eq!(program.order(id).await.status, status, "{id}");
    }
    let stock = program.json("/stock").await;
    assert_eq!(
        (&stock["stock"], &stock["lucky"], &stock["orders"]),
        (&json!(0), &json!(2), &json!(2))
    );

    program.sell(2000).await;
    let sell = async |buyer: u32| {
        for number in 0..300 {
            assert_eq!(program.order(&format!("{buyer}-{number}")).await.status, 200);
        }
    };
    let look = async || {
        loop {
            let stock = program.json("/stock").await;
            assert_eq!(stock["balanced"], json!(true), "{stock}");
            let orders = program.get("/orders?after=0").await;
            assert_eq!(orders.status, 200, "{orders:?}");
        }
    };
    tokio::select! {
        _ = futures_util::future::join3(sell(1), sell(2), sell(3)) => {}
        never = look() => never,
    }
    assert_eq!(program.json("/stock").await["orders"], json!(900));
}
