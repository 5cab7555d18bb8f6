//! The page on other devices: narrow, dark, without a mouse, with reduced motion.

use serde_json::json;
use testkit::wait::eventually;
use thirtyfour::Key;

use super::browser::{DESKTOP, Device, PHONE, Tab};
use super::scene::Shop;
use crate::launch::Demo;

/// Goal: on a phone nothing needs sideways scrolling, even with the longest numbers.
#[tokio::test]
async fn a_phone_needs_no_sideways_scrolling() {
    let shop = Shop::empty(&[]).await;
    let page = Tab::open(&shop.url(), PHONE).await;
    page.until_reads("#sum-words", "Choose a run to start one").await;
    assert_eq!(page.text("#proof-text").await, "no sale yet");
    assert_fits(&page).await;
    page.go(&format!("{}?item=tea", shop.url())).await;
    page.until_reads("#sum-words", "PUT /stock?item=tea starts a sale").await;
    let sell_tea =
        "await fetch('stock?item=tea', { method: 'PUT', body: JSON.stringify({ stock: 7 }) })";
    page.run_async(sell_tea).await;
    page.until_reads("#stock", "7").await;
    page.go(&shop.url()).await;

    shop.sell(1_000_000_000).await;
    page.until_reads("#stock", "1,000,000,000").await;
    page.run_async("await fetch('stock/reduce?quantity=100000', { method: 'POST' })").await;
    page.until_reads("#stock", "999,900,000").await;
    page.run("for (const part of document.querySelectorAll('details')) part.open = true").await;
    for dark in [false, true] {
        page.become_device(Device { dark, ..PHONE }).await;
        assert_fits(&page).await;
    }
    for width in [320, 768, 1024, 2560] {
        page.become_device(Device { width, ..DESKTOP }).await;
        assert_fits(&page).await;
    }
}

pub(super) async fn assert_fits(page: &Tab) {
    // an element may be wider than a parent that cuts it off or scrolls
    let script = "
        const wide = [...document.querySelectorAll('main *, header *, footer *')].filter((one) =>
            one.checkVisibility() && !one.closest(innerWidth < 700 ? '.hidden, .chapters' : '.hidden')
            && one.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5);
        return [document.documentElement.scrollWidth - document.documentElement.clientWidth,
            wide.map((one) => `${one.tagName}#${one.id}.${one.className}`)];";
    let found = page.run(script).await;
    assert_eq!(found, json!([0, []]), "{}", page.run("return innerWidth").await);
}

/// Goal: the page follows the visitor's colour scheme, and so does its drawing.
#[tokio::test]
async fn both_colour_schemes() {
    let demo = Demo::with(&[]).await;
    let page = Tab::open(&demo.url(), DESKTOP).await;
    page.until_reads("#sentence", "Two buyers").await;
    // the light of the ground, of the text and of the drawing, from 0 to 3 * 255
    let script = "
        const light = ([red, green, blue]) => red + green + blue;
        const { backgroundColor, color } = getComputedStyle(document.documentElement);
        const [ground, ink] = [backgroundColor, color].map((colour) => light(colour.match(/[0-9.]+/g).map(Number)));
        const canvas = document.querySelector('#scene');
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        const drawn = [];
        for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 200) drawn.push(light(data.subarray(at)));
        return [ground, ink, drawn.reduce((sum, one) => sum + one, 0) / drawn.length];";
    for dark in [false, true] {
        page.become_device(Device { dark, ..DESKTOP }).await;
        let is_so = async || {
            let [ground, ink, drawn]: [f64; 3] =
                serde_json::from_value(page.run(script).await).unwrap_or_default();
            (ground < ink) == dark && (drawn < 400.0) == dark
        };
        eventually(&format!("dark: {dark}"), is_so).await;
    }
}

/// Goal: nothing jumps while the numbers change. Method: the browser reports every move on the whole page during a sale.
#[tokio::test]
async fn nothing_jumps_during_a_sale() {
    let demo = Demo::with(&[]).await;
    let page = Tab::open(&demo.url(), Device { height: 3000, ..DESKTOP }).await;
    page.until_reads("#lucky", "300").await;
    // the page is at rest: an empty queue, no order in the last second, the replay of the first sale at its end
    eventually("no order comes", async || page.number("#rate").await == Some(0)).await;
    page.until_shown("#next").await;
    let observe = "
        window.moved = [];
        new PerformanceObserver((entries) => {
            const nodes = entries.getEntries().flatMap(({ sources }) => sources.map(({ node }) => node));
            const elements = nodes.map((node) => node?.closest ? node : node?.parentElement);
            // a long note moves the notes below it, and the end of the page
            const fixed = elements.filter((one) => one?.closest('main') && !one.closest('#notes'));
            moved.push(...fixed.map((one) => one.outerHTML));
        }).observe({ type: 'layout-shift' });
        document.querySelector('#units').value = 30;
        document.querySelector('#buyers').value = 501;
        document.querySelector('#run-form').requestSubmit();";
    // a form that cannot be sent yet would not be sent later
    page.until_shown("#run[aria-disabled=false]").await;
    page.run(observe).await;
    page.until_reads("#verdict-run", "30 units, 501 buyers").await;
    page.until_reads("#verdict-title", "Correct").await;
    page.until_reads("#proof-text", "sold out").await;
    page.until_reads("#lucky", "30").await;
    page.until_reads("#sentence", "No unit was sold twice").await;
    assert_eq!(page.run("return moved").await, json!([]));

    // digits of different widths would move their neighbours
    let proportional = "
        return [...document.querySelectorAll('.counters dd, .orders td')].filter((one) =>
            !getComputedStyle(one).fontVariantNumeric.includes('tabular-nums')).map((one) => one.id || one.className)";
    assert_eq!(page.run(proportional).await, json!([]));
}

/// Goal: the keyboard reaches everything, and the focus is visible.
#[tokio::test]
async fn the_keyboard_is_enough() {
    let demo = Demo::with(&[]).await;
    let page = demo.live_page().await;
    let (tab, enter, space) = (Key::Tab.into(), Key::Enter.into(), ' ');
    let mut reached = Vec::new();
    for _ in 0..60 {
        page.press(tab).await;
        let script = "
            const one = document.activeElement;
            return [one.id || one.value || one.textContent.trim(), one === document.body
                || getComputedStyle(one).outlineStyle !== 'none'];";
        let focus = page.run(script).await;
        assert_eq!(focus[1], true, "no visible focus: {focus}");
        let name = focus[0].as_str().unwrap().to_owned();
        if reached.contains(&name) {
            break;
        }
        reached.push(name);
    }
    // in the order of the page
    let names = [
        "Skip to the sale",
        "chapter-no-lock",
        "scrub",
        "play",
        "save",
        "units",
        "guard",
        "fence",
        "run",
        "/stock",
    ];
    reached.retain(|name| names.contains(&name.as_str()));
    assert_eq!(reached, names);

    // the replayed sale can be stopped, and gone through event by event
    let (left, right) = (Key::Left.into(), Key::Right.into());
    page.run("document.activeElement.blur()").await;
    page.press(space).await;
    page.until_reads("#play", "▶").await;
    let step = async || {
        page.run("return document.querySelector('#scrub').ariaValueText").await.to_string()
    };
    for (key, steps) in [
        (Key::Home.into(), "step 1 of"),
        (right, "step 2 of"),
        (right, "step 3 of"),
        (left, "step 2 of"),
    ] {
        page.run("document.querySelector('#scrub').focus()").await;
        page.press(key).await;
        eventually(steps, async || step().await.contains(steps)).await;
    }
    assert!(step().await.contains("buyer"), "{}", step().await);

    page.run("document.querySelector('#chapter-shared').focus()").await;
    page.press(enter).await;
    page.until_shown("#chapter-shared[aria-pressed=true]").await;
    assert_eq!(
        page.run("return document.activeElement.id").await,
        "chapter-shared",
        "the focus stays"
    );
}

/// Goal: with reduced motion, the replay moves on by whole seconds, and nothing slides.
#[tokio::test]
async fn reduced_motion_is_respected() {
    let demo = Demo::with(&[]).await;
    let page = Tab::open(&demo.url(), Device { reduced_motion: true, ..DESKTOP }).await;
    page.until_reads("#sentence", "Two buyers").await;
    let frames = "
        const places = new Set();
        const end = performance.now() + 1500;
        while (performance.now() < end) {
            await new Promise(requestAnimationFrame);
            places.add(document.querySelector('#scrub').value);
        }
        return places.size;";
    let places = page.run_async(frames).await.as_u64().unwrap();
    assert!(places <= 3, "{places} places in 1.5 s");
    let slides = "return [...document.querySelectorAll('*')].filter((one) => {
        const style = getComputedStyle(one);
        return style.transitionDuration !== '0s' || style.animationName !== 'none';
    }).length";
    assert_eq!(page.run(slides).await, 0);
}
