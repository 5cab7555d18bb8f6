//! Goal: waiting is bounded in number and time, and a lost lock sells nothing. Method: the lock is
//! held by somebody else, or the fence is raised behind the instance's back.

use std::time::Duration;

use fenced_lock::Token;
use flash_sale::inventory::Item;
use serde_json::json;
use testkit::wait::eventually;

use crate::shop::{Shop, ShopOptions};
use crate::support::store::connect;

/// Goal: with one place to wait, the second order is refused at once, and the first one gets its unit. A buyer that
/// disconnects gives up the place and the claim, buys nothing, and is counted.
#[tokio::test]
async fn a_full_queue_turns_away() {
    let options = ShopOptions { queue_length: 1, ..ShopOptions::default() };
    let shop = Shop::selling(5, options).await;
    let (_session, guard) = shop.hold_lock().await;
    tokio::select! {
        _ = shop.order("impatient") => panic!("the lock is held"),
        () = shop.until_queued(2) => {}
    }
    shop.until_queued(1).await;
    let metrics = shop.call("GET /metrics").await.text;
    for line in ["orders_waiting 0", "orders_total{outcome=\"abandoned\"} 1"] {
        assert!(metrics.contains(&format!("\nflash_sale_{line}\n")), "{line}: {metrics}");
    }
    let (first, ()) = tokio::join!(shop.order("first"), async {
        shop.until_queued(2).await;
        let reply = shop.order("second").await;
        reply.problem(429, "queue-full");
        reply.assert_retry_after();
        guard.unlock().await.unwrap();
    });
    first.json(200);
    shop.order("second").await.json(200);
    assert_eq!(shop.stock().await["lucky"], 2);
}

/// Goal: an order whose batch went out under a stale token takes nothing, and is told so once its time is over; an order that
/// came later, and was in no batch, is told that it waited too long, and no claim is left for it. Method: a later token in the
/// store, and another client that has the lock before and afterwards.
#[tokio::test]
async fn a_stale_token_sells_nothing() {
    let options = ShopOptions { wait_timeout: Duration::from_secs(3), ..ShopOptions::default() };
    let shop = Shop::selling(5, options).await;
    let (_session, guard) = shop.hold_lock().await;
    let later = Token::new(guard.token().cluster(), guard.token().revision() + 1_000_000);
    connect(&shop.redis).await.start(&Item::DEFAULT, Some(later), 5).await.unwrap();
    let (stale, waits) = tokio::join!(shop.order("stale"), async {
        shop.until_queued(2).await;
        let (_held, waits) = tokio::join!(shop.hold_lock(), async {
            shop.until_queued(3).await;
            guard.unlock().await.unwrap();
            let batches = || shop.sale.metrics().stale_batches.get();
            eventually("its batch is refused", async || batches() > 0).await;
            let waits = shop.order("waits").await;
            shop.until_queued(1).await;
            waits
        });
        waits
    });
    for (reply, word) in [(stale, "stale-token"), (waits, "wait-too-long")] {
        reply.problem(503, word);
        reply.assert_retry_after();
    }
    let stock = shop.stock().await;
    assert_eq!((&stock["stock"], &stock["orders"]), (&json!(5), &json!(0)));
}
