//! The pictures of the README, and a recording to open from the disk. Not a test: `make screenshots` runs it.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;

use super::browser::{DESKTOP, Device};
use crate::launch::Demo;

const SIZE: [u32; 2] = [1440, 850];

/// The replay of the first sale, each chapter's recording in one file, the ends of the chapters, and the recordings that come
/// with the page.
#[tokio::test]
#[ignore = "makes the pictures of the README, with the demo's usual ports: make screenshots"]
async fn pictures_of_the_readme() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let demo = Demo::on_port(8080, &[]).await;
    let page = demo.live_page().await;
    page.load(&demo.url()).await;
    page.until_reads("#sentence", "One unit, two owners.").await;
    page.picture("readme-two", SIZE, 1.0).await;
    page.tell("shared").await;
    // each frame with its moment, and how long it is shown
    let (mut frames, mut before) = (String::new(), None);
    while before.as_ref().is_none_or(|(_, moment)| *moment < 7_000) {
        let moment = page.run("return Number(document.querySelector('#scrub').value)").await;
        let moment = moment.as_u64().unwrap();
        if let Some((name, at)) = &before {
            writeln!(frames, "-d {} {name}.png", moment.saturating_sub(*at).max(20)).unwrap();
        }
        let name = format!("frame-{moment:05}");
        page.picture(&name, SIZE, 0.5).await;
        before = Some((name, moment));
    }
    let (last, _) = before.unwrap();
    writeln!(frames, "-d 3000 {last}.png").unwrap();
    let dir = root.join("target/screenshots");
    std::fs::write(dir.join("frames.txt"), format!("-o sale.webp -mixed -q 60\n{frames}")).unwrap();

    let mut recorded = Vec::new();
    for chapter in ["shared", "asleep", "checked", "no-lock", "local", "atomic"] {
        if chapter != "shared" {
            page.tell(chapter).await;
        }
        if page.is_shown("#run-sleep").await {
            page.click("#run-sleep").await;
            page.until_shown("#stage:not([data-busy])").await;
            let mut recording = page.recording().await;
            let cores = std::thread::available_parallelism().unwrap();
            recording["machine"] = format!("a machine with {cores} cores").into();
            // the instances are not those of the reader's demo
            recording["shops"] = json!(["", ""]);
            recorded.push(recording);
        }
        page.to_the_end().await;
        let dark = chapter == "no-lock";
        page.become_device(Device { dark, ..DESKTOP }).await;
        page.picture(&format!("readme-{chapter}"), SIZE, 1.0).await;
    }
    std::fs::write(root.join("static/stage/recorded.json"), json!(recorded).to_string()).unwrap();
    // the file opens with the recording that the page shows
    page.click("#chapter-no-lock").await;
    std::fs::write(dir.join("replay.html"), page.saved().await).unwrap();
}
