//! The stage: recorded sales, replayed.

use std::collections::HashMap;

use serde_json::{Value, json};
use testkit::OwnedDir;
use testkit::wait::eventually;
use thirtyfour::Key;

use super::browser::{DESKTOP, Device, PHONE, Tab};
use super::looks::assert_fits;
use super::scene::Shop;
use crate::launch::Demo;

impl Tab {
    /// Goes to the end of the replay.
    pub(super) async fn to_the_end(&self) {
        self.run("document.querySelector('#scrub').focus()").await;
        self.press(Key::End.into()).await;
        let at_end =
            "const { value, max } = document.querySelector('#scrub'); return value === max";
        eventually("the replay is at its end", async || self.run(at_end).await == true).await;
    }

    /// The file that "Save replay" makes.
    pub(super) async fn saved(&self) -> String {
        let script = "
            const made = new Promise((done) => {
                const { createObjectURL } = URL;
                URL.createObjectURL = (blob) => { done(blob); return createObjectURL(blob); };
            });
            document.querySelector('#save').click();
            return (await made).text();";
        self.run_async(script).await.as_str().unwrap().to_owned()
    }

    /// The last recording, from the server.
    async fn recording(&self) -> Value {
        self.run_async("return (await fetch('demo/run/replay')).json()").await
    }
}

/// The counts of a recording: the orders sold, the units sold, those of them sold more than once, and how often the unit that
/// was sold most often.
fn counts(recording: &Value) -> [usize; 4] {
    let mut owners = HashMap::new();
    for event in recording["events"].as_array().unwrap() {
        if event[1] == "sold" {
            *owners.entry(event[4].as_u64().unwrap()).or_insert(0) += 1;
        }
    }
    let doubled = owners.values().filter(|sold| **sold > 1).count();
    [owners.values().sum(), owners.len(), doubled, owners.values().copied().max().unwrap_or(0)]
}

/// Goal: on opening, the page by itself replays the demo's first sale, and each chapter replays its run on the real servers: its
/// counts are those of the recording.
#[tokio::test]
async fn each_chapter_tells_its_run() {
    let demo = Demo::with(&[]).await;
    let page = demo.live_page().await;
    page.load(&demo.url()).await;
    page.until_reads("#sentence", "Two shops sell them, from one shelf.").await;
    assert!(!page.is_shown("#sum-title").await, "the details are closed");
    page.until_reads("#sentence", "Only the shop with the key may sell.").await;
    page.until_reads("#sentence", "No unit was sold twice.").await;
    page.until_reads("#next", "Take the lock away").await;
    let first = page.recording().await;
    for (chapter, is_wrong, words) in [
        ("no-lock", true, "again and again"),
        ("local", true, "two keys open the same shelf"),
        ("shared", false, "No unit was sold twice."),
        ("asleep", true, "sold again what was sold"),
        ("checked", false, "bounces off. No unit was sold twice."),
        ("atomic", false, "So when is a lock needed?"),
    ] {
        // each ends with the way to the next one
        page.until_shown("#next").await;
        page.click("#next").await;
        page.until_shown(&format!("#chapter-{chapter}[aria-pressed=true]")).await;
        page.to_the_end().await;
        page.until_reads("#sentence", words).await;
        // the first sale had the shared lock, so its recording is there
        let recording = if chapter == "shared" { first.clone() } else { page.recording().await };
        let [sold, units, doubled, most] = counts(&recording);
        assert_eq!(doubled > 0, is_wrong, "{chapter}: {sold} orders, {units} units");
        for (id, expected) in [("#got", sold), ("#units-sold", units), ("#doubled", doubled)] {
            assert_eq!(page.text(id).await, expected.to_string(), "{chapter}: {id}");
        }
        let owners = "const { scrollHeight, clientHeight } = document.querySelector('#lens');
            return [document.querySelectorAll('#owners li').length, scrollHeight <= clientHeight]";
        let listed = json!([if is_wrong { most } else { 1 }, true]);
        assert_eq!(page.run(owners).await, listed, "{chapter}");
        if is_wrong {
            page.until_reads("#sentence", &format!("was sold to {most} buyers")).await;
        }
    }
    // a sale is placed in the tenure that had its number, and not before its buyer came
    let late = "const { prepare } = await import('/static/stage/state.js');
        const events = [[0, 'key', 0, 1], [90, 'asked', 0, 0], [100, 'drop', 0, 1], [120, 'sold', 0, 0, 1, 1]];
        const { final, events: [, , [at]] } = prepare({ events, took_us: 120 });
        return [final.shops[0].waiting, at > 90 && at < 100];";
    assert_eq!(page.run_async(late).await, json!([0, true]));
    // what was recorded is there at once: the same story with the other ending
    page.click("#chapter-checked").await;
    page.until_shown("#checks").await;
    for ending in ["asleep", "checked"] {
        page.click("#checks").await;
        page.until_shown(&format!("#chapter-{ending}[aria-pressed=true]")).await;
    }
    assert_eq!(page.complaints().await, Vec::<String>::new());
}

/// Goal: a click on a unit's square, or its number, lists the buyers that got it; and a shop can be paused.
#[tokio::test]
async fn a_unit_lists_its_owners() {
    let demo = Demo::with(&[]).await;
    let page = demo.live_page().await;
    page.until_reads("#sentence", "500 people").await;
    page.to_the_end().await;
    let recording = page.recording().await;
    let events = recording["events"].as_array().unwrap();
    for (unit, click) in [(7, false), (300, true)] {
        if click {
            let click = "const { layout } = await import('/static/stage/draw.js');
                const canvas = document.querySelector('#scene');
                const { clientWidth: width, clientHeight: height } = canvas;
                const { square } = layout({ width, height, dots: 500, stock: 300, shops: 2, lanes: false });
                const { left, top } = canvas.getBoundingClientRect();
                const [x, y] = square.at(299);
                canvas.dispatchEvent(new MouseEvent('click', { clientX: left + x + 3, clientY: top + y + 3 }));";
            page.run_async(click).await;
        } else {
            page.fill("#unit", &unit.to_string()).await;
        }
        let sold = events.iter().find(|event| event[1] == "sold" && event[4] == unit).unwrap();
        let shop = if sold[3] == 0 { "A" } else { "B" };
        let buyer = sold[2].as_u64().unwrap() + 1;
        page.until_reads("#owners li", &format!("buyer {buyer}, shop {shop}")).await;
    }
    page.click(".shop:last-child summary").await;
    page.click(".shop:last-child button").await;
    page.until_reads(".shop:last-child p", "will fall asleep").await;
}

/// Goal: a saved file replays the same from the disk, without a server; a link does so in the page.
#[tokio::test]
async fn a_replay_can_be_passed_on() {
    let demo = Demo::with(&[]).await;
    let page = demo.live_page().await;
    page.click("#chapter-no-lock").await;
    page.until_shown("#chapter-no-lock[aria-pressed=true]").await;
    let recording = page.recording().await;
    let dir = OwnedDir::create().unwrap();
    let file = dir.path().join("replay.html");
    std::fs::write(&file, page.saved().await).unwrap();
    let link = "const { asLink } = await import('/static/stage/share.js');
        return asLink({ ...RECORDING, buyers: 501 })";
    let link = page.run_async(&link.replace("RECORDING", &recording.to_string())).await;

    page.become_device(PHONE).await;
    let file = format!("file://{}", file.display());
    for (url, people) in [(&*file, "500 people"), (link.as_str().unwrap(), "501 people")] {
        // a link also works in a page that is open
        page.load(&demo.url()).await;
        page.load(url).await;
        page.until_reads("#sentence", people).await;
        page.to_the_end().await;
        page.until_reads("#sentence", "again and again").await;
        let [sold, units, doubled, _] = counts(&recording);
        for (id, expected) in [("#got", sold), ("#units-sold", units), ("#doubled", doubled)] {
            assert_eq!(page.text(id).await, expected.to_string(), "{id}");
        }
        assert_fits(&page).await;
    }
    assert_eq!(page.complaints().await, Vec::<String>::new());
    dir.remove().await.unwrap();
}

/// Goal: on a phone and on a desktop the sentence, the drawing and the player are there without scrolling; on a phone the
/// sentence stays while the rest is scrolled. Before the first sale one button makes it.
#[tokio::test]
async fn the_stage_is_above_the_fold() {
    let demo = Demo::with(&[]).await;
    let page = Tab::open(&demo.url(), DESKTOP).await;
    for device in [DESKTOP, PHONE, Device { dark: true, ..PHONE }] {
        page.become_device(device).await;
        page.load(&demo.url()).await;
        page.until_reads("#sentence", "No unit was sold twice.").await;
        assert_fits(&page).await;
        let below = "return ['#sentence', '#next', '#scene', '#scrub', '#play'].filter((one) =>
            document.querySelector(one).getBoundingClientRect().bottom > 844)";
        assert_eq!(page.run(below).await, json!([]), "{device:?}");
    }
    page.run("document.querySelector('#owners').scrollIntoView()").await;
    let top = "return document.querySelector('#sentence').getBoundingClientRect().top >= 0";
    assert_eq!(page.run(top).await, true);
    drop(page);

    let shop = Shop::empty(&[]).await;
    let page = Tab::open(&shop.url(), DESKTOP).await;
    page.until_reads("#sentence", "No sale was recorded yet.").await;
    page.click("#next").await;
    page.until_reads("#sentence", "500 people want 300 units.").await;
    page.until_reads("#next", "Take the lock away").await;
}
