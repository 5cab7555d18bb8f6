//! Two locks side by side, and the scoreboard.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use testkit::processes::processes;
use testkit::wait::eventually;

use super::browser::{DESKTOP, Device, PHONE, Tab};
use super::looks::assert_fits;
use crate::launch::Demo;

/// Chooses a fault and whether there is a fence, and runs both sales.
async fn run_both(page: &Tab, fault: &str, fence: bool) {
    page.click(&format!("#both-faults label:has([value='{fault}'])")).await;
    let is_fenced = page.run("return document.querySelector('#both-fence').checked").await;
    if is_fenced != json!(fence) {
        page.click("#both-fence").await;
    }
    start_both(page).await;
    page.until_reads("#both-run", "Running").await;
}

/// Starts both sales as soon as the page can.
async fn start_both(page: &Tab) {
    let can_run = async || page.is_shown("#both-run[aria-disabled=false]").await;
    eventually("both can run", can_run).await;
    page.click("#both-run").await;
}

/// Waits until both sales have a verdict.
async fn until_both_end(page: &Tab) {
    page.until_reads("#both-run", "Run both").await;
}

/// Goal: a visitor sees two locks under the same fault: who held when, what was refused or oversold, and both verdicts. What
/// was tried stays.
#[tokio::test]
async fn two_locks_meet_the_same_fault() {
    let demo = Demo::with(&["--lock", "redis", "--beside", "file"]).await;
    let page = demo.live_page().await;
    page.until_reads("#left-name", "Redis lock").await;
    page.until_reads("#right-name", "file lock").await;
    page.until_reads("#left-promises", "in order · waiters told at once · volatile tokens").await;
    page.until_reads("#right-promises", "ends with its process").await;
    page.until_reads("#scoreboard", "No run yet.").await;

    // without a fence: the lock with a lease oversells, and the one that ends with its process does not
    run_both(&page, "pause", false).await;
    // the victim is found to be stopped
    page.until_reads("#left-lanes", "paused from").await;
    page.until_reads("#right-lanes", "paused from").await;
    until_both_end(&page).await;
    page.until_reads("#left-title", "FAIL").await;
    page.until_reads("#left-text", "200 too many").await;
    page.until_reads("#right-title", "PASS").await;
    assert_eq!(
        [page.text("#left-oversold").await, page.text("#right-oversold").await],
        ["200", "0"]
    );
    let second = |at: u16| (demo.port + at).to_string();
    page.until_reads("#left-lanes li:last-child", &second(10)).await;
    page.until_reads("#left-lanes li:last-child", "then it wrote, although another").await;
    page.until_reads("#right-lanes li:last-child", &second(30)).await;
    assert!(!page.text("#right-lanes").await.contains("although"));
    // two take themselves for the holder: only on the left do the blocks of the two lanes overlap
    let overlap = "
        const all = (side, lane) => [...document.querySelectorAll(`#${side}-lanes li:nth-child(${lane}) .tenure`)]
            .map((block) => block.getBoundingClientRect());
        const both = (side) => all(side, 1).some((one) => all(side, 2).some((other) =>
            one.left + 3 < other.right && other.left + 3 < one.right));
        return [both('left'), both('right')]";
    assert_eq!(page.run(overlap).await, json!([true, false]));

    // with the fence
    run_both(&page, "pause", true).await;
    until_both_end(&page).await;
    page.until_reads("#left-title", "PASS").await;
    page.until_reads("#left-lanes", "its stale write was refused").await;
    page.until_reads("#left-text", "the fence refused its batch").await;

    // a guard without a holder has no fault
    page.click("#right-guards label:has([value=no-lock])").await;
    let faults =
        "return [...document.querySelectorAll('#both-faults input')].map((one) => one.disabled)";
    assert_eq!(page.run(faults).await, json!([false, true, true]));
    start_both(&page).await;
    page.until_reads("#right-name", "no lock").await;
    page.until_reads("#both-run", "Run both").await;
    page.until_reads("#right-text", "without a lock").await;
    page.until_reads("#left-title", "PASS").await;

    // newest first; two runs of one moment may end in any order
    let rows = "return [...document.querySelectorAll('#scoreboard tbody tr')].map((row) =>
        [...row.children].filter((cell) => cell.dataset.column !== 'takeover').map((cell) => cell.textContent).join(', '))";
    let rows = page.run(rows).await;
    let [fenced, not] = ["the lock's, holder paused", "none, holder paused"];
    for row in [
        format!("Redis lock, {fenced}, 300 of 300, 0, PASS"),
        format!("file lock, {fenced}, 300 of 300, 0, PASS"),
        format!("Redis lock, {not}, 500 of 300, 200, FAIL"),
        format!("file lock, {not}, 300 of 300, 0, PASS"),
        "Redis lock, the lock's, none, 300 of 300, 0, PASS".to_owned(),
    ] {
        assert!(rows.as_array().unwrap().contains(&json!(row)), "{row} in {rows:#}");
    }
    assert_eq!(rows.as_array().unwrap().len(), 6, "{rows:#}");
    assert!(page.text("#scoreboard").await.contains("no lock – none"), "{rows:#}");

    // another page in this tab has the same rows, and the newest runs are not added again
    page.go(&demo.url()).await;
    page.until_reads("#left-title", "PASS").await;
    assert_eq!(
        page.run("return document.querySelectorAll('#scoreboard tbody tr').length").await,
        6
    );

    page.assert_is_accessible().await;
    for device in [Device { dark: true, ..PHONE }, PHONE, Device { width: 320, ..PHONE }] {
        page.become_device(device).await;
        assert_fits(&page).await;
    }
    assert_eq!(page.complaints().await, Vec::<String>::new());
}

/// Goal: while the second sale is away, its column says so, the first one goes on, and nothing that was known is lost.
#[tokio::test]
async fn a_sale_that_is_away_is_said_to_be() {
    let demo = Demo::with(&["--lock", "file", "--beside", "redis"]).await;
    let page = demo.live_page().await;
    page.until_reads("#right-name", "Redis lock").await;
    let signal = |signal| {
        for port in [demo.port + 20, demo.port + 30] {
            for (pid, command) in processes(&format!("--listen=127.0.0.1:{port}")) {
                // its guardian is a shell that has the same arguments
                if !command.starts_with("/bin/sh") {
                    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
                }
            }
        }
    };
    // killed ones would be back in six seconds
    signal(Signal::STOP);
    for lane in ["first", "last"] {
        page.until_reads(&format!("#right-lanes li:{lane}-child"), "does not answer").await;
    }
    assert_eq!(page.text("#right-name").await, "Redis lock");
    start_both(&page).await;
    page.until_reads("#left-title", "PASS").await;
    page.until_reads("#scoreboard", "file lock").await;
    assert!(!page.text("#scoreboard").await.contains("Redis lock"));
    page.until_reads("#right-title", "Not carried out").await;
    page.until_reads("#right-text", "No instance of this sale answers.").await;
    // the demo starts killed ones again
    signal(Signal::KILL);
    let are_back = async || !page.text("#right-lanes").await.contains("does not answer");
    eventually("both answer", are_back).await;
    page.until_reads("#both-run", "Run both").await;
    start_both(&page).await;
    page.until_reads("#scoreboard", "Redis lock").await;
}

/// Goal: a demo with one lock has the scoreboard as well, and its presets run under that lock. The rows survive a new load of
/// the page, and are bounded.
#[tokio::test]
async fn what_was_tried_stays() {
    let demo = Demo::with(&["--lock", "redlock"]).await;
    let page = demo.live_page().await;
    page.until_reads("#scoreboard", "No run yet.").await;
    assert!(!page.is_shown("#beside").await);
    // the page speaks of this lock, and of no other
    page.run("for (const part of document.querySelectorAll('details')) part.open = true").await;
    page.until_reads(".words", "The grants of Redlock have no numbers.").await;
    page.until_reads("#guarded", "guard: Redlock, fence: the store's").await;
    page.until_reads("#fence-note", "which the store counts").await;
    assert!(!page.text("body").await.contains("etcd"), "{}", page.text("body").await);
    let fences = "return [...document.querySelectorAll('#fences input')].map((one) => `${one.disabled} ${one.checked}`)";
    let [none, lock, store] = ["false false", "true false", "false true"];
    assert_eq!(page.run(fences).await, json!([none, lock, store]));
    page.click("#preset-kill").await;
    page.until_reads("#verdict-run", "300 units, 500 buyers, Redlock;").await;
    page.until_reads("#scoreboard tbody tr:first-child", "Redlock the store's holder killed").await;
    page.until_reads("#scoreboard tbody tr:first-child", "PASS").await;
    page.click("#preset-no-lock").await;
    page.until_reads("#scoreboard tbody tr:first-child", "no lock – none").await;
    page.until_reads("#scoreboard tbody tr:first-child", "FAIL").await;
    page.assert_is_accessible().await;
    page.become_device(DESKTOP).await;

    let many = "
        const [row] = JSON.parse(sessionStorage.getItem('flash-sale-scoreboard'));
        const rows = Array.from({ length: 70 }, (_, at) => ({ ...row, id: `row ${at}` }));
        sessionStorage.setItem('flash-sale-scoreboard', JSON.stringify([{ lock: 7 }, ...rows]));";
    page.run(many).await;
    page.go(&demo.url()).await;
    page.until_reads("#scoreboard", "no lock – none").await;
    let count = "return document.querySelectorAll('#scoreboard tbody tr').length";
    assert_eq!(page.run(count).await, 50);
    page.run("sessionStorage.setItem('flash-sale-scoreboard', '{')").await;
    page.go(&demo.url()).await;
    // the last run is known to the server, so it is a row again
    page.until_reads("#scoreboard", "no lock – none").await;
    assert_eq!(page.run(count).await, 1);
    assert_eq!(page.complaints().await, Vec::<String>::new());
}
