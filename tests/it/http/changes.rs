//! Goal: `PATCH /stock` changes a sale once, whatever is on its way. Method: calls in process, over a real etcd and a real Redis.

use axum::body::Body;
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use testkit::shared::shared_endpoint;
use testkit::wait::eventually;
use testkit::{Direction, PrivateRedis, RedisOptions};

use crate::shop::{ADMIN, Reply, SERVER, Shop, ShopOptions};
use crate::support::store::scripts_run;

async fn start(shop: &Shop, body: &Value) {
    shop.call_with("PUT /stock", &[ADMIN], body.to_string()).await.json(200);
}

async fn change(shop: &Shop, key: &str, sale: &str, body: &str) -> Reply {
    let headers = [ADMIN, ("idempotency-key", key), ("if-match", sale)];
    shop.call_with("PATCH /stock", &headers, body.to_owned()).await
}

/// Goal: the answer to a change is the present state and the entry, which the ledger has too. Who may not change, does not say what, or
/// names no sale, key or version changes nothing.
#[tokio::test]
async fn a_change_says_what_it_did() {
    let shop = Shop::empty(ShopOptions::default()).await;
    let other = shop.beside("b");
    start(&shop, &json!({"stock": 2, "sale": "s", "hold_seconds": 60})).await;
    shop.order("a").await.json(200);
    assert_eq!(shop.stock().await["version"], 0);
    let body = r#"{"add":3,"note":"<b>more</b>"}"#;
    let first = change(&other, "k", "\"s:0\"", body).await;
    let entry =
        json!({"position": 2, "event": "changed", "change": {"add": 3}, "note": "<b>more</b>"});
    let view = first.json(200);
    for (field, value) in entry.as_object().unwrap() {
        assert_eq!(view["entry"][field], *value, "{view}");
    }
    let counts = ["stock", "lucky", "initial", "version", "state"].map(|field| &view[field]);
    assert_eq!(counts, [&json!(4), &json!(1), &json!(5), &json!(1), &json!("running")]);
    let ledger = shop.ask("GET /orders").await.json(200);
    let mut line = ledger["orders"][1].clone();
    assert_eq!(line.as_object_mut().unwrap().remove("sale"), Some("s".into()));
    assert_eq!(line, view["entry"]);

    shop.order("b").await.json(200);
    let again = change(&shop, "k", "\"s\"", body).await;
    assert_eq!(again.headers["idempotency-replayed"], "true");
    assert_eq!((&again.json(200)["entry"], &again.json(200)["stock"]), (&view["entry"], &json!(3)));
    assert!(!first.headers.contains_key("idempotency-replayed"));

    let ok = r#"{"add":1}"#;
    let long = format!(r#"{{"add":1,"note":"{}"}}"#, "ü".repeat(201));
    for (key, sale, body, status, word, part) in [
        ("k", "\"s\"", r#"{"add":4}"#, 422, "change-conflict", ""),
        ("l", "\"s:0\"", ok, 412, "sale-mismatch", "s"),
        ("l", "\"t\"", ok, 412, "sale-mismatch", "s"),
        ("l", "*", ok, 400, "bad-sale-id", "refused here"),
        ("l", "\"s:x\"", ok, 400, "bad-sale-id", "version"),
        ("", "\"s\"", ok, 400, "bad-order-id", "Idempotency-Key"),
        ("l", "", ok, 428, "sale-running", "If-Match"),
        ("l", "\"s\"", r#"{"add":-4}"#, 409, "too-few-units", "3 units"),
        ("l", "\"s\"", r#"{"per_user":4}"#, 409, "term-final", ""),
        ("l", "\"s\"", r#"{"ends_at":"2020-01-01T00:00:00Z"}"#, 422, "already-ended", ""),
        ("l", "\"s\"", r#"{"add":1.5}"#, 400, "bad-body", "`add` is a whole number"),
        ("l", "\"s\"", r#"{"add":0}"#, 400, "bad-body", "`add` is a whole number"),
        ("l", "\"s\"", r#"{"per_user":null}"#, 400, "bad-body", "`per_user` is a whole number"),
        (
            "l",
            "\"s\"",
            r#"{"hold_seconds":0}"#,
            400,
            "bad-body",
            "`hold_seconds` is a whole number",
        ),
        ("l", "\"s\"", r#"{"ends_at":"soon"}"#, 400, "bad-body", "`ends_at` is a time"),
        ("l", "\"s\"", r#"{"ends_at":"2200-01-01T00:00:00Z"}"#, 400, "bad-body", "2200"),
        ("l", "\"s\"", r#"{"note":"x"}"#, 400, "bad-body", "at least one field"),
        ("l", "\"s\"", r#"{"add":1,"note":"a\nb"}"#, 400, "bad-body", "`note` is a text"),
        ("l", "\"s\"", &long, 400, "bad-body", "`note` is a text"),
        ("l", "\"s\"", r#"{"stock":9}"#, 400, "bad-body", "`hold_seconds` (a whole number"),
    ] {
        let names = [("idempotency-key", key), ("if-match", sale)];
        let names = names.into_iter().filter(|(_, value)| !value.is_empty());
        let headers: Vec<_> = [ADMIN].into_iter().chain(names).collect();
        let reply = shop.call_with("PATCH /stock", &headers, body.to_owned()).await;
        let problem = reply.problem(status, word);
        assert!(problem.to_string().contains(part), "{problem}");
    }
    let left = change(&shop, "l", "\"s\"", r#"{"add":-4}"#).await.problem(409, "too-few-units");
    assert_eq!(left["remaining"], 3);
    for (token, status, word) in
        [(SERVER, 403, "not-allowed"), (("x-a", "b"), 401, "token-required")]
    {
        let headers = [token, ("idempotency-key", "l"), ("if-match", "\"s\"")];
        shop.call_with("PATCH /stock", &headers, Body::from(ok)).await.problem(status, word);
    }
    shop.call_with(
        "PATCH /stock?item=none",
        &[ADMIN, ("idempotency-key", "l"), ("if-match", "s")],
        ok,
    )
    .await
    .problem(404, "unknown-item");
    assert_eq!(shop.stock().await["version"], 1);
}

/// Goal: who orders from a sale that is paused or has ended waits for no lock, also at an instance that has just sold; an order that was
/// accepted gets its answer, and is confirmed.
#[tokio::test]
async fn a_closed_sale_is_answered_by_reads() {
    let shop = Shop::empty(ShopOptions::default()).await;
    let other = shop.beside("b");
    start(&shop, &json!({"stock": 9, "sale": "s", "hold_seconds": 60})).await;
    shop.order("a").await.json(200);
    for (key, body, word) in
        [("k", r#"{"paused":true}"#, "paused"), ("l", r#"{"ends_at":"now"}"#, "ended")]
    {
        change(&other, key, "\"s\"", body).await.json(200);
        // this instance has just seen units
        shop.order("new").await.problem(409, word);
        let (_session, guard) = shop.hold_lock().await;
        for _ in 0..3 {
            let reply = shop.order("new").await;
            reply.problem(409, word);
            assert_eq!(reply.headers.contains_key("retry-after"), word == "paused");
        }
        guard.unlock().await.unwrap();
        let again = shop.order("a").await;
        assert!(again.headers.contains_key("idempotency-replayed"));
    }
    let stock = shop.stock().await;
    assert_eq!((&stock["state"], &stock["paused"]), (&json!("ended"), &json!(true)));
    shop.ask("POST /orders/a/confirm").await.json(200);
    change(&other, "m", "\"s\"", r#"{"paused":false,"ends_at":"2199-01-01T00:00:00Z"}"#)
        .await
        .json(200);
    shop.order("new").await.json(200);
}

/// Goal: a batch that was swallowed sells nothing when it arrives after units were added: its buyer was told sold out.
#[tokio::test]
async fn a_late_batch_takes_nothing_that_was_added() {
    let redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let url = format!("{}/0", redis.url());
    let other = Shop::at(shared_endpoint().await, url, ShopOptions::default());
    let (shop, proxy) = other.behind_proxy("a").await;
    start(&other, &json!({"stock": 2, "sale": "s"})).await;
    shop.order("first").await.json(200);
    // the instance does not know that the other one sold the last unit
    other.order("last").await.json(200);
    proxy.hold(Direction::ToServer);
    let mut late = Box::pin(shop.order("late"));
    assert!(late.as_mut().now_or_never().is_none());
    eventually("the batch is on its way", async || proxy.has_held_data()).await;
    drop(late);
    other.order("late").await.problem(409, "sold-out");
    change(&other, "k", "\"s\"", r#"{"add":1}"#).await.json(200);
    let before = scripts_run(&redis).await;
    proxy.release();
    eventually("the batch arrives", async || scripts_run(&redis).await > before).await;
    assert_eq!(other.stock().await["stock"], 1);
    other.ask("GET /orders/late").await.problem(404, "unknown-order");
    // the unit is there for who asks now
    other.order("late").await.json(200);
}

/// Goal: a change whose answer is lost is made once, and its answer is not marked as a repetition.
#[tokio::test]
async fn a_change_without_an_answer_is_sent_again() {
    let other = Shop::empty(ShopOptions::default()).await;
    let (shop, proxy) = other.behind_proxy("a").await;
    start(&other, &json!({"stock": 1, "sale": "s"})).await;
    // opens the connection
    shop.order("a").await.json(200);
    proxy.lose_answers(1);
    let changed = change(&shop, "k", "\"s:0\"", r#"{"add":1}"#).await;
    assert!(!changed.headers.contains_key("idempotency-replayed"), "{changed:?}");
    assert_eq!(changed.json(200)["version"], 1);
    assert!(proxy.has_lost());
}
