//! Goal: a senseless request is refused with the word for its mistake, and takes nothing. Method: calls in process, over a real
//! etcd and a real Redis.

use crate::shop::{ADMIN, Shop, ShopOptions};

#[tokio::test]
async fn wrong_parameters_take_nothing() {
    let shop = Shop::selling(5, ShopOptions::default()).await;
    let long = format!("POST /stock/reduce?user={}", "x".repeat(129));
    for (line, word) in [
        ("POST /stock/reduce?item=No", "bad-item"),
        ("GET /stock?item=a/b", "bad-item"),
        ("PUT /stock?item=", "bad-item"),
        ("GET /orders?item=%7Ba%7D", "bad-item"),
        ("GET /lock?item=%20", "bad-item"),
        ("POST /stock/reduce?quantity=0", "bad-quantity"),
        ("POST /stock/reduce?quantity=1000001", "bad-quantity"),
        ("POST /stock/reduce?quantity=%2B1", "bad-quantity"),
        ("POST /stock/reduce?quantity=", "bad-quantity"),
        ("POST /stock/reduce?user=%00", "bad-user"),
        // U+202E, U+2028
        ("POST /stock/reduce?user=a%E2%80%AEb", "bad-user"),
        ("POST /stock/reduce?user=a%E2%80%A8b", "bad-user"),
        // U+3164, U+FE0F, U+2800: nobody sees them, and they are letter, mark and symbol
        ("POST /stock/reduce?user=a%E3%85%A4b", "bad-user"),
        ("POST /stock/reduce?user=a%EF%B8%8F", "bad-user"),
        ("POST /stock/reduce?user=%E2%A0%80", "bad-user"),
        // U+110BD, U+1343F: format characters beyond the usual ones
        ("POST /stock/reduce?user=a%F0%91%82%BD", "bad-user"),
        ("POST /stock/reduce?user=a%F0%93%90%BF", "bad-user"),
        (&long, "bad-user"),
        ("POST /stock/reduce?quantity=1&quantity=2", "bad-parameter"),
        ("POST /stock/reduce?user=%ff", "bad-parameter"),
        ("GET /orders?limit=0", "bad-parameter"),
        ("GET /orders?limit=1001", "bad-parameter"),
        ("GET /orders?limit=%2B1", "bad-parameter"),
        // as if of the sale that runs now
        ("GET /orders?after=1", "bad-parameter"),
        ("GET /orders?after=tea:%2B1", "bad-parameter"),
        ("GET /orders?after=tea:x", "bad-parameter"),
        ("GET /orders?after=a%20b:1", "bad-sale-id"),
        ("GET /orders?sale=", "bad-sale-id"),
        ("GET /orders?wait=61s", "bad-parameter"),
        ("DELETE /sales/a%20b", "bad-sale-id"),
        ("POST /orders/a%20b/confirm", "bad-order-id"),
        ("POST /orders/a-1/cancel?quantity=1", "bad-parameter"),
        ("GET /orders/a%20b", "bad-order-id"),
        ("GET /orders/a?order=b", "bad-parameter"),
        ("GET /orders/%ff?order=b", "bad-order-id"),
        ("GET /order", "bad-order-id"),
        ("POST /order/confirm?order=a%20b", "bad-order-id"),
        ("POST /order/cancel?order=a&order=b", "bad-parameter"),
    ] {
        let reply = shop.call_with(line, &[ADMIN], r#"{"stock":9}"#).await;
        reply.problem(400, word);
    }
    for (line, reason) in [
        ("POST /stock/reduce?qty=2", "unknown field `qty`"),
        ("GET /stock?item=a&item=b", "duplicate field `item`"),
    ] {
        let problem = shop.call(line).await.problem(400, "bad-parameter");
        assert!(problem["detail"].as_str().unwrap().contains(reason), "{problem}");
    }
    shop.order("a b").await.problem(400, "bad-order-id");
    assert_eq!(shop.stock().await["stock"], 5);
}

/// Goal: a browser that fetches ahead, or for a part of a page of the same site, buys nothing
/// (w3c/webappsec-fetch-metadata#84).
#[tokio::test]
async fn what_no_user_asked_for_takes_nothing() {
    let shop = Shop::selling(5, ShopOptions::default()).await;
    let line = "GET /stock/reduce";
    for header in [
        ("sec-purpose", "prefetch"),
        ("sec-purpose", "prefetch;prerender"),
        ("purpose", "prefetch"),
        ("x-purpose", "preview"),
        ("x-moz", "prefetch"),
        ("sec-fetch-dest", "image"),
        ("sec-fetch-dest", "iframe"),
        ("sec-fetch-dest", "style"),
    ] {
        shop.call_with(line, &[header], "").await.problem(403, "unintended");
    }
    let ahead = shop.call_with("POST /stock/reduce", &[("sec-purpose", "prefetch")], "").await;
    ahead.problem(403, "unintended");
    assert_eq!(shop.stock().await["stock"], 5);
    for dest in ["document", "empty"] {
        shop.call_with(line, &[("sec-fetch-dest", dest)], "").await.json(200);
    }
}

#[tokio::test]
async fn wrong_bodies_change_nothing() {
    let shop = Shop::selling(5, ShopOptions::default()).await;
    let (stock, limit) = ("`stock` is a whole number from 0 to 1000000000000", "from 1 to 1000000");
    let time = "a time in quotes, such as \"2026-11-2";
    for (body, field, allowed) in [
        ("", "`stock`", "a JSON object"),
        ("[300]", "`stock`", "a JSON object"),
        ("\u{ff}", "`stock`", "a JSON object"),
        ("{\"stock\":1", "`stock`", "a JSON object"),
        ("{}", "`stock` is missing", "a whole number from 0 to"),
        (r#"{"stock":-1}"#, stock, "-1"),
        (r#"{"stock":1.5}"#, stock, "1.5"),
        (r#"{"stock":"3"}"#, stock, "\"3\""),
        (r#"{"stock":1000000000001}"#, stock, "1000000000001"),
        (r#"{"stock":1,"lucky":1}"#, "`lucky`", "`stock`"),
        (r#"{"stock":1,"sale":7}"#, "`sale`", "1 to 64 letters"),
        (r#"{"stock":1,"sale":".."}"#, "id of a new sale", "path"),
        (r#"{"stock":1,"per_order":0}"#, "`per_order`", limit),
        (r#"{"stock":1,"per_order":-1}"#, "`per_order`", limit),
        (r#"{"stock":1,"per_user":"2"}"#, "`per_user`", limit),
        (r#"{"stock":1,"per_user":1000001}"#, "`per_user`", limit),
        (r#"{"stock":1,"hold_seconds":86401}"#, "`hold_seconds`", "from 1 to 86400"),
        (r#"{"stock":1,"starts_at":"tomorrow"}"#, "`starts_at`", time),
        (r#"{"stock":1,"ends_at":7}"#, "`ends_at`", time),
        (
            r#"{"stock":1,"starts_at":"2026-11-27T08:00:00Z","ends_at":"2026-11-27T09:00:00+01:00"}"#,
            "`ends_at`",
            "later than `starts_at`",
        ),
    ] {
        let refused = shop.call_with("PUT /stock", &[ADMIN], body).await.problem(400, "bad-body");
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.contains(field) && detail.contains(allowed), "{body}: {detail}");
    }
    // an order whose parameters are in the wrong place must not buy one unit of the default item
    shop.call_with("POST /stock/reduce", &[], "quantity=2").await.problem(400, "bad-body");
    for line in ["PUT /stock", "POST /stock/reduce"] {
        let reply = shop.call_with(line, &[ADMIN], vec![b' '; 16 * 1024 + 1]).await;
        reply.problem(413, "body-too-large");
        assert_eq!(reply.headers["connection"], "close");
    }
    assert_eq!(shop.stock().await["stock"], 5);
}

#[tokio::test]
async fn what_is_not_there_is_unknown() {
    let shop = Shop::selling(5, ShopOptions::default()).await;
    let problem = shop.call("GET /orders/a-1").await.problem(404, "unknown-order");
    assert_eq!(problem["order"], "a-1");
    let spaced = shop.call("GET /orders/a?user=a+b").await.problem(404, "unknown-order");
    assert!(spaced["detail"].as_str().unwrap().contains("%2B"), "{spaced}");
    shop.call("GET /stocks").await.problem(404, "not-found");
    let reply = shop.call("POST /stock").await;
    reply.problem(405, "method-not-allowed");
    assert_eq!(reply.headers["allow"], "GET,HEAD,PUT,PATCH");
}
