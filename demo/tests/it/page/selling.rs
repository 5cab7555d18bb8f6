//! The sale, run from the page.

use axum::http::Method;
use serde_json::Value;
use testkit::probe;
use testkit::wait::eventually;

use super::browser::Tab;
use crate::launch::Demo;

impl Tab {
    pub(super) async fn run_sale(&self, guard: &str, fault: &str) {
        self.until_shown("#run[aria-disabled=false]").await;
        let choose = format!(
            "for (const [id, value] of [['guard', '{guard}'], ['fault', '{fault}']]) {{
                 const one = document.getElementById(id);
                 one.value = value;
                 one.dispatchEvent(new Event('change', {{ bubbles: true }}));
             }}"
        );
        self.run(&choose).await;
        let run = "return document.querySelector('#verdict').dataset.run";
        let before = self.run(run).await;
        self.click("#run").await;
        eventually("the run is shown", async || self.run(run).await != before).await;
    }

    /// The server's stock, requested by the page itself.
    async fn stock(&self) -> Value {
        self.run_async("return (await fetch('stock')).json()").await
    }

    /// Checks that the page shows the server's stock.
    async fn assert_shows_the_stock(&self) {
        let stock = self.stock().await;
        for name in ["stock", "lucky", "initial"] {
            let expected = stock[name].as_i64();
            assert!(expected.is_some(), "{stock}");
            let selector = format!("#{name}");
            // the last order may reach the page after the verdict
            eventually(&format!("{selector} is {expected:?}"), async || {
                self.number(&selector).await == expected
            })
            .await;
        }
    }

    async fn assert_no_complaints(&self) {
        assert_eq!(self.complaints().await, Vec::<String>::new());
    }
}

/// Goal: a visitor sees after one click whether the sale was right, in words and not by colour alone, with the server's figures.
#[tokio::test]
async fn a_sale_is_right_with_the_lock_and_wrong_without() {
    let demo = Demo::with(&[]).await;
    let page = demo.live_page().await;
    for guard in ["no-lock", "local"] {
        page.run_sale(guard, "").await;
        page.until_reads("#verdict-title", "Wrong").await;
        page.until_reads("#verdict-text", "too many").await;
        page.until_reads("#proof-text", "too many").await;
        assert_eq!(page.text("#proof-sign").await, "✕");
        page.assert_shows_the_stock().await;
        let sold = page.number("#lucky").await.unwrap();
        assert!(sold > 300, "{sold}");
        let excess = format!("{} units sold too many", sold - 300);
        assert_eq!(page.text("#proof-text").await, excess);
    }

    // back to the lock on the same page
    page.run_sale("etcd", "").await;
    page.until_reads("#verdict-run", "300 units, 500 buyers, etcd lock").await;
    page.until_reads("#verdict-title", "Correct").await;
    page.until_reads("#verdict-run", "300 reserved, 200 told sold out").await;
    page.until_reads("#proof-text", "adds up").await;
    page.assert_shows_the_stock().await;
    assert_eq!(page.number("#lucky").await, Some(300));
    page.assert_no_complaints().await;
}

/// Goal: a visitor chooses the size of a sale. An invalid size gets a message, and sends nothing.
#[tokio::test]
async fn a_sale_of_ones_own() {
    let demo = Demo::with(&[]).await;
    let page = demo.live_page().await;
    let before = page.stock().await;
    for (units, buyers) in [("-1", "20"), ("1.5", "20"), ("7", "0"), ("7", "")] {
        page.fill("#units", units).await;
        page.fill("#buyers", buyers).await;
        page.click("#run").await;
        page.until_shown("#run-form input:user-invalid").await;
    }
    assert_eq!(page.stock().await, before);

    page.fill("#units", "7").await;
    page.fill("#buyers", "20").await;
    page.click("#run").await;
    page.until_reads("#verdict-run", "7 units, 20 buyers").await;
    page.until_reads("#verdict-title", "Correct").await;
    page.assert_shows_the_stock().await;
    assert_eq!(page.text("#form-error").await, "");
    assert_eq!(page.number("#lucky").await, Some(7));

    // another sale does not get the same verdict, though its figures are the same
    page.run_async(
        "await fetch('stock', { method: 'PUT', body: '{\"stock\":7}' });
        for (let sold = 0; sold < 7; sold += 1) await fetch('stock/reduce', { method: 'POST' });",
    )
    .await;
    page.until_reads("#verdict-title", "An earlier sale: Correct").await;

    // a run that is stopped before its end has no verdict, and did not fail
    page.fill("#units", "100000").await;
    page.fill("#buyers", "200000").await;
    page.click("#run").await;
    page.until_reads("#verdict-text", "buyers are coming").await;
    page.click("#stop").await;
    page.until_reads("#verdict-text", "The run was stopped.").await;
    assert_eq!(page.run("return document.querySelector('#verdict').dataset.tone").await, "quiet");
    page.assert_no_complaints().await;
}

/// Goal: the page shows that an instance was killed, in a run and by hand, and that it restarts and sells. If the page shows that
/// instance's events, it goes on with those of the other one.
#[tokio::test]
async fn a_killed_instance_is_seen_to_go_and_to_come_back() {
    let demo = Demo::with(&[]).await;
    let page = demo.live_page().await;
    let other = demo.port + 10;
    let [first, second] = [".shop:first-child", ".shop:last-child"];
    let state = format!("{second} .shop-port");
    let kill = async |shop: &str| {
        page.run(&format!("document.querySelector('{shop}').open = true")).await;
        page.click(&format!("{shop} button:last-child")).await;
    };
    page.run_sale("etcd", "kill").await;
    page.until_reads("#verdict-run", "was killed").await;
    page.until_reads(&state, "is down").await;
    page.until_reads("#verdict-title", "Correct").await;
    page.until_reads("#notes", &format!("{other} answers again.")).await;

    page.until_shown(&format!("{second}:not([data-down])")).await;
    kill(second).await;
    page.until_reads(&state, "is down").await;
    page.until_shown(&format!("{second}:not([data-down])")).await;
    page.click("#start").await;
    page.until_reads("#proof-text", "nothing sold yet").await;
    let answer = probe::http(Method::POST, other, "/stock/reduce", "").await.unwrap();
    assert_eq!(answer.0, 200, "{}", answer.1);
    page.until_reads("#lucky", "1").await;
    page.assert_shows_the_stock().await;
    page.assert_no_complaints().await;

    page.until_reads("#link-text", &format!("connected to instance {}", demo.port)).await;
    kill(first).await;
    page.until_reads("#link-text", &format!("connected to instance {other}")).await;
    page.assert_shows_the_stock().await;
    assert_eq!(page.number("#lucky").await, Some(1), "the sale is unchanged");
}
