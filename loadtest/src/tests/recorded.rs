//! Runs with a record, a time limit or a rate, and runs whose clients leave.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::sleep;

use super::shop::{Fault, Shop};
use super::{load, report};
use crate::checker::u64_from;
use crate::cli::{self, Cli};
use crate::report::{Finding, Report, Tally};
use crate::{check, status};

/// A directory, and the name of a file in it that does not exist yet.
fn file() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().expect("a directory for the file");
    let path = directory.path().join("history.jsonl");
    let path = path.to_str().expect("a temporary directory's name is UTF-8").to_owned();
    (directory, path)
}

fn checked(file: &str) -> Report {
    let line = ["loadtest", "check", file, "--longest-pause", "1h"];
    let cli = clap::Parser::try_parse_from(line).expect("good flags");
    let Cli { command: Some(cli::Command::Check { file, limits, .. }), .. } = cli else {
        panic!("the command was given")
    };
    check(&file, limits).expect("the run was recorded")
}

fn attempts(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(Path::new(file)).expect("the run was recorded");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter_map(|line| line.get("attempt").cloned()).collect()
}

/// The fields that must be equal in both reports.
fn without_cpu(report: &Report) -> Value {
    let mut json = serde_json::to_value(report).expect("plain data");
    let fields = json.as_object_mut().expect("one object");
    // the file does not have it
    fields.remove("cpu_seconds");
    json
}

/// Goal: a recorded run gets the same verdict when it is read again, with users too.
#[tokio::test(flavor = "multi_thread")]
async fn recorded_run_is_judged_alike() {
    for more in ["", "--users 7"] {
        let (_directory, path) = file();
        let flags = format!("--requests 90 --concurrency 9 --stock 20 --history {path} {more}");
        let report = report(Fault::LoseAnswers(3), &flags).await;
        assert!(report.pass, "{}", report.verdict);
        assert_eq!((report.requests, report.tally.attempts), (90, 93));
        // one order may lose several answers
        assert!((1..=3).contains(&report.tally.resolved), "{}", report.tally.resolved);
        assert_eq!(without_cpu(&report), without_cpu(&checked(&path)));
        let again: u64 = report.tally.changes.values().sum();
        assert_eq!(u64_from(attempts(&path).len()), 93 + again);
    }
}

/// Goal: buyers who pay, pay late, twice or never, return, or leave, and users with a limit, do not fail the run and are
/// recorded; the holds of those who never paid have ended by the verdict.
#[tokio::test(flavor = "multi_thread")]
async fn buyers_pay_late_or_never() {
    let (_directory, path) = file();
    let shares =
        "--pay 0.4 --pay-late 0.2 --cancel 0.2 --return 0.5 --abandon 0.1 --again 0.5 --seed 2";
    let flags = format!(
        "--requests 300 --concurrency 30 --stock 120 --users 40 --user-header X-User --per-user 2 --hold 1s {shares} --history {path}"
    );
    let report = report(Fault::UserHeader, &flags).await;
    assert!(report.pass, "{}", report.verdict);
    let Tally { changes, limited, .. } = &report.tally;
    let confirmed = ["confirm: confirmed", "confirm: expired", "confirm: no answer"];
    let back = ["cancel: cancelled", "again: cancelled", "return: returned"];
    for told in [&confirmed[..], &back].concat() {
        assert!(changes.get(told).is_some_and(|times| *times > 0), "{told}: {changes:?}");
    }
    assert!(*limited > 0, "{report:?}");
    assert_eq!(without_cpu(&report), without_cpu(&checked(&path)));
    let error = load(&Shop::open(Fault::None).await, "--stock 2 --pay 1").await;
    assert!(error.expect_err("orders are final").to_string().contains("start one with --stock"));
}

/// Goal: an answered order is sent again at the other instance. A different answer is found, and so is an answer without the
/// mark. Without a ledger no order is sent again.
#[tokio::test(flavor = "multi_thread")]
async fn answered_orders_are_sent_again() {
    for (fault, more, found) in [
        (Fault::None, "", ""),
        (Fault::Anew(1), "", "answered_anew"),
        (Fault::Anew(0), "", "mismarked"),
        (Fault::None, "--without-ledger", ""),
    ] {
        let (_directory, path) = file();
        let flags = format!("--requests 30 -c 3 --stock 20 --again 1 --history {path} {more}");
        let report = report(fault, &flags).await;
        let kinds: Vec<_> = report.findings.iter().map(|found| &*found.kind).collect();
        assert_eq!(kinds.join(" "), found, "{}", report.verdict);
        let of_kind = |change: &str| {
            let mut all = attempts(&path);
            all.retain(|it| it["outcome"] == "ok" && it["change"].as_str().unwrap_or("") == change);
            all.into_iter().map(|it| (it["order"].to_string(), it["to"].as_u64().expect("a place")))
        };
        let (first, again): (BTreeMap<_, _>, Vec<_>) =
            (of_kind("").collect(), of_kind("reserved").collect());
        assert_eq!((first.len(), again.len()), (20, if more.is_empty() { 20 } else { 0 }));
        assert!(again.iter().all(|(order, place)| first[order] != *place), "{first:?}, {again:?}");
    }
}

/// Goal: the verdict waits for the end of the longest hold, also of one that a change made longer during the run.
#[tokio::test(flavor = "multi_thread")]
async fn longer_holds_are_waited_for() {
    let flags = "--requests 2 -c 1 --stock 2 --hold 1s --again 0";
    let report = report(Fault::LongerHolds(7), flags).await;
    assert!(report.pass, "{}", report.verdict);
    let held: Vec<_> = report.after.values().map(|after| after.held).collect();
    assert_eq!(held, [Some(0); 2], "{report}");
}

/// Goal: buyers who are told that all is held try again until units come back, and their wait counts as no pause, no slow order
/// and no latency.
#[tokio::test(flavor = "multi_thread")]
async fn held_units_are_waited_for() {
    let flags = "--requests 9 -c 9 --stock 5 --hold 1s --again 0 --retries 0 --longest-order 900ms";
    let report = report(Fault::None, &format!("{flags} --longest-pause 900ms")).await;
    assert!(report.pass && report.tally.acknowledged == 9, "{}", report.verdict);
    assert!(report.tally.unsettled_attempts["409 all-held"] >= 4, "{:?}", report.tally);
    assert!(report.duration_seconds > 1.0);
    assert!(report.latency_microseconds.expect("answers").max < 900_000);
}

/// Goal: in a sale with holds, a buyer who was told sold out while an earlier attempt had no answer cancels the order: units
/// may come back, and that attempt may take them. Without holds there is nothing to cancel.
#[tokio::test(flavor = "multi_thread")]
async fn refused_in_doubt_is_cancelled() {
    for (hold, cancelled) in [("--hold 1s --patience 0s", Some(1)), ("", None)] {
        let flags = format!("--requests 9 -c 3 --stock 4 --attempt-timeout 300ms --again 0 {hold}");
        let report = report(Fault::Hang(1), &flags).await;
        let Tally { sold_out, held_out, resolved, changes, .. } = &report.tally;
        let refused = if hold.is_empty() { (5, 0) } else { (0, 5) };
        assert!(report.pass && (*sold_out, *held_out) == refused, "{}", report.verdict);
        assert_eq!((resolved, changes.get("cancel: unknown order").copied()), (&1, cancelled));
    }
}

/// The load that [`ctrl_c_ends_a_run`] interrupts. It is no test of its own.
#[tokio::test]
#[ignore = "started by another test"]
async fn load_to_be_interrupted() {
    let flags = std::env::var("LOAD").expect("the flags");
    let cli = clap::Parser::try_parse_from(flags.split(' ')).expect("good flags");
    // the test harness has begun a line
    println!();
    std::process::exit(status(cli).await.into());
}

/// Goal: Ctrl-C ends a run, even if an order gets no answer, and the report tells what happened until then. An interrupted run,
/// and its record, prove no sale right. Method: this test program starts itself again.
#[tokio::test]
async fn ctrl_c_ends_a_run() {
    let (shop, (_directory, path)) = (Shop::open(Fault::Hang(1)).await, file());
    let flags = "--requests 5000 --rate 100 --stock 9999 --hold 1h -c 5 --history";
    let mut load = Command::new(std::env::current_exe().expect("this program"));
    let test = "tests::recorded::load_to_be_interrupted";
    load.args(["--ignored", "--exact", "--nocapture", test]).stdout(Stdio::piped());
    load.env("LOAD", format!("loadtest {flags} {path} {}", shop.urls.join(" ")));
    let load = load.kill_on_drop(true).spawn().expect("it starts");
    while !std::fs::read_to_string(&path).is_ok_and(|text| text.contains(r#""outcome":"ok""#)) {
        sleep(Duration::from_millis(10)).await;
    }
    let pid = load.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("it runs");
    kill_process(pid, Signal::INT).expect("it runs");
    let ended = load.wait_with_output().await.expect("it ends");
    let said = String::from_utf8(ended.stdout).expect("text");
    assert!(said.contains("\nINTERRUPTED: ") && ended.status.code() == Some(130), "{said}");
    let report = checked(&path);
    assert!(report.interrupted && !report.pass && report.findings.is_empty(), "{report:?}");
    assert!((1..5000).contains(&report.requests), "{}", report.requests);
    let left = [("client went away".to_owned(), 1)].into();
    assert_eq!((report.tally.abandoned, report.tally.unsettled_attempts), (1, left));
}

/// Goal: if the record cannot be written, the run fails and says so. If the file cannot even be created, nothing is sold.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn full_disk_fails_the_run() {
    let shop = Shop::open(Fault::None).await;
    for path in ["/dev/full", "/nowhere/history.jsonl"] {
        let flags = format!("--requests 90 --stock 20 --history {path}");
        let error = load(&shop, &flags).await.expect_err("no room");
        assert_eq!(error.to_string(), format!("the run cannot be recorded in {path}"));
    }
}

/// Goal: after each "not now", the order is sent again after the named time, at another instance unless a queue is full; and
/// the attempt's effect is recorded as the answers' documentation has it.
#[tokio::test(flavor = "multi_thread")]
async fn passing_refusals_are_asked_again() {
    for (status, kind, outcome, elsewhere) in [
        (429, "queue-full", "failed", false),
        (409, "all-held", "failed", false),
        (503, "lock-unavailable", "failed", true),
        (504, "outcome-unknown", "unknown", true),
        (502, "", "unknown", true),
    ] {
        let (_directory, path) = file();
        let flags = format!("--requests 1 --stock 1 --again 0 --history {path}");
        let report = report(Fault::Problem(1, status, kind), &flags).await;
        // a unit was left
        let is_lie = kind == "all-held";
        assert_eq!(report.tally.acknowledged, 1, "{status} {kind}");
        assert_eq!(report.pass, !is_lie, "{status} {kind}: {}", report.verdict);
        assert_eq!(report.tally.resolved, u64::from(outcome == "unknown"), "{status} {kind}");
        let attempts = attempts(&path);
        let [first, second] = &attempts[..] else { panic!("{attempts:?}") };
        assert_eq!((&first["outcome"], &second["outcome"]), (&outcome.into(), &"ok".into()));
        assert_eq!(first["order"], second["order"]);
        assert_eq!(first["to"] != second["to"], elsewhere, "{status} {kind}");
        let waited = second["sent"].as_u64().zip(first["ended"].as_u64());
        let waited = waited.map(|(sent, ended)| Duration::from_micros(sent - ended));
        let asked = Duration::from_secs(u64::from(!kind.is_empty()));
        assert!(waited.is_some_and(|waited| waited >= asked), "{status} {kind}: {waited:?}");
    }
}

/// Goal: an answer without a time to ask again is the last one, and counts by its type.
#[tokio::test(flavor = "multi_thread")]
async fn lasting_refusal_is_final() {
    for (status, kind) in [(400, "bad-item"), (503, "foreign-fence")] {
        let report = report(Fault::Problem(1, status, kind), "--requests 3 --stock 3").await;
        assert_eq!(report.tally.failures, [(format!("{status} {kind}"), 1)].into());
        assert_eq!((report.tally.acknowledged, report.tally.attempts), (2, 3));
        let found: Vec<_> = report.findings.iter().map(Finding::name).collect();
        assert_eq!(found, ["failed"], "{}", report.verdict);
    }
}

/// Goal: a run ends at its time, keeps its rate, and counts only the orders that were sent.
#[tokio::test(flavor = "multi_thread")]
async fn time_and_rate_bound_a_run() {
    let flags = "-z 1s -q 200 -c 4 --stock 1000";
    let bounded = report(Fault::None, flags).await;
    assert_eq!(bounded.pass, bounded.not_sent == 0, "{}", bounded.verdict);
    // a busy machine may not send all of them, but never more
    assert!((1..=200).contains(&bounded.requests), "{}", bounded.requests);
    assert_eq!(bounded.tally.acknowledged, u64::try_from(bounded.requests).expect("small"));
    assert_eq!(bounded.tally.unknown, 0);

    let both = report(Fault::None, "--duration 1h --requests 7 --stock 7").await;
    let bounds = (both.requests, both.setup.bound_seconds, both.setup.plan.rate);
    assert_eq!(bounds, (7, Some(3600.0), None));
    assert!(!both.setup.started.is_empty() && !both.setup.version.is_empty(), "{both:?}");
    // the only connection waits for longer than the run lasts
    let late = Fault::Problem(1, 429, "queue-full");
    let late = report(late, &flags.replace("-c 4", "-c 1")).await;
    let bounds = (late.requests, late.not_sent, late.setup.plan.rate);
    assert_eq!(bounds, (1, 199, Some(200.0)), "{late:?}");
    let found: Vec<_> = late.findings.iter().map(|found| &*found.kind).collect();
    assert_eq!(found, ["not_sent"]);
    assert!(late.to_string().contains("due and not sent             199"), "{late}");
}

/// Goal: at a rate, the latency counts from when the order was due, so that a slow service cannot hide the orders that wait for
/// it. Method: all orders are due at once, and one connection sends them one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn latency_counts_from_when_an_order_is_due() {
    let (_directory, path) = file();
    let flags = "--requests 60 --rate 1000000 --concurrency 1 --stock 60 --history";
    let report = report(Fault::None, &format!("{flags} {path}")).await;
    let latency = report.latency_microseconds.expect("all are settled");
    // the last order was due 59 microseconds after the first
    let longest = Duration::from_micros(latency.max + 59).as_secs_f64();
    assert!(longest >= report.duration_seconds, "{latency:?}, {}", report.duration_seconds);
    assert!(report.to_string().contains("(from when an order was due"), "{report}");
    assert_eq!(without_cpu(&report), without_cpu(&checked(&path)));
}

/// Goal: with a duration, buyers outlast an outage in which many orders in a row get no answer.
#[tokio::test(flavor = "multi_thread")]
async fn buyers_outlast_an_outage() {
    let flags = "--duration 1h --requests 12 --concurrency 1 --retries 0 --stock 9";
    let report = report(Fault::Problem(9, 502, ""), flags).await;
    assert_eq!((report.tally.unknown, report.tally.acknowledged), (9, 3));
    assert!(report.longest_pause_seconds > 0.0);
}

/// Goal: a buyer whose instance did not serve it goes elsewhere, and later returns: an instance that was started again must get
/// buyers again.
#[tokio::test(flavor = "multi_thread")]
async fn buyers_go_home_again() {
    let (_directory, path) = file();
    let flags = "--requests 30 --rate 10 --concurrency 1 --stock 30 --again 0 --history";
    let flags = format!("{flags} {path}");
    assert!(report(Fault::LoseAnswers(1), &flags).await.pass);
    let places: Vec<_> = attempts(&path).iter().map(|attempt| attempt["to"].as_u64()).collect();
    assert_eq!((places[0], places[1], places[30]), (Some(0), Some(1), Some(0)), "{places:?}");
}

/// Goal: clients go away as the seed decides. Those who come back settle their orders, and none of this fails the run.
#[tokio::test(flavor = "multi_thread")]
async fn clients_go_away() {
    let shop = Shop::open(Fault::None).await;
    let mut found = Vec::new();
    for share in [0.2, 0.2, 0.0] {
        let flags =
            format!("--requests 200 --concurrency 20 --stock 120 --seed 5 --abandon {share}");
        let report = load(&shop, &flags).await.expect("the shop is open");
        assert!(report.pass, "{}", report.verdict);
        assert_eq!((report.tally.unknown, report.setup.plan.seed), (report.tally.abandoned, 5));
        found.push((report.tally.abandoned, report.tally.resolved));
    }
    assert_eq!(found[0], found[1]);
    assert!(found[0].0 > 5 && found[0].1 > 5, "{found:?}");
    assert_eq!(found[2], (0, 0));
}
