//! The whole load test against a small shop over real sockets.

mod recorded;
pub(crate) mod sale;
mod shop;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::net::TcpSocket;
use tokio_util::sync::CancellationToken;

use crate::cli::Args;
use crate::load::Live;
use crate::report::Report;
use crate::run::run_shown;
use shop::{Fault, Shop};

/// The arguments with flags, separated by spaces, for the instances of `shop`.
fn args(shop: &Shop, flags: &str) -> Args {
    let line = flags.split_whitespace().chain(shop.urls.iter().map(String::as_str));
    Args::from_flags(line).expect("the flags of the test are right")
}

async fn load(shop: &Shop, flags: &str) -> anyhow::Result<Report> {
    run_shown(&args(shop, flags)).await
}

/// Runs the command line against two instances of a shop with this fault.
async fn report(fault: Fault, flags: &str) -> Report {
    load(&Shop::open(fault).await, flags).await.expect("the shop is open")
}

/// How many orders were accepted, refused and unanswered.
fn counts(report: &Report) -> (u64, u64, u64) {
    (report.tally.acknowledged, report.tally.sold_out, report.tally.unknown)
}

/// Goal: a good shop passes, and the report describes the run.
#[tokio::test(flavor = "multi_thread")]
async fn good_shop_passes() {
    let report = report(Fault::None, "--requests 200 --concurrency 50 --stock 120").await;
    assert_eq!(
        report.verdict,
        "PASS: 120 of 120 units sold, each exactly once; 80 were told sold out; \
         stock 0 + lucky 120 = 120"
    );
    let answers = [("200".to_owned(), 120), ("409".to_owned(), 80)].into();
    assert_eq!(report.tally.answers_by_status, answers);
    let sold: u64 = report.instances.values().sum();
    assert_eq!((report.instances.len(), sold), (2, 120));
    let latency = report.latency_microseconds.as_ref().expect("200 answers");
    assert!(latency.min <= latency.p50 && latency.p50 <= latency.max);
    let by_status: Vec<_> = report.latency_microseconds_by_status.keys().collect();
    assert_eq!(by_status, ["200", "409"]);
    let text = report.to_string();
    assert!(text.contains("409: min ") && text.contains("(each"), "{text}");
    assert!(text.contains("200 reserved                 120"), "{text}");
    assert!(text.contains("409 sold out                  80"), "{text}");
    let json = serde_json::to_value(&report).expect("plain data");
    assert_eq!((&json["pass"], &json["answers_by_status"]["409"]), (&true.into(), &80.into()));
}

/// Goal: without `--stock`, the sale goes on, and only the difference is judged, over many pages of the ledger.
#[tokio::test(flavor = "multi_thread")]
async fn sale_goes_on_without_a_fresh_start() {
    let shop = Shop::open(Fault::None).await;
    let first = load(&shop, "--requests 40 --concurrency 40 --stock 3000 --item shoe").await;
    let first = first.expect("the shop is open");
    assert!(first.pass && first.to_string().contains("(all are released together"), "{first}");
    let second = load(&shop, "--requests 1100 --concurrency 8 --quantity 2 --item shoe").await;
    let report = second.expect("the shop is open");
    let pass = "PASS: 2200 of 2960 units sold, each exactly once; none was told sold out; \
                stock 760 + lucky 2240 = 3000";
    assert_eq!((report.verdict.as_str(), report.ledger_orders), (pass, 1100));
}

/// Goal: after an attempt without a decision, the same id is sent again while retries and time are left. The order counts once,
/// and fails the run only by the limit of one order. Without an answer at last, it counts as unknown. A long run against a
/// silent service ends soon, and does not pass.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_without_a_decision() {
    let few = "--requests 20 --concurrency 5 --stock 10";
    let hang = "--requests 100 --concurrency 100 --stock 100 --timeout 4s --retries 0";
    let leave =
        "--requests 9 --concurrency 3 --stock 9 --attempt-timeout 300ms --longest-order 10s";
    let slow = &leave.replace("10s", "200ms");
    let silent = "--requests 10000 --concurrency 2 --stock 4 --retries 0 --timeout 200ms";
    let late = "no answer in time";
    for (fault, flags, expected, unsettled, failure) in [
        (Fault::LoseAnswers(3), few, (10, 10, 0), ("broken connection", 3), ""),
        (Fault::Hang(1), hang, (99, 0, 1), (late, 1), ""),
        (Fault::Hang(1), leave, (9, 0, 0), (late, 1), ""),
        (Fault::Hang(1), slow, (9, 0, 0), (late, 1), "slow_order"),
        (Fault::Hang(u32::MAX), silent, (0, 0, 10_000), (late, 6), "unanswered"),
    ] {
        let report = report(fault, flags).await;
        assert_eq!(counts(&report), expected, "{fault:?} {flags}");
        let (why, times) = unsettled;
        assert_eq!(report.tally.unsettled_attempts, [(why.to_owned(), times)].into(), "{fault:?}");
        let reason = report.findings.first().map_or("", |found| &found.kind);
        assert_eq!(reason, failure, "{fault:?}: {}", report.verdict);
        let shown = report.to_string();
        let said = ["\nFAIL: I5 slow order: 1 order was", "\n      (I5: the sale goes on"];
        let is_said = said.iter().all(|said| shown.contains(said));
        assert_eq!(is_said, failure == "slow_order", "{shown}");
    }
}

/// Goal: an instance that vanishes in the middle of the run costs no order: its buyers turn to the other one, and the verdict
/// rests on the instances that still answer.
#[tokio::test(flavor = "multi_thread")]
async fn instance_goes_away() {
    let shop = Shop::open(Fault::LeaveAfter(20)).await;
    let report = load(&shop, "--requests 100 --concurrency 10 --stock 80").await;
    let report = report.expect("the shop is open");
    assert!(report.pass, "{}", report.verdict);
    assert_eq!(counts(&report), (80, 20, 0));
    assert_eq!(report.notes, [format!("{} does not answer after the run", shop.urls[1])]);
}

/// Goal: a caller in the same process sees the orders end, with their latency, and chooses the instance that gets orders first.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_watches_and_gives_a_head_start() {
    let shop = Shop::open(Fault::NotReady).await;
    let start = CancellationToken::new();
    let live = Arc::new(Live { head_start: Some((1, start.clone())), ..Live::default() });
    let args = args(&shop, "--requests=30 --concurrency=10 --stock=20");
    assert_eq!(live.progress(), "0 orders");
    let released = async {
        while live.ended() < 30 {
            tokio::task::yield_now().await;
        }
        start.cancel();
    };
    let (ran, ()) = tokio::join!(crate::run_in_process(&args, &live), released);
    let (report, orders) = ran.expect("the shop sells all the same");
    let progress = live.progress();
    assert!(progress.starts_with("30 orders; last second: p50 "), "{progress}");
    assert_eq!(live.progress(), "30 orders", "no more answers since then");
    assert!(report.pass, "{}", report.verdict);
    assert_eq!(report.instances.len(), 1, "{:?}", report.instances);
    let counted = [&live.acknowledged, &live.sold_out, &live.unsettled];
    assert_eq!(counted.map(|counter| counter.load(Ordering::Relaxed)), [20, 10, 0]);
    assert!(live.started.get().is_some() && live.duration.get().is_some());
    assert!(orders.iter().all(|order| order.places == (1, 1) && order.sent <= order.ended));
    let sold = orders.iter().filter_map(crate::Order::sold).count();
    let sold_out = orders.iter().filter(|order| order.is_sold_out()).count();
    assert_eq!((sold, sold_out), (20, 10));
}

/// Goal: the tokens allow to start a sale, to confirm and to read the ledger. If one is missing, or the port is wrong, the
/// error before the first order explains it.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_sent() {
    let tokens = Fault::Tokens("I-sell", "I-am-admin");
    let shop = Shop::open(tokens).await;
    let flags = "--requests 20 --stock 20 --hold 1m --pay 1";
    let directory = tempfile::tempdir().expect("a directory for the token");
    let file = directory.path().join("token");
    std::fs::write(&file, "I-am-admin\nnext\n").expect("the directory is writable");
    let by_file = &format!("--admin-token-file {}", file.display());
    for tokens in
        [by_file, "--admin-token I-am-admin --shop-token I-sell", "--admin-token I-am-admin"]
    {
        let report = load(&shop, &format!("{flags} {tokens}")).await.expect("the tokens are right");
        assert!(report.pass, "{tokens}: {}", report.verdict);
    }
    load(&shop, "--requests 2 --shop-token I-sell").await.expect("the sale goes on");
    assert!(Args::from_flags(["--admin-token", "", "http://127.0.0.1"]).is_err(), "an empty token");

    for (fault, flags, said) in [
        (tokens, "--stock 2", "is --admin-token-file missing"),
        (tokens, "--stock 2 --shop-token I-sell", "is --admin-token-file missing"),
        (tokens, "--requests 2", "is --shop-token-file missing"),
        (Fault::ForBuyers, "--stock 2", "the port for buyers: give the one of --admin-listen"),
        (Fault::Foreign, "--stock 2", "is it the port of an instance?"),
        (Fault::Foreign, "", "is it the port of an instance?"),
    ] {
        let shop = if fault == tokens { &shop } else { &Shop::open(fault).await };
        let error = load(shop, flags).await.err().map(|error| format!("{error:#}"));
        let error = error.unwrap_or_default();
        assert!(error.contains(said) && error.contains(&shop.urls[0]), "{fault:?}: {error}");
    }
}

/// Goal: with a service that is not ready, away, or without a sale there is no run, and the error says why.
#[tokio::test(flavor = "multi_thread")]
async fn no_run_without_a_service() {
    let shop = Shop::open(Fault::NotReady).await;
    let error = load(&shop, "--stock 2").await.expect_err("the shop is not ready");
    assert!(format!("{error:#}").contains("503 Service Unavailable: no lock"), "{error}");

    let shop = Shop::open(Fault::None).await;
    let error = load(&shop, "--item unheard-of").await.expect_err("there is no such sale");
    assert!(error.to_string().contains("start a sale with --stock"), "{error}");

    // bound, so that no other program gets the port, but nobody listens
    let closed = TcpSocket::new_v4().expect("a socket");
    closed.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let url = format!("http://{}", closed.local_addr().expect("it is bound"));
    let args = Args::from_flags([&url]).expect("a URL");
    let error = run_shown(&args).await.expect_err("nothing listens");
    assert!(format!("{error:#}").contains(&format!("cannot connect to {url}")), "{error}");
}
