//! The pictures of the README. Not a test: `make screenshots` runs it.

use testkit::wait::eventually;

use super::browser::{DESKTOP, Device, Tab};
use crate::launch::Demo;

const WIDTH: u32 = 1440;

/// A sale under way, and the end of one without a lock.
#[tokio::test]
#[ignore = "makes the pictures of the README, with the demo's usual ports: make screenshots"]
async fn pictures_of_the_readme() {
    let demo = Demo::on_port(8080, &[]).await;
    let page = Tab::open(&demo.url(), Device { width: WIDTH, ..DESKTOP }).await;
    page.until_reads("#link-text", "live").await;
    page.fill("#units", "90000").await;
    page.fill("#buyers", "100000").await;
    page.click("#run").await;
    let is_under_way = async || page.number("#sold").await.is_some_and(|sold| sold > 30_000);
    eventually("a third is sold", is_under_way).await;
    page.picture("readme-sale", WIDTH, 1240).await;
    page.click("#stop").await;
    page.until_reads("#verdict-title", "Stopped").await;

    page.become_device(Device { width: WIDTH, dark: true, ..DESKTOP }).await;
    page.click("#preset-no-lock").await;
    page.until_reads("#verdict-title", "Wrong").await;
    page.until_reads("#proof-text", "too many").await;
    page.picture("readme-oversold", WIDTH, 600).await;
}
