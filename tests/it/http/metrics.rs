//! Goal: `/metrics` counts what happened, in a form that Prometheus reads.

use testkit::wait::eventually;

use crate::shop::{Shop, ShopOptions};

/// The value of the line with this name and these labels.
fn value(page: &str, name: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
}

#[tokio::test]
async fn orders_are_counted_by_how_they_ended() {
    let shop = Shop::selling(2, ShopOptions::default()).await;
    for id in ["a", "b", "b", "c"] {
        shop.order(id).await;
    }
    shop.call("GET /unknown/1").await;
    shop.call("DELETE /unknown/2").await;
    shop.stock().await;
    let reply = shop.call("GET /metrics").await;
    assert_eq!(reply.headers["content-type"], "text/plain; version=0.0.4");
    let page = reply.text;
    for line in [
        r#"orders_total{outcome="reserved"} 3"#,
        r#"orders_total{outcome="sold-out"} 1"#,
        r#"orders_total{outcome="outcome-unknown"} 0"#,
        r#"order_seconds_count{outcome="reserved"} 3"#,
        r#"order_seconds_bucket{outcome="sold-out",le="+Inf"} 1"#,
        r#"http_answers_total{route="/stock/reduce",status="200"} 3"#,
        r#"http_answers_total{route="/stock/reduce",status="409"} 1"#,
        r#"http_answers_total{route="none",status="404"} 2"#,
        r#"stock{item="default"} 0"#,
        r#"lucky{item="default"} 2"#,
        "orders_waiting 0",
        concat!(r#"info{name="8080",version=""#, env!("CARGO_PKG_VERSION"), r#""} 1"#),
        "oldest_order_seconds 0",
        // the third order, after the last unit, is answered by a plain read
        "batches_total 2",
        "batch_orders_total 2",
        "batch_seconds_count 2",
        r#"batch_seconds_bucket{le="+Inf"} 2"#,
        "lock_wait_seconds_count 1",
        "stale_batches_total 0",
        "lost_sessions_total 0",
    ] {
        assert!(page.contains(&format!("\nflash_sale_{line}\n")), "{line}: {page}");
    }
    assert!(value(&page, "flash_sale_batch_seconds_sum") > 0.0);
    assert!(page.ends_with('\n'));
}

/// Goal: a gauge that changes by itself shows the present: the age of the oldest order, and the stock, which an instance that
/// sells nothing reads in a readiness check.
#[tokio::test]
async fn gauges_show_the_present() {
    let shop = Shop::selling(2, ShopOptions::default()).await;
    let page = async |shop: &Shop| shop.call("GET /metrics").await.text;
    let other = shop.beside("8090");
    other.until_ready().await;
    let found = page(&other).await;
    // a rate sees the growth of a series, and not its first value
    for outcome in ["reserved", "confirmed", "sold-out"] {
        let count = format!("\nflash_sale_order_seconds_count{{outcome=\"{outcome}\"}} 0\n");
        assert!(found.contains(&count), "{found}");
    }
    assert!(found.contains("\nflash_sale_stock{item=\"default\"} 2\n"), "{found}");
    assert!(found.contains("\nflash_sale_lucky{item=\"default\"} 0\n"), "{found}");
    assert!(found.contains("\nflash_sale_held{item=\"default\"} 0\n"), "{found}");
    shop.raw().await.run::<()>("DEL stock").await;
    other.call("GET /readyz").await;
    assert!(!page(&other).await.contains("flash_sale_stock{"), "the sale is gone");

    shop.start(2).await;
    let (session, guard) = shop.hold_lock().await;
    let order = shop.order("a");
    let oldest = async || {
        eventually("the age grows", async || {
            value(&page(&shop).await, "flash_sale_oldest_order_seconds") > 0.05
        })
        .await;
        guard.unlock().await.unwrap();
        session.close().await.unwrap();
    };
    let (reply, ()) = tokio::join!(order, oldest());
    reply.json(200);
    assert!(value(&page(&shop).await, "flash_sale_oldest_order_seconds") <= 0.0);
}
