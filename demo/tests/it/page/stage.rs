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

    /// Goes to a chapter, past its question.
    pub(super) async fn tell(&self, chapter: &str) {
        let button = format!("#chapter-{chapter}");
        self.until_shown(&button).await;
        self.click(&button).await;
        self.until_shown("#skip").await;
        self.click("#skip").await;
        self.until_shown(&format!("{button}[aria-pressed=true]")).await;
        self.until_shown("#stage:not([data-busy])").await;
    }

    /// The last recording, from the server.
    pub(super) async fn recording(&self) -> Value {
        self.run_async("return (await fetch('demo/run/replay')).json()").await
    }
}

/// The counts of a recording: the orders sold, the units sold, the units sold more than once, and how often the most frequent
/// unit was sold.
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

/// Goal: when it opens, the page draws two buyers and one unit. From there a reader reaches the token in half a minute. Each
/// chapter begins with a question and tells its run on the real servers: its counts are those of the recording.
#[tokio::test]
async fn each_chapter_tells_its_run() {
    let demo = Demo::with(&[]).await;
    let page = demo.live_page().await;
    page.load(&demo.url()).await;
    page.until_reads("#sentence", "Two buyers want one unit.").await;
    page.until_reads("#source", "A drawing").await;
    assert!(!page.is_shown("#sum-title").await, "the details are closed");
    page.until_reads("#sentence", "One unit, two owners.").await;
    page.until_reads("#next", "And 500 at once").await;
    let first = page.recording().await;
    let shipped = page.run_async("return (await fetch('static/stage/recorded.json')).json()").await;
    for recording in [&first, &shipped[0], &shipped[1]] {
        assert_eq!(recording["lease_ms"], 3000);
    }
    // the time until the question that explains the token, from the films as far as a reader must see them
    let way = "const { prepare, film } = await import('/static/stage/state.js');
        const { CHAPTERS, DRAWING, scenes } = await import('/static/stage/story.js');
        const seen = (recording, chapter) => {
            const all = scenes(prepare(recording), chapter);
            const end = all.findIndex(({ isEnding, text }) => isEnding || text.includes('refuses'));
            return all.slice(0, end).reduce((sum, { seconds }) => sum + seconds, 0);
        };
        return [DRAWING, FIRST, ...SHIPPED].map((one, place) => seen(one, CHAPTERS[place]));";
    let way = way.replace("FIRST", &first.to_string()).replace("SHIPPED", &shipped.to_string());
    let way: Vec<f64> = serde_json::from_value(page.run_async(&way).await).unwrap();
    assert!(way[..3].iter().sum::<f64>() <= 20.0 && way.iter().sum::<f64>() <= 26.0, "{way:?}");
    for (chapter, is_wrong, words) in [
        ("shared", false, "No unit was sold twice."),
        ("asleep", true, "sold again what was sold"),
        ("checked", false, "bounces off. No unit was sold twice."),
        ("no-lock", true, "again and again"),
        ("local", true, "two keys open the same shelf"),
        ("atomic", false, "examples/two_stores.rs"),
    ] {
        // each chapter ends with the way to the next one
        page.until_shown("#next").await;
        page.click("#next").await;
        page.until_shown(&format!("#chapter-{chapter}[aria-pressed=true]")).await;
        page.until_reads("#sentence", "?").await;
        page.click(if is_wrong { "#no" } else { "#skip" }).await;
        page.until_shown("#stage:not([data-busy])").await;
        page.to_the_end().await;
        page.until_reads("#sentence", words).await;
        assert_eq!(page.text("#guessed").await, if is_wrong { "Your guess: no." } else { "" });
        let (recording, source) = match chapter {
            "shared" => (first.clone(), "on the real shops"),
            "asleep" => (shipped[0].clone(), shipped[0]["machine"].as_str().unwrap()),
            "checked" => (shipped[1].clone(), shipped[1]["machine"].as_str().unwrap()),
            _ => (page.recording().await, "on the real shops"),
        };
        page.until_reads("#source", source).await;
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
    // a sale is placed in the tenure that had its number, but not before its buyer came
    let late = "const { prepare } = await import('/static/stage/state.js');
        const events = [[0, 'key', 0, 1], [90, 'asked', 0, 0], [100, 'drop', 0, 1], [120, 'sold', 0, 0, 1, 1]];
        const { final, events: [, , [at]] } = prepare({ events, took_us: 120 });
        return [final.shops[0].waiting, at > 90 && at < 100];";
    assert_eq!(page.run_async(late).await, json!([0, true]));
    // while a run takes place, a shop that sold more units than it has buyers has sold to those of the other
    let live = "const { Live } = await import('/static/stage/live.js');
        const run = {
            id: '1', state: 'firing', requests: 4, stock: 4, sold: 3, elapsed_ms: 20, began_ms: 1000,
            shops: ['a', 'b'], victim: null, fault: null, hit_ms: null,
        };
        const live = new Live({ ...run, sold: 0, elapsed_ms: 0 }, 3000);
        live.see({ holder: { instance: 'a', token: 1, since_ms: 1000 } });
        live.hear(run);
        live.see({ holder: { instance: 'b', token: 2, since_ms: 1010 } });
        const { events, end, final: { sold, buyers } } = live.recording();
        return [sold, buyers.size, end > 0 && events.every(([at]) => at >= 0)];";
    assert_eq!(page.run_async(live).await, json!([3, 4, true]));
    // a recording is there at once: the same story with the other ending
    page.click("#chapter-checked").await;
    for ending in ["asleep", "checked"] {
        page.click("#checks").await;
        page.until_shown(&format!("#chapter-{ending}[aria-pressed=true]")).await;
    }
    // the store remembers a token after a write, and not before
    let remembers = "const { prepare } = await import('/static/stage/state.js');
        const { scenes } = await import('/static/stage/story.js');
        const recording = prepare(SHIPPED);
        const { at } = scenes(recording, { id: 'checked' }).find(({ text }) => text.includes('remembers'));
        return recording.events.some(([sold, kind]) => kind === 'sold' && sold <= at)";
    let remembers = remembers.replace("SHIPPED", &shipped[1].to_string());
    assert_eq!(page.run_async(&remembers).await, true);
    assert_eq!(page.complaints().await, Vec::<String>::new());
}

/// Goal: the sleep is a slider, and one click runs it on the real shops, which the stage shows live: which shop sleeps, and what
/// each side believes. Without the store's check a unit is sold twice as soon as the sleep outlasts the lease. A run of another
/// page changes nothing here.
#[tokio::test]
async fn a_sleep_of_ones_own_is_shown_live() {
    let demo = Demo::with(&[]).await;
    let page = demo.live_page().await;
    page.click("#chapter-asleep").await;
    page.until_reads(
        "#sentence",
        "sleeps for 8 s. Its lease lasts 3.0 s. Does the lock still hold?",
    )
    .await;
    page.click("#skip").await;
    for (sleep, words) in [(1, "woke up in time"), (8, "sold again what was sold")] {
        page.run(&format!(
            "sleep.value = {sleep}; sleep.dispatchEvent(new Event('input', {{ bubbles: true }}))"
        ))
        .await;
        // on a busy machine the sleeper may get an error when it wakes up, and then writes nothing: such a run is repeated
        loop {
            page.click("#run-sleep").await;
            page.until_reads("#source", "Live").await;
            if sleep == 8 {
                page.until_reads("#sentence", "sleeps, and believes that it has the key").await;
                page.until_reads("#sentence", "Shop A has it now, with token").await;
                // the picture moves
                let moment = "return document.querySelector('#scrub').value";
                let before = page.run(moment).await;
                eventually("it goes on", async || page.run(moment).await != before).await;
            }
            page.until_shown("#stage:not([data-busy])").await;
            page.to_the_end().await;
            page.until_reads("#sentence", "unit").await;
            if !page.text("#sentence").await.contains("This time.") {
                break;
            }
        }
        page.until_reads("#sentence", words).await;
        page.until_reads("#source", "Replay of a run on the real shops").await;
    }
    let before = page.text("#sentence").await;
    page.run_async("await fetch('demo/run', { method: 'POST', body: '{\"stock\":3,\"requests\":5,\"guard\":\"etcd\",\"fence\":true}' })").await;
    page.until_reads("#verdict-run", "3 units, 5 buyers").await;
    page.until_reads("#verdict-title", "Correct").await;
    page.until_reads("#lucky", "3").await;
    assert_eq!(page.text("#sentence").await, before);
}

/// Goal: a click on a unit's square, or its number, lists the buyers that got it; and a shop can be paused.
#[tokio::test]
async fn a_unit_lists_its_owners() {
    let demo = Demo::with(&[]).await;
    let page = demo.live_page().await;
    page.tell("shared").await;
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
    // there is no such unit
    page.fill("#unit", "9999").await;
    page.until_reads("#owned", "The units are 1 to 300.").await;
    assert_eq!(page.run("return document.querySelectorAll('#owners li').length").await, 0);
    // the table follows the moment
    page.run("document.querySelector('#events-details').open = true").await;
    let last = format!("1,{:03} ", events.len() - 1000);
    page.until_reads("#events [aria-current]", &last).await;
    page.run("document.querySelector('#scrub').focus()").await;
    page.press(Key::Home.into()).await;
    page.until_reads("#events [aria-current]", "1 0.0 ms").await;
    page.click(".shop:last-child summary").await;
    page.click(".shop:last-child button").await;
    page.until_reads(".shop:last-child p", "will fall asleep").await;
}

/// Goal: a saved file shows the same replay from the disk, without a server, and a link does so in the page. Both lead back to
/// the demo.
#[tokio::test]
async fn a_replay_can_be_passed_on() {
    let demo = Demo::with(&[]).await;
    let page = demo.live_page().await;
    page.tell("no-lock").await;
    let recording = page.recording().await;
    let dir = OwnedDir::create().unwrap();
    let file = dir.path().join("replay.html");
    std::fs::write(&file, page.saved().await).unwrap();
    let link = "const { asLink } = await import('/static/stage/share.js');
        return asLink({ ...RECORDING, buyers: 501 })";
    let link = page.run_async(&link.replace("RECORDING", &recording.to_string())).await;

    page.become_device(PHONE).await;
    let file = format!("file://{}", file.display());
    let back = format!("a[href='http://127.0.0.1:{}']", demo.port + 20);
    for (url, people, back) in
        [(&*file, "500 buyers", &*back), (link.as_str().unwrap(), "501 buyers", "#home")]
    {
        // a link also works in a page that is open
        page.load(&demo.url()).await;
        page.load(url).await;
        page.until_shown("#chapter-no-lock[aria-pressed=true]").await;
        page.run("document.querySelector('#scrub').focus()").await;
        page.press(Key::Home.into()).await;
        page.until_reads("#sentence", people).await;
        page.to_the_end().await;
        page.until_reads("#sentence", "again and again").await;
        let [sold, units, doubled, _] = counts(&recording);
        for (id, expected) in [("#got", sold), ("#units-sold", units), ("#doubled", doubled)] {
            assert_eq!(page.text(id).await, expected.to_string(), "{id}");
        }
        assert_fits(&page).await;
        page.until_shown(back).await;
    }
    page.click("#home").await;
    page.until_reads("#sentence", "Two buyers").await;
    assert_eq!(page.complaints().await, Vec::<String>::new());
    dir.remove().await.unwrap();
}

/// Goal: on a phone and on two desktops the sentence, the drawing, the answer and the player are visible without scrolling, and
/// so is the slider if there is one. On a phone the sentence stays while the rest scrolls. A single shop tells no chapter.
#[tokio::test]
async fn the_stage_is_above_the_fold() {
    let demo = Demo::with(&[]).await;
    let page = Tab::open(&demo.url(), DESKTOP).await;
    for device in [
        DESKTOP,
        Device { width: 1280, height: 720, ..DESKTOP },
        PHONE,
        Device { dark: true, ..PHONE },
    ] {
        page.become_device(device).await;
        page.load(&demo.url()).await;
        page.until_reads("#sentence", "Two buyers").await;
        page.to_the_end().await;
        page.until_reads("#sentence", "One unit, two owners.").await;
        for part in ["", ", '#sleeping'"] {
            if !part.is_empty() {
                page.tell("asleep").await;
                page.to_the_end().await;
            }
            page.until_shown("#next").await;
            assert_fits(&page).await;
            let below = format!(
                "return ['#sentence', '#next', '#scene', '#scrub', '.scores', '#play'{part}].filter((one) =>
                    document.querySelector(one).getBoundingClientRect().bottom > innerHeight)"
            );
            assert_eq!(page.run(&below).await, json!([]), "{device:?}{part}");
        }
    }
    page.run("document.querySelector('#owners').scrollIntoView()").await;
    let top = "return document.querySelector('#sentence').getBoundingClientRect().top >= 0";
    assert_eq!(page.run(top).await, true);
    // a buyer passes through no other shop on the way to one, and no moment is written twice below the lanes
    let drawn = "const { along, layout, ticks } = await import('/static/stage/draw.js');
        const crossed = [[390, 368], [900, 400]].flatMap(([width, height]) => {
            const { home, shops, doors, rooms } = layout({ width, height, dots: 500, stock: 300, shops: 2, lanes: true });
            const { x, y, w, h } = shops[0];
            const way = Array.from({ length: 99 }, (_, at) => along(at / 99, home.centre(9), doors[1][0], rooms[1].centre(5)));
            return way.filter(([left, top]) => left > x && left < x + w && top > y && top < y + h);
        });
        const labels = ticks([[0, '1 s'], [90, '8.0 s'], [180, '8.0 s'], [270, '8.1 s']], () => 20, 400, '8.1 s');
        return [crossed, labels];";
    assert_eq!(page.run_async(drawn).await, json!([[], [[0, "1 s"], [90, "8.0 s"]]]));
    drop(page);

    let shop = Shop::empty(&[]).await;
    let page = Tab::open(&shop.url(), DESKTOP).await;
    page.tell("shared").await;
    page.until_reads("#stage-error", "Only one shop was up").await;
    page.until_reads("#sentence", "Will a unit be sold twice?").await;
}
