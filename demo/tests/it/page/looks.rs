//! The page on other devices: narrow, dark, without a mouse, with reduced motion.

use serde_json::{Value, json};
use testkit::wait::eventually;
use thirtyfour::Key;

use super::browser::{DESKTOP, Device, PHONE, Tab};
use super::scene::Shop;
use crate::launch::Demo;

/// Goal: on a phone nothing needs sideways scrolling, not even with the longest numbers.
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
            one.checkVisibility() && !one.closest('.hidden, .cut, .chapters')
            && one.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5);
        return [document.documentElement.scrollWidth - document.documentElement.clientWidth,
            wide.map((one) => `${one.tagName}#${one.id}.${one.className}`)];";
    let found = page.run(script).await;
    assert_eq!(found, json!([0, []]), "{}", page.run("return innerWidth").await);
}

/// Goal: the page follows the visitor's colour scheme, in its drawing as well.
#[tokio::test]
async fn both_colour_schemes() {
    let demo = Demo::with(&[]).await;
    let page = Tab::open(&demo.url(), DESKTOP).await;
    page.until_reads("#sentence", "500 people").await;
    let looks = async |dark| {
        page.become_device(Device { dark, ..DESKTOP }).await;
        // the change of scheme is noticed in one frame and drawn in the next
        let script = "await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() =>
                requestAnimationFrame(done))));
            const luminance = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0);
            const style = getComputedStyle(document.documentElement);
            const canvas = document.querySelector('#scene');
            const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            let [sum, opaque] = [0, 0];
            for (let at = 0; at < data.length; at += 4) {
                if (data[at + 3] < 200) continue;
                sum += data[at] + data[at + 1] + data[at + 2];
                opaque += 1;
            }
            return [luminance(style.backgroundColor), luminance(style.color), opaque && sum / opaque];";
        let values: [f64; 3] = serde_json::from_value(page.run_async(script).await).unwrap();
        values
    };
    let is_dark_on_light = async || {
        let [ground, ink, drawn] = looks(false).await;
        ground > ink && drawn > 400.0
    };
    eventually("dark on light", is_dark_on_light).await;
    let is_light_on_dark = async || {
        let [ground, ink, drawn] = looks(true).await;
        ground < ink && drawn > 0.0 && drawn < 400.0
    };
    eventually("light on dark", is_light_on_dark).await;
}

/// Goal: nothing jumps while the numbers change. Method: follow the places of everything fixed in each frame of the
/// first sale; then once more with numbers without room of their own, where the same method must see a jump.
#[tokio::test]
async fn nothing_jumps_during_a_sale() {
    let demo = Demo::with(&[]).await;
    let page = Tab::open(&demo.url(), DESKTOP).await;
    page.until_reads("#orders", "300").await;
    // the page is at rest: no run yet, an empty queue, no order in the last seconds
    page.until_reads("#latency-note", "none at").await;
    page.run(FOLLOW_PLACES).await;
    // the numbers at its end must differ from those before
    run_a_sale(&page, 30, 501).await;
    let places = followed_to_the_end(&page).await;
    assert!(places["followed"].as_u64().unwrap() > 50, "{places:#}");
    assert_eq!(places["moved"], json!([]), "{places:#}");

    // digits of different widths would move their neighbours
    let proportional = "
        return [...document.querySelectorAll('.counters dd, .orders td.n')].filter((one) =>
            !getComputedStyle(one).fontVariantNumeric.includes('tabular-nums')).map((one) => one.id || one.className)";
    assert_eq!(page.run(proportional).await, json!([]));

    let without_room = "
        const sheet = new CSSStyleSheet();
        sheet.replaceSync('.counters { display: block } .counters div { display: inline-block } .counters dt { display: none }');
        document.adoptedStyleSheets = [sheet];";
    page.run(without_room).await;
    page.run(FOLLOW_PLACES).await;
    // back to three digits, so that a look at the end is enough
    run_a_sale(&page, 300, 502).await;
    let places = followed_to_the_end(&page).await;
    assert_ne!(places["moved"], json!([]), "a jump is not noticed");
}

/// The places of everything, up to a frame from now.
async fn followed_to_the_end(page: &Tab) -> Value {
    let frames = async || page.run("return window.places.frames()").await.as_u64().unwrap();
    let enough = frames().await.max(10) + 2;
    eventually("the frames after the sale are followed", async || frames().await >= enough).await;
    page.run("return window.places.stop()").await
}

/// Runs a sale without the mouse and waits for its verdict. The number of `buyers` tells it from other runs.
async fn run_a_sale(page: &Tab, units: u32, buyers: u32) {
    let script = "
        document.querySelector('#units').value = UNITS;
        document.querySelector('#buyers').value = BUYERS;
        document.querySelector('#run-form').requestSubmit();";
    let script = script.replace("UNITS", &units.to_string());
    // a form that cannot be sent yet would not be sent later
    page.until_shown("#run[aria-disabled=false]").await;
    page.run(&script.replace("BUYERS", &buyers.to_string())).await;
    page.until_reads("#verdict-run", &format!("{units} units, {buyers} buyers")).await;
    page.until_reads("#verdict-title", "Correct").await;
    page.until_reads("#proof-text", "sold out").await;
    page.until_reads("#lucky", &units.to_string()).await;
}

/// Follows the upper left corners of everything fixed: headings, names, numbers, charts. The notes are left out: their
/// list grows.
const FOLLOW_PLACES: &str = "
    const all = [...document.querySelectorAll('main h2, main h3, main dt, main dd, main .proof, main canvas, main button')]
        .filter((one) => one.checkVisibility() && !one.closest('.hidden, details details, #notes, #stage-error'));
    const name = (one) => `${one.tagName}#${one.id}.${one.className} in #${one.parentElement.closest('[id]').id}`;
    const place = (one) => {
        const { left, top } = one.getBoundingClientRect();
        return [left + scrollX, top + scrollY];
    };
    const first = all.map(place);
    const moved = new Map();
    let frames = 0;
    let isOver = false;
    const look = () => {
        frames += 1;
        all.forEach((one, index) => {
            const [left, top] = place(one);
            const [x, y] = [left - first[index][0], top - first[index][1]];
            if (Math.abs(x) > 0.5 || Math.abs(y) > 0.5) moved.set(name(one), [name(one), x, y]);
        });
        if (!isOver) requestAnimationFrame(look);
    };
    look();
    window.places = {
        frames: () => frames,
        stop() {
            isOver = true;
            return { frames, followed: all.length, moved: [...moved.values()] };
        },
    };";

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
            // a segment's outline is on its label, since its radio button is invisible
            const seen = one.matches('.segment input') ? one.nextElementSibling : one;
            return [one.id || one.value || one.textContent.trim(), one === document.body
                || getComputedStyle(seen).outlineStyle !== 'none'];";
        let focus = page.run(script).await;
        assert_eq!(focus[1], true, "no visible focus: {focus}");
        let name = focus[0].as_str().unwrap().to_owned();
        if reached.contains(&name) {
            break;
        }
        reached.push(name);
    }
    for name in [
        "Skip to the sale",
        "chapter-no-lock",
        "scrub",
        "play",
        "save",
        "units",
        "etcd",
        "lock",
        "run",
        "/stock",
    ] {
        assert!(reached.iter().any(|one| one == name), "{name} in {reached:?}");
    }
    // the order of the focus is that of the page
    let places: Vec<_> = ["chapter-no-lock", "scrub", "play", "units", "run", "/stock"]
        .map(|name| reached.iter().position(|one| one == name))
        .into();
    assert!(places.is_sorted(), "{reached:?}");

    // the sale that is replayed can be stopped, and gone through event by event
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
    page.until_reads("#sentence", "500 people want").await;
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
