//! The page for visitors who hear it, and for those who see little: axe-core, and checks for which it has no rule.

use serde_json::{Value, json};

use super::browser::{DESKTOP, Device, PHONE, Tab};
use super::scene::Shop;
use crate::launch::Demo;
use crate::support::etcd::session;

/// axe-core 4.14.1 from npm. It runs only in the browser of these tests.
const AXE: &str = include_str!("axe/axe.min.js");

impl Tab {
    /// The faults of the page in its present state.
    async fn faults(&self) -> Value {
        self.run(AXE).await;
        self.run_async(include_str!("audit.js")).await
    }

    pub(super) async fn assert_is_accessible(&self) {
        self.run(
            "for (const part of document.querySelectorAll('details:not(.shop)')) part.open = true",
        )
        .await;
        for device in [PHONE, Device { dark: true, ..DESKTOP }, DESKTOP] {
            self.become_device(device).await;
            assert_eq!(self.faults().await, json!([]), "{device:?}");
        }
    }
}

/// Goal: the audit passes on a full page: with a verdict, with orders, and then with every alert about a sale.
#[tokio::test]
async fn a_full_page_is_accessible() {
    let demo = Demo::with(&[]).await;
    let page = demo.live_page().await;
    for (guard, title, sentence) in
        [("etcd", "Correct", "No unit was sold twice"), ("no-lock", "Wrong", "again and again")]
    {
        page.run_sale(guard, "").await;
        page.until_reads("#verdict-title", title).await;
        page.until_reads("#sentence", sentence).await;
        page.to_the_end().await;
        page.assert_is_accessible().await;
    }
}

/// Goal: the page before the first sale has no defect, and the audit finds each kind of defect for which it looks.
#[tokio::test]
async fn the_audit_finds_defects() {
    let shop = Shop::empty(&[]).await;
    let page = Tab::open(&shop.url(), DESKTOP).await;
    page.until_reads("#sum-words", "No sale was started").await;
    page.assert_is_accessible().await;
    let pale_text = "data-style='color: #ccc; background: #fff'";
    let pale_edge = "data-style='border-color: #eee'";
    for (defect, finding) in [
        ("<input type=number>", "label: "),
        ("<button></button>", "button-name: "),
        ("<a href=stock></a>", "link-name: "),
        ("<h5>too deep</h5>", "heading-order: "),
        (&format!("<p {pale_text}>pale</p>"), "color-contrast: "),
        (&format!("<p {pale_text} aria-hidden=true>●</p>"), "contrast of a sign: "),
        (&format!("<button {pale_edge}>pale</button>"), "contrast of an edge: "),
    ] {
        let insert = format!(
            "window.defect = document.createElement('div');
             window.defect.innerHTML = {};
             // the page's policy refuses the attribute `style`
             const [first] = window.defect.children;
             first.style.cssText = first.dataset.style ?? '';
             document.querySelector('.sum').append(window.defect)",
            json!(defect)
        );
        page.run(&insert).await;
        let faults = page.faults().await.to_string();
        assert!(faults.contains(finding), "{defect}: {faults}");
        page.run("window.defect.remove()").await;
    }
}

/// Goal: names and texts from outside appear literally, and do not become part of the page.
#[tokio::test]
async fn text_from_outside_is_text() {
    let shop = Shop::selling(5).await;
    let page = Tab::open(&shop.url(), DESKTOP).await;
    page.until_reads("#stock", "5").await;
    // the label of a claim that another program made
    let label = "<img/src=x/onerror=document.title='taken'>";
    let other = session(&shop.etcd.endpoint(), label).await;
    let _guard = other.mutex("stock-lock").unwrap().lock().await.unwrap();
    page.until_reads("#holder", label).await;
    assert_eq!(page.run("return document.querySelectorAll('#holder img').length").await, 0);
    assert_ne!(page.run("return document.title").await, "taken");
    assert_eq!(page.complaints().await, Vec::<String>::new());
}
