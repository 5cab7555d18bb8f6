//! Goal: the page comes from the program itself, and can load nothing else.

use std::path::Path;

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

/// Goal: each file of the folder is served, with its type.
#[tokio::test]
async fn the_folder_is_served() {
    let shop = Shop::empty(ShopOptions::default()).await;
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("static")];
    while let Some(folder) = folders.pop() {
        for path in folder.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let (_, name) = path.to_str().unwrap().rsplit_once("/static/").unwrap();
            let file = shop.call(&format!("GET /static/{name}")).await;
            assert_eq!(file.text.as_bytes(), std::fs::read(&path).unwrap(), "{name}");
            assert_ne!(file.headers["content-type"], "application/octet-stream", "{name}");
        }
    }
}
