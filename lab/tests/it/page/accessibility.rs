//! The page for those who hear it, and for those who see little.
//!
//! Two checks of our own: the browser's accessibility tree, which is what a screen reader is given, and the
//! contrast of all texts. Neither Debian nor Ubuntu has a package of axe-core; where there is a copy, for
//! example from `npm pack axe-core`, the test also runs it: `FLASH_SALE_AXE=package/axe.min.js`.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::browser::{DESKTOP, Device, Tab};
use super::scene::{Demo, Shop};

/// One thing that a screen reader can tell of.
struct Node {
    role: String,
    name: String,
    properties: HashMap<String, Value>,
}

/// What is not left out of the tree for being of no interest.
async fn tree(page: &Tab) -> Vec<Node> {
    let nodes = page.accessibility_tree().await.into_iter();
    let told = nodes.filter(|node| node["ignored"] == false).map(|node| {
        let text = |key: &str| node[key]["value"].as_str().unwrap_or_default().to_owned();
        let properties = node["properties"].as_array().cloned().unwrap_or_default().into_iter();
        let properties = properties
            .map(|one| (one["name"].as_str().unwrap().to_owned(), one["value"]["value"].clone()));
        Node { role: text("role"), name: text("name"), properties: properties.collect() }
    });
    told.collect()
}

/// Goal: everything has a name and its place, in every state of the page.
async fn assert_is_told_well(page: &Tab) {
    let nodes = tree(page).await;
    for landmark in ["banner", "main", "contentinfo"] {
        assert_eq!(nodes.iter().filter(|node| node.role == landmark).count(), 1, "{landmark}");
    }
    let needs_name = [
        "button",
        "checkbox",
        "radio",
        "spinbutton",
        "link",
        "region",
        "group",
        "form",
        "image",
        "img",
        "heading",
        "columnheader",
        "table",
    ];
    for node in &nodes {
        // a group is a fieldset; one without a legend would be a form without a question
        let is_nameless = node.name.trim().is_empty();
        let may_be = ["table", "group", "form"].contains(&node.role.as_str())
            && node.properties.get("focusable") != Some(&json!(true));
        assert!(
            !is_nameless || may_be || !needs_name.contains(&node.role.as_str()),
            "a {} without a name",
            node.role
        );
        let is_focusable = node.properties.get("focusable") == Some(&json!(true));
        let is_container = ["main", "RootWebArea"].contains(&node.role.as_str());
        assert!(!is_focusable || is_container || !is_nameless, "a {} without a name", node.role);
    }
    let levels: Vec<i64> = nodes
        .iter()
        .filter(|node| node.role == "heading")
        .map(|node| node.properties["level"].as_i64().unwrap())
        .collect();
    assert_eq!(levels[0], 1, "{levels:?}");
    assert_eq!(levels.iter().filter(|level| **level == 1).count(), 1, "{levels:?}");
    assert!(levels.windows(2).all(|pair| pair[1] <= pair[0] + 1), "a level is skipped: {levels:?}");
    assert!(nodes.iter().filter(|node| node.role == "region").count() >= 8, "panels are regions");
    // changes of these, and of nothing else, are read out
    let live: Vec<_> =
        nodes.iter().filter(|node| ["status", "alert"].contains(&node.role.as_str())).collect();
    assert!((2..=5).contains(&live.len()), "{} live regions", live.len());
}

async fn assert_is_seen_well(page: &Tab) {
    let open = "for (const part of document.querySelectorAll('details')) part.open = true";
    page.run(open).await;
    for dark in [false, true] {
        page.become_device(Device { dark, ..DESKTOP }).await;
        let faults = page.run(include_str!("audit.js")).await;
        assert_eq!(faults, json!([]), "dark: {dark}");
        if let Some(axe) = std::env::var_os("FLASH_SALE_AXE") {
            let axe = std::fs::read_to_string(axe).unwrap();
            page.run(&axe).await;
            let run = "return (await axe.run()).violations.map((one) => [one.id, one.nodes.map((node) => node.html)])";
            assert_eq!(page.run_async(run).await, json!([]), "dark: {dark}");
        }
    }
    page.become_device(DESKTOP).await;
}

/// Goal: the page before anything was sold.
#[tokio::test]
async fn an_empty_page_is_accessible() {
    let shop = Shop::empty(&[]).await;
    let page = Tab::open(&shop.url(), DESKTOP).await;
    page.until_reads("#sum-words", "No sale was started").await;
    assert_is_told_well(&page).await;
    assert_is_seen_well(&page).await;
}

/// Goal: the page with everything on it: a verdict, orders, tenures, and then all that can be wrong with a sale.
#[tokio::test]
async fn a_full_page_is_accessible() {
    let demo = Demo::start().await;
    let page = demo.live_page().await;
    page.click("#preset-lock").await;
    page.until_reads("#verdict-title", "Correct").await;
    assert_is_told_well(&page).await;
    assert_is_seen_well(&page).await;

    page.click("#preset-no-lock").await;
    page.until_reads("#verdict-title", "Wrong").await;
    page.until_reads("#proof-text", "too many").await;
    page.fill("#units", "-1").await;
    page.click("#run").await;
    page.until_reads("#form-error", "whole").await;
    assert_is_told_well(&page).await;
    assert_is_seen_well(&page).await;
}

/// Goal: names and texts that come from outside are shown as they are, and are no part of the page.
#[tokio::test]
async fn text_from_outside_is_text() {
    let shop = Shop::selling(5).await;
    let page = Tab::open(&shop.url(), DESKTOP).await;
    page.until_reads("#stock", "5").await;
    let order = "<img/src=x/onerror=document.title='taken'>";
    let send = format!(
        "await fetch('stock/reduce', {{ method: 'POST', headers: {{ 'idempotency-key': {} }} }})",
        json!(order)
    );
    page.run_async(&send).await;
    page.until_reads("#orders", "<img/s").await;
    assert_eq!(page.run("return document.querySelector('#orders .cut').title").await, order);
    assert_eq!(page.run("return document.querySelectorAll('#orders img').length").await, 0);
    assert_ne!(page.run("return document.title").await, "taken");
    assert_eq!(page.complaints().await, Vec::<String>::new());
}
