//! Goal: an instance that can take no order says so, with the reason, and is ready again when it can; one
//! that can is ready, whatever else is wrong. Method: servers of the test's own where something is done to
//! them; `GET /readyz` is asked.

use etcd_client::Client;
use serde_json::{Value, json};
use testkit::wait::eventually;

use crate::shop::{Shop, ShopOptions};

/// Waits until the instance is not ready for this reason.
async fn until_unready(shop: &Shop, status: u16, word: &str) {
    let has_reason = async || shop.call("GET /readyz").await.text.contains(word);
    eventually(word, has_reason).await;
    shop.call("GET /readyz").await.problem(status, word);
}

#[tokio::test]
async fn a_store_that_takes_no_order_is_not_ready() {
    let (_redis, shop) = Shop::with_own_redis(ShopOptions::default()).await;
    shop.until_ready().await;
    shop.start(5).await;
    let mut raw = shop.raw().await;
    for (spoil, mend, word) in [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "store-unavailable"),
        ("ACL SETUSER default -rpush", "ACL SETUSER default +rpush", "store-misconfigured"),
        (
            "ACL SETUSER default resetkeys %R~ledger ~stock ~lucky ~initial ~orders ~fence ~sale ~doubt",
            "ACL SETUSER default resetkeys allkeys",
            "store-misconfigured",
        ),
    ] {
        shop.until_ready().await;
        raw.run::<()>(spoil).await;
        let reply = shop.order("a-1").await;
        reply.problem(503, word);
        assert_eq!(reply.headers.contains_key("retry-after"), word == "store-unavailable");
        until_unready(&shop, 503, word).await;
        raw.run::<()>(mend).await;
    }
    shop.until_ready().await;
    assert_eq!(shop.stock().await["orders"], 0);
}

/// Goal: one damaged item does not affect readiness while others are whole; nor does an item that is sold
/// out.
#[tokio::test]
async fn what_is_wrong_with_all_items_is_in_the_way() {
    let shop = Shop::selling(1, ShopOptions::default()).await;
    shop.order("the-last").await.json(200);
    shop.until_ready().await;
    let mut raw = shop.raw().await;
    raw.run::<()>("SET stock many").await;
    until_unready(&shop, 500, "damaged").await;
    shop.put("tea", r#"{"stock":3}"#).await.json(200);
    shop.until_ready().await;
    raw.run::<()>("SET stock:{tea} many").await;
    until_unready(&shop, 500, "damaged").await;
    raw.run::<()>("SET stock 0").await;
    shop.until_ready().await;
}

/// Goal: a key without a lease that holds the lock is named, and does not block the lock of another item.
#[tokio::test]
async fn a_key_without_a_lease_in_front_is_named() {
    let shop = Shop::selling(5, ShopOptions::default()).await;
    shop.until_ready().await;
    let mut etcd = Client::connect([&shop.etcd], None).await.unwrap();
    let longer = format!("{}/of/another", shop.lock_name);
    etcd.put(longer, "", None).await.unwrap();
    let key = format!("{}/forgotten", shop.lock_name);
    etcd.put(key.as_str(), "", None).await.unwrap();
    until_unready(&shop, 503, "not-ready").await;
    let problem = shop.call("GET /readyz").await.problem(503, "not-ready");
    assert!(problem["detail"].as_str().unwrap().contains(&key), "{problem}");
    eventually("the lock shows it", async || {
        let holder = shop.call("GET /lock").await.json(200)["holder"].clone();
        holder["key"] == json!(key) && holder["lease"] == Value::Null
    })
    .await;
    shop.put("tea", r#"{"stock":3}"#).await.json(200);
    shop.until_ready().await;
    etcd.put(format!("{}:tea/forgotten", shop.lock_name), "", None).await.unwrap();
    until_unready(&shop, 503, "not-ready").await;
    etcd.delete(key, None).await.unwrap();
    shop.until_ready().await;
}
