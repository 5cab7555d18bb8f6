//! The pictures of the README, and a recording to open from the disk. Not a test: `make screenshots` runs it.

use std::fmt::Write as _;
use std::path::Path;

use super::browser::{DESKTOP, Device};
use crate::launch::Demo;

const SIZE: [u32; 2] = [1440, 850];

/// The first sale as it is replayed, each chapter's recording in one file, and the ends of two chapters.
#[tokio::test]
#[ignore = "makes the pictures of the README, with the demo's usual ports: make screenshots"]
async fn pictures_of_the_readme() {
    let demo = Demo::on_port(8080, &[]).await;
    let page = demo.live_page().await;
    page.load(&demo.url()).await;
    page.until_reads("#sentence", "500 people").await;
    // each frame with its moment, and how long it is shown
    let (mut frames, mut before) = (String::new(), None);
    while before.as_ref().is_none_or(|(_, moment)| *moment < 10_000) {
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
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/screenshots");
    std::fs::write(dir.join("frames.txt"), format!("-o sale.webp -mixed -q 60\n{frames}")).unwrap();

    for chapter in ["no-lock", "local", "shared", "asleep", "checked", "atomic"] {
        page.until_shown("#next").await;
        page.click("#next").await;
        page.until_shown(&format!("#chapter-{chapter}[aria-pressed=true]")).await;
        page.to_the_end().await;
        let dark = chapter == "no-lock";
        page.become_device(Device { dark, ..DESKTOP }).await;
        page.until_shown("#again").await;
        page.picture(&format!("readme-{chapter}"), SIZE, 1.0).await;
    }
    // the file opens with what is shown
    page.click("#chapter-no-lock").await;
    std::fs::write(dir.join("replay.html"), page.saved().await).unwrap();
}
