//! Outages, and the page's words about them until they end.

use axum::http::Method;
use rustix::process::Signal;
use serde_json::json;
use testkit::probe;
use testkit::wait::eventually;

use super::browser::{DESKTOP, Device, PHONE, Tab};
use super::scene::Shop;

/// Goal: the page notices that its instance hangs, although the connection still stands, or that it is down. The page says so,
/// with the age of its figures, and goes on by itself.
#[tokio::test]
async fn the_instance_goes_away_and_comes_back() {
    let mut shop = Shop::selling(40).await;
    let page = Tab::open(&shop.url(), DESKTOP).await;
    page.until_reads("#stock", "40").await;
    page.until_shown("#run[aria-disabled=false]").await;

    shop.signal_instance(Signal::STOP);
    page.until_reads("#link-age", "figures").await;
    assert_eq!(page.text("#rate").await, "–");
    shop.signal_instance(Signal::CONT);
    page.until_reads("#link-text", "connected").await;

    shop.kill_instance().await;
    page.until_reads("#link-text", "does not answer").await;
    page.until_reads(".alerts", "has lost its instance").await;
    // the last known figures stay
    assert_eq!(page.number("#stock").await, Some(40));
    page.click("#run").await;
    page.until_reads("#form-error", "does not answer").await;
    page.click("#chapter-shared").await;
    page.click("#skip").await;
    page.until_reads("#stage-error", "No instance of this sale answers").await;
    // a page that cannot be saved says so
    page.run(
        "const real = fetch; window.fetch = async () => {
        window.fetch = real;
        return new Response('', { status: 500 });
    }",
    )
    .await;
    page.run("document.querySelector('#save').click()").await;
    page.until_reads("#stage-error", "The instance does not answer").await;
    // alerts do not cover the focused element, not even at the end of the page
    for width in [390, 1440] {
        page.become_device(Device { width, ..DESKTOP }).await;
        for selector in ["#run", "footer a:last-of-type"] {
            let focused = "const one = document.querySelector(SELECTOR);
                scrollTo(0, 0);
                one.focus();
                const top = document.querySelector('#lost').getBoundingClientRect().top;
                return [top > 0, one.getBoundingClientRect().bottom <= top];";
            let focused = focused.replace("SELECTOR", &format!("'{selector}'"));
            let is_free = async || page.run(&focused).await == json!([true, true]);
            eventually(&format!("{selector} at {width}"), is_free).await;
        }
    }
    page.become_device(DESKTOP).await;

    shop.start_instance(&[]).await;
    page.until_reads("#link-text", "connected").await;
    assert!(!page.text(".alerts").await.contains("has lost its instance"));
    shop.sell(41).await;
    page.until_reads("#stock", "41").await;
}

/// Goal: a page without any messages shows its static parts, and why there are no messages. Method: an instance without room for
/// watchers, and a page whose scripts do not load.
#[tokio::test]
async fn a_page_without_any_news_is_not_blank() {
    let shop = Shop::empty(&["--max-watchers", "0"]).await;
    let page = Tab::open(&shop.url(), PHONE).await;
    page.until_reads(".alerts", "has too many watchers").await;
    page.until_reads("#link-text", "no answer yet").await;
    page.until_reads("#sum-title", "The sale").await;
    assert_eq!(page.text("#proof-text").await, "not known yet");

    // the state before any script has run
    page.run("window.requestAnimationFrame = () => 0; delete document.body.dataset.link; delete document.body.dataset.known").await;
    let animation = "return getComputedStyle(document.querySelector('main')).animationName";
    assert_eq!(page.run(animation).await, "await-news");
    page.until_reads("#sum-title", "The sale").await;
}

/// Goal: the page says that etcd is down, until it is back.
#[tokio::test]
async fn etcd_goes_away_and_comes_back() {
    let mut shop = Shop::selling(40).await;
    let page = Tab::open(&shop.url(), DESKTOP).await;
    page.until_reads("#stock", "40").await;
    assert!(!page.is_shown("[data-kind=etcd-away]").await);
    let place = "return document.querySelector('#sum-title').getBoundingClientRect().top";
    let before = page.run(place).await;

    shop.etcd.kill().await.unwrap();
    page.until_reads(".alerts [data-kind=etcd-away]", "lock service").await;
    assert_eq!(page.run(place).await, before, "an alert moves nothing");
    page.until_reads("#holder", "not known").await;
    page.until_reads("#queue-none", "not known").await;
    // etcd stays the stated reason after the lease has expired
    eventually("the lease has expired", async || {
        let (_, metrics) = probe::http(Method::GET, shop.port, "/metrics", "").await.unwrap();
        metrics.contains("\nflash_sale_lost_sessions_total 1\n")
    })
    .await;
    assert!(
        page.text(".alerts [data-kind=etcd-away]").await.contains("lock service does not answer")
    );
    assert!(!page.is_shown(".alerts [data-kind=lock-lost]").await);

    shop.etcd.restart().await.unwrap();
    let is_back = async || !page.is_shown(".alerts [data-kind=etcd-away]").await;
    eventually("etcd is back on the page", is_back).await;
}

/// Goal: the same for Redis. The last known figures stay, and before there are any the page claims nothing.
#[tokio::test]
async fn redis_goes_away_and_comes_back() {
    let mut shop = Shop::selling(40).await;
    shop.redis.kill().await.unwrap();
    let page = Tab::open(&shop.url(), DESKTOP).await;
    page.until_reads(".alerts [data-kind=redis-away]", "Redis").await;
    let is_unknown = async || page.text("#proof-text").await == "not known";
    eventually("nothing is known of the sale", is_unknown).await;
    assert!(!page.text(".alerts").await.contains("last known"));

    shop.redis.restart().await.unwrap();
    page.until_reads("#stock", "40").await;
    let is_back = async || !page.is_shown(".alerts [data-kind=redis-away]").await;
    eventually("Redis is back on the page", is_back).await;

    shop.redis.kill().await.unwrap();
    page.until_reads(".alerts [data-kind=redis-away]", "the last known ones").await;
    assert_eq!(page.number("#stock").await, Some(40));
    assert_eq!(page.text("#proof-text").await, "not known now");
    page.run("document.querySelector('#run-form').requestSubmit()").await;
    page.until_reads("#verdict-title", "No verdict").await;
}
