//! Goal: without the fence a program still sells what there is, each order once, and a reader sees a sale that adds up, and
//! no order without its record. Method: batches of one order follow each other, and a reader looks all the time.

use serde_json::json;
use testkit::shared::fresh_database;
use testkit::shared::{fresh_lock_name, shared_endpoint};

use super::program::Program;

#[tokio::test]
async fn without_the_fence_it_sells_all_the_same() {
    let (etcd, redis) = (shared_endpoint().await, fresh_database().await);
    let flags = ["--without", "fence", "--batch-size", "1"];
    let program = Program::start(&etcd, &redis, &fresh_lock_name(), &flags).await;
    assert_eq!(program.metric("flash_sale_defence{defence=\"fence\"}").await, 0);
    assert_eq!(program.json("/version").await["without"], json!(["fence"]));
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
