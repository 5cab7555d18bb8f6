//! Goal: a sale from its start to its end, as a client sees it. Method: calls in process, over a real
//! etcd and a real Redis.

use flash_sale::secret::SecretSource;
use serde_json::json;
use testkit::wait::eventually;

use super::events::Watcher;
use crate::shop::{Shop, ShopOptions};

#[tokio::test]
async fn a_sale_from_start_to_end() {
    let shop = Shop::empty(ShopOptions::default()).await;
    let started = shop.put("default", r#"{"stock":4,"per_order":3}"#).await.json(200);
    assert_eq!(started["stock"], 4);
    let sale = started["id"].as_str().expect("an id");

    let line = "POST /stock/reduce?quantity=3&user=J%C3%BCrgen";
    let bought = shop.call_with(line, &[("idempotency-key", "\"a-1\"")], "").await;
    let bought = bought.json(200);
    let token = bought["token"].as_i64().expect("a token");
    let expected = json!({
        "outcome": "reserved", "order": "a-1", "item": "default", "quantity": 3,
        "remaining": 1, "instance": "8080", "token": token,
    });
    assert_eq!(bought, expected);
    let again = shop.call_with(line, &[("idempotency-key", "a-1")], "").await;
    assert_eq!(again.json(200), bought);
    assert_eq!(again.headers["idempotency-replayed"], "true");
    let other = "POST /stock/reduce?quantity=2&user=J%C3%BCrgen";
    let other = shop.call_with(other, &[("idempotency-key", "a-1")], "").await;
    assert_eq!(other.problem(422, "order-conflict")["order"], "a-1");
    // GET sells as well, one unit if it does not say, under an id made for it
    let last = shop.call("GET /stock/reduce").await.json(200);
    assert_eq!((&last["remaining"], &last["quantity"]), (&json!(0), &json!(1)));
    let id = last["order"].as_str().expect("an id").to_owned();

    let sold_out = shop.order("a-3").await.problem(409, "sold-out");
    assert_eq!(sold_out["order"], "a-3");
    assert_eq!((&sold_out["item"], &sold_out["remaining"]), (&json!("default"), &json!(0)));

    let stock = shop.stock().await;
    let fence = stock["fence"].clone();
    assert_eq!(fence["token"], last["token"]);
    assert!(u64::from_str_radix(fence["cluster"].as_str().expect("hex"), 16).is_ok());
    let expected = json!({
        "item": "default", "stock": 0, "lucky": 4, "initial": 4, "fence": fence,
        "orders": 2, "entries": 2, "held": 0, "units": {"held": 0, "confirmed": 4}, "state": "sold-out",
        "per_order": 3, "version": 0, "id": sale, "sale": started["sale"], "balanced": true,
    });
    assert_eq!(stock, expected);
    assert!(started["sale"].is_u64(), "{started}");

    let first_page = shop.ask("GET /orders?limit=1").await.json(200);
    let time = first_page["orders"][0]["time"].clone();
    assert!(time.as_str().is_some_and(|time| time.ends_with('Z')), "{time}");
    let entry = json!({
        "sale": sale, "position": 1, "event": "reserved", "order": "a-1", "quantity": 3,
        "user": "Jürgen", "remaining": 1, "instance": "8080", "token": token, "time": time,
    });
    let cursor = format!("{sale}:1");
    assert_eq!(
        first_page,
        json!({"orders": [entry], "sale": sale, "next": cursor, "cursor": cursor})
    );
    let rest = shop.ask(&format!("GET /orders?sale={sale}&after=1&limit=5")).await.json(200);
    assert_eq!((&rest["orders"][0]["order"], &rest["next"]), (&json!(id), &json!(null)));
    let one = shop.call(&format!("GET /orders/{id}")).await.json(200);
    assert_eq!(one, rest["orders"][0]);
}

#[tokio::test]
async fn text_is_sent_to_who_names_it_first() {
    let shop = Shop::selling(300, ShopOptions::default()).await;
    let text = [("accept", "Text/Plain;charset=utf-8, */*")];
    for (line, status, answer) in [
        ("GET /stock/reduce", 200, "8080 reduce stock success, 299 left\n"),
        ("GET /stock/reduce?quantity=300", 409, "8080 reduce stock end!\n"),
    ] {
        let reply = shop.call_with(line, &text, "").await;
        assert_eq!((reply.status.as_u16(), reply.text.as_str()), (status, answer));
        assert_eq!(reply.headers["content-type"], "text/plain; charset=utf-8");
    }
    let second = [("accept", "application/json, text/plain, */*")];
    shop.call_with("GET /stock/reduce", &second, "").await.json(200);
}

/// Goal: `HEAD` does not sell.
#[tokio::test]
async fn head_does_not_buy() {
    let shop = Shop::selling(5, ShopOptions::default()).await;
    for method in ["HEAD", "PUT", "DELETE", "OPTIONS"] {
        let reply = shop.call(&format!("{method} /stock/reduce")).await;
        assert_eq!(reply.status.as_u16(), 405, "{method}");
        assert_eq!(reply.headers["allow"], "GET,POST");
    }
    let head = shop.call("HEAD /stock").await;
    assert_eq!((head.status.as_u16(), head.text.as_str()), (200, ""));
    assert_eq!(shop.stock().await["stock"], 5);
}

/// Goal: a new token in the file is valid beside the old one, and alone once the old one is removed, soon after each change, and
/// at once after a file that could not be used. The streams of the old one end.
#[tokio::test]
async fn starting_a_sale_needs_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let token = SecretSource::File(file.clone());
    let of_shop = dir.path().join("shop-token");
    std::fs::write(&of_shop, "sh0p").unwrap();
    let options = ShopOptions::http(|http| {
        http.admin_token = Some(token);
        http.shop_token = Some(SecretSource::File(of_shop.clone()));
    });
    let shop = Shop::selling(5, options).await;
    let body = r#"{"stock":9}"#;
    let start =
        async |header: &str| shop.call_with("PUT /stock", &[("authorization", header)], body).await;
    for right in ["Bearer s3cret", "bearer s3cret", "BEARER  s3cret"] {
        assert_eq!(start(right).await.json(200)["stock"], 9);
    }
    for (text, old, new) in [("s3cret\nsecond\n", 200, 200), ("second", 401, 200), ("", 500, 500)] {
        std::fs::write(&file, text).unwrap();
        eventually("the change counts", async || {
            let replies = [start("Bearer s3cret").await, start("Bearer second").await];
            replies.map(|reply| reply.status.as_u16()) == [old, new]
        })
        .await;
    }
    std::fs::write(&file, "s3cret\n# made in October").unwrap();
    start("Bearer # made in October").await.problem(500, "internal");
    std::fs::write(&file, "s3cret").unwrap();
    start("Bearer s3cret").await.json(200);
    let mut watcher = Watcher::open(&shop.router, "/events").await;
    std::fs::write(&of_shop, "0ther").unwrap();
    let mut rest = 0;
    while watcher.next().await.is_some() {
        rest += 1;
        assert!(rest < 100, "the stream ends");
    }
}
