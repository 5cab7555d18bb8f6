//! Goal: the page comes from the program itself, and can load nothing else.

use crate::shop::{Shop, ShopOptions};

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
    assert_eq!(shop.call("GET /static/index.html").await.text, page.text);
    for path in ["/static/nothing.js", "/static/../Cargo.toml", "/static/"] {
        shop.call(&format!("GET {path}")).await.problem(404, "not-found");
    }
}
