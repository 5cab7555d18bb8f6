//! Goal: the page comes from the program itself, and can load nothing else.

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

use crate::shop::{SERVER, Shop, ShopOptions};

#[tokio::test]
async fn the_page_is_served_with_its_policy() {
    let shop = Shop::empty(ShopOptions::default()).await;
    let page = shop.call("GET /").await;
    assert_eq!(page.status, 200);
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(page.headers["x-content-type-options"], "nosniff");
    assert_eq!(page.headers["referrer-policy"], "no-referrer");
    assert_eq!(shop.call("GET /static/sale/sale.html").await.text, page.text);
    for path in
        ["/static/nothing.js", "/static/stage/stage.js", "/static/../Cargo.toml", "/static/"]
    {
        shop.call(&format!("GET {path}")).await.problem(404, "not-found");
    }
}

/// Goal: long answers that are complete at once are compressed for a client that accepts that: the page, the description of the
/// calls, pages of the ledger. A short answer, or one that must arrive without delay, is not compressed.
#[tokio::test]
async fn long_answers_are_compressed() {
    let shop = Shop::selling(9, ShopOptions::default()).await;
    for id in ["a", "b", "c"] {
        shop.order(id).await.json(200);
    }
    let call = async |path: &str, accept: &str| {
        let request = Request::get(path).header("accept-encoding", "gzip").header("accept", accept);
        let request = request.header(SERVER.0, SERVER.1);
        let request = request.body(Body::empty()).unwrap();
        shop.router.clone().oneshot(request).await.unwrap()
    };
    for path in ["/", "/openapi.json", "/static/sale/sale.js", "/orders"] {
        let answer = call(path, "*/*").await;
        assert_eq!(answer.headers()["content-encoding"], "gzip", "{path}");
        assert_eq!(answer.headers()["vary"], "accept-encoding", "{path}");
        let sent = answer.into_body().collect().await.unwrap().to_bytes();
        let plain = shop.ask(&format!("GET {path}")).await;
        assert!(!plain.headers.contains_key("content-encoding"), "{path}");
        assert!(sent.starts_with(&[0x1f, 0x8b]) && sent.len() < plain.text.len(), "{path}");
    }
    for (path, accept) in [
        ("/orders", "application/x-ndjson"),
        ("/orders?wait=1ms", "*/*"),
        ("/events", "*/*"),
        ("/order?order=a", "*/*"),
        ("/stock", "*/*"),
        ("/stock/reduce", "*/*"),
    ] {
        let answer = call(path, accept).await;
        assert_eq!(answer.status(), 200, "{path}");
        assert!(!answer.headers().contains_key("content-encoding"), "{path}");
    }
}
