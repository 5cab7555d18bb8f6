//! Goal: `--without` takes a safeguard out, of the sale and of the lock. The fault suite has a control for each.

use serde_json::json;
use testkit::wait::eventually;

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
    assert_eq!(program.json("/version").await["without"], json!(["order-ids"]));
}

#[tokio::test]
async fn without_claim_cleanup_a_claim_stays() {
    let program = Program::selling(&["--without", "claim-cleanup"]).await;
    let mutex = program.other_session().await.mutex(&program.lock).unwrap();
    let claims = async |expected| {
        eventually(&format!("{expected} claims"), async || {
            mutex.queue().await.unwrap().len() == expected
        })
        .await;
    };
    let _guard = mutex.lock().await.unwrap();
    let order = program.send_order("a").await;
    claims(2).await;
    drop(order);
    eventually("no order waits any more", async || {
        program.metric("flash_sale_orders_waiting").await == 0
    })
    .await;
    let _order = program.send_order("b").await;
    claims(3).await;
}
