//! Goal: `PATCH /stock` changes a sale once, whatever is on its way. Method: calls in process, over a real etcd and a real Redis.

use serde_json::{Value, json};

use crate::shop::{ADMIN, Reply, Shop, ShopOptions};

async fn start(shop: &Shop, body: &Value) {
    shop.call_with("PUT /stock", &[ADMIN], body.to_string()).await.json(200);
}

async fn change(shop: &Shop, key: &str, sale: &str, body: &str) -> Reply {
    let headers = [ADMIN, ("idempotency-key", key), ("if-match", sale)];
    shop.call_with("PATCH /stock", &headers, body.to_owned()).await
}

/// Goal: the answer to a change is the present state and the entry, which the ledger has too. Who does not say
/// what, or names no sale, key or version changes nothing.
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

    let (ok, this) = (r#"{"add":1}"#, "\"s\"");
    let long = format!(r#"{{"add":1,"note":"{}"}}"#, "ü".repeat(201));
    for (key, sale, body, status, word, part) in [
        ("k", this, r#"{"add":4}"#, 422, "change-conflict", ""),
        ("l", "\"s:0\"", ok, 412, "sale-mismatch", "s"),
        ("l", "\"t\"", ok, 412, "sale-mismatch", "s"),
        ("l", "*", ok, 400, "bad-sale-id", "refused here"),
        ("l", "\"s:x\"", ok, 400, "bad-sale-id", "version"),
        ("", this, ok, 400, "bad-order-id", "Idempotency-Key"),
        ("l", "", ok, 428, "sale-running", "If-Match"),
        ("l", this, r#"{"add":-4}"#, 409, "too-few-units", "\"remaining\":3,"),
        ("l", this, r#"{"add":-4}"#, 409, "too-few-units", "3 units"),
        ("l", this, r#"{"per_user":4}"#, 409, "term-final", ""),
        ("l", this, r#"{"ends_at":"2020-01-01T00:00:00Z"}"#, 422, "already-ended", ""),
        ("l", this, r#"{"add":1.5}"#, 400, "bad-body", "`add` is a whole number"),
        ("l", this, r#"{"add":0}"#, 400, "bad-body", "`add` is a whole number"),
        ("l", this, r#"{"per_user":null}"#, 400, "bad-body", "`per_user` is a whole number"),
        ("l", this, r#"{"hold_seconds":0}"#, 400, "bad-body", "`hold_seconds` is a whole number"),
        ("l", this, r#"{"ends_at":"soon"}"#, 400, "bad-body", "`ends_at` is a time"),
        ("l", this, r#"{"ends_at":"2200-01-01T00:00:00Z"}"#, 400, "bad-body", "2200"),
        ("l", this, r#"{"note":"x"}"#, 400, "bad-body", "at least one field"),
        ("l", this, r#"{"add":1,"note":"a\nb"}"#, 400, "bad-body", "`note` is a text"),
        ("l", this, &long, 400, "bad-body", "`note` is a text"),
        ("l", this, r#"{"stock":9}"#, 400, "bad-body", "`hold_seconds` (a whole number"),
    ] {
        let names = [("idempotency-key", key), ("if-match", sale)];
        let names = names.into_iter().filter(|(_, value)| !value.is_empty());
        let headers: Vec<_> = [ADMIN].into_iter().chain(names).collect();
        let reply = shop.call_with("PATCH /stock", &headers, body.to_owned()).await;
        let problem = reply.problem(status, word);
        assert!(problem.to_string().contains(part), "{problem}");
    }
    let headers = [ADMIN, ("idempotency-key", "l"), ("if-match", "s")];
    let none = shop.call_with("PATCH /stock?item=none", &headers, ok).await;
    none.problem(404, "unknown-item");
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
