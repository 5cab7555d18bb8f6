//! The whole load test against a small shop over real sockets.

mod recorded;
mod shop;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::net::TcpSocket;
use tokio_util::sync::CancellationToken;

use crate::cli::Args;
use crate::load::Live;
use crate::report::Report;
use crate::run::{RunError, run_shown};
use crate::table::Table;
use shop::{Fault, Shop};

/// Runs the command line against two instances of `shop`.
async fn load(shop: &Shop, flags: &[&str]) -> Result<Report, RunError> {
    let urls = shop.urls();
    let line = flags.iter().copied().chain(urls.iter().map(String::as_str));
    let args = Args::from_flags(line).expect("the flags of the test are right");
    run_shown(&args).await
}

/// Goal: a good shop passes, and the report tells what happened.
#[tokio::test(flavor = "multi_thread")]
async fn good_shop_passes() {
    let shop = Shop::open(Fault::None).await;
    let report = load(&shop, &["--requests", "200", "--concurrency", "50", "--stock", "120"])
        .await
        .expect("the shop is open");
    assert_eq!(
        report.verdict,
        "PASS: 120 of 120 units sold, each exactly once; 80 were told sold out; \
         stock 0 + lucky 120 = 120"
    );
    assert_eq!(report.answers_by_status, [(200, 120), (409, 80)].into());
    let sold: u64 = report.instances.values().map(|share| share.acknowledged).sum();
    assert_eq!((report.instances.len(), sold), (2, 120));
    let latency = report.latency_microseconds.as_ref().expect("200 answers");
    assert!(latency.min <= latency.p50 && latency.p50 <= latency.max);

    let text = Table(&report).to_string();
    assert!(text.contains("200 reserved                 120"), "{text}");
    assert!(text.contains("409 sold out                  80"), "{text}");
    let json = serde_json::to_value(&report).expect("plain data");
    assert_eq!((&json["pass"], &json["answers_by_status"]["409"]), (&true.into(), &80.into()));
}

/// Goal: without `--stock` the sale goes on, and only the difference is judged, over many pages of
/// the ledger.
#[tokio::test(flavor = "multi_thread")]
async fn sale_goes_on_without_a_fresh_start() {
    let shop = Shop::open(Fault::None).await;
    let first = ["--requests", "40", "--concurrency", "8", "--stock", "3000", "--item", "shoe"];
    assert!(load(&shop, &first).await.expect("the shop is open").pass);
    let second = ["--requests", "1100", "--concurrency", "8", "--quantity", "2", "--item", "shoe"];
    let report = load(&shop, &second).await.expect("the shop is open");
    let pass = "PASS: 2200 of 2960 units sold, each exactly once; none was told sold out; \
                stock 760 + lucky 2240 = 3000";
    assert_eq!((report.verdict.as_str(), report.ledger_orders), (pass, 1100));
}

/// Goal: an order whose answer is lost is asked for again with the same id, elsewhere, and counts
/// once.
#[tokio::test(flavor = "multi_thread")]
async fn lost_answer_is_asked_for_again() {
    let shop = Shop::open(Fault::LoseAnswers(3)).await;
    let report = load(&shop, &["--requests", "20", "--concurrency", "5", "--stock", "10"])
        .await
        .expect("the shop is open");
    assert!(report.pass, "{}", report.verdict);
    assert_eq!(report.unsettled_attempts, [("broken connection".to_owned(), 3)].into());
    assert_eq!((report.acknowledged, report.sold_out, report.unknown), (10, 10, 0));
}

/// Goal: a busy service is left alone for as long as it says, and then asked again.
#[tokio::test(flavor = "multi_thread")]
async fn retry_after_is_honoured() {
    let shop = Shop::open(Fault::Busy(2)).await;
    let report = load(&shop, &["--requests", "10", "--concurrency", "5", "--stock", "10"])
        .await
        .expect("the shop is open");
    assert!(report.pass, "{}", report.verdict);
    assert_eq!(report.unsettled_attempts, [("429 queue-full".to_owned(), 2)].into());
    let slowest = report.latency_microseconds.expect("10 answers").max;
    assert!(slowest >= 1_000_000, "the shop asked for a second, and got {slowest} us");
}

/// Goal: retries and time are bounded; what is not answered then is unknown, and nothing worse.
#[tokio::test(flavor = "multi_thread")]
async fn silence_is_bounded() {
    let shop = Shop::open(Fault::Hang(1)).await;
    let flags = ["--requests", "100", "--concurrency", "100", "--stock", "100", "--timeout", "4s"];
    let report = load(&shop, &[&flags[..], &["--retries", "0"]].concat()).await;
    let report = report.expect("the shop is open");
    assert!(report.pass, "{}", report.verdict);
    assert_eq!((report.acknowledged, report.unknown), (99, 1));
    assert_eq!(report.unsettled_attempts, [("no answer in time".to_owned(), 1)].into());
    assert_eq!(
        report.notes,
        ["1 order was not answered in the end; the ledger says that 0 of them stand"]
    );
}

/// Goal: the limit of one attempt is the one that was asked for, so an order that met an instance which
/// hangs is settled elsewhere soon; and the report says how long it took.
#[tokio::test(flavor = "multi_thread")]
async fn hanging_attempt_is_left() {
    let shop = Shop::open(Fault::Hang(1)).await;
    let (attempt, longest) = ("--attempt-timeout", "--longest-order");
    let flags = ["--requests", "9", "--concurrency", "3", "--stock", "9", attempt, "300ms"];
    let report = load(&shop, &[&flags[..], &[longest, "10s"]].concat()).await;
    let report = report.expect("the shop is open");
    assert!(report.pass, "{}", report.verdict);
    assert_eq!((report.acknowledged, report.unknown), (9, 0));
    assert_eq!(report.unsettled_attempts, [("no answer in time".to_owned(), 1)].into());
    assert!(report.slowest_order_seconds >= 0.3, "{}", report.slowest_order_seconds);

    let shop = Shop::open(Fault::Hang(1)).await;
    let report = load(&shop, &[&flags[..], &[longest, "200ms"]].concat()).await;
    let report = report.expect("the shop is open");
    assert_eq!(report.reasons[0].kind, "slow_order");
}

/// Goal: a long run against a service that has gone silent ends soon, and does not pass.
#[tokio::test(flavor = "multi_thread")]
async fn long_silence_ends_the_run() {
    let shop = Shop::open(Fault::Hang(u32::MAX)).await;
    let flags = ["--requests", "10000", "--concurrency", "2", "--stock", "4", "--retries", "0"];
    let report = load(&shop, &[&flags[..], &["--timeout", "200ms"]].concat()).await;
    let report = report.expect("the shop is open");
    assert_eq!(report.unsettled_attempts, [("no answer in time".to_owned(), 6)].into());
    assert_eq!((report.unknown, report.reasons[0].kind.as_str()), (10_000, "unanswered"));
}

/// Goal: an instance that goes away in the middle of the run costs no order: its buyers go to the
/// other one, and the verdict rests on what still answers.
#[tokio::test(flavor = "multi_thread")]
async fn instance_goes_away() {
    let shop = Shop::open(Fault::LeaveAfter(20)).await;
    let report = load(&shop, &["--requests", "100", "--concurrency", "10", "--stock", "80"])
        .await
        .expect("the shop is open");
    assert!(report.pass, "{}", report.verdict);
    assert_eq!((report.acknowledged, report.sold_out, report.unknown), (80, 20, 0));
    assert_eq!(report.notes, [format!("{} does not answer after the run", shop.urls()[1])]);
}

/// Goal: a caller in the same process sees the orders end, and which instance gets orders first.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_watches_and_gives_a_head_start() {
    let shop = Shop::open(Fault::NotReady).await;
    let start = CancellationToken::new();
    let live = Live { head_start: Some((1, start.clone())), ..Live::default() };
    let live = Arc::new(live);
    let flags = ["--requests=30", "--concurrency=10", "--stock=20"].map(str::to_owned);
    let args = Args::from_flags(flags.into_iter().chain(shop.urls())).expect("good flags");
    let released = async {
        while live.ended() < 30 {
            tokio::task::yield_now().await;
        }
        start.cancel();
    };
    let (report, ()) = tokio::join!(crate::run_in_process(&args, &live), released);
    let report = report.expect("the shop sells all the same");
    assert!(report.pass, "{}", report.verdict);
    assert_eq!(report.instances.len(), 1, "{:?}", report.instances);
    let counted = [&live.acknowledged, &live.sold_out, &live.unsettled];
    assert_eq!(counted.map(|counter| counter.load(Ordering::Relaxed)), [20, 10, 0]);
    assert!(live.duration.get().is_some());
}

/// Goal: a shop without a lock fails, for overselling first.
#[tokio::test(flavor = "multi_thread")]
async fn shop_without_a_lock_fails() {
    let shop = Shop::open(Fault::NoLock).await;
    let report = load(&shop, &["--requests", "50", "--concurrency", "50", "--stock", "30"])
        .await
        .expect("the shop is open");
    assert!(!report.pass);
    let kinds: Vec<_> = report.reasons.iter().map(|failure| failure.kind.as_str()).collect();
    assert_eq!(kinds, ["oversold", "unbalanced", "unaccounted"]);
    let text = Table(&report).to_string();
    assert!(text.contains("50 orders were acknowledged for 30 units, 20 too many"), "{text}");
}

/// Goal: answers that are neither yes nor no are counted by their problem type.
#[tokio::test(flavor = "multi_thread")]
async fn odd_answers_are_counted() {
    let shop = Shop::open(Fault::Refuse(2)).await;
    let report = load(&shop, &["--requests", "10", "--concurrency", "2", "--stock", "20"])
        .await
        .expect("the shop is open");
    assert_eq!(report.failures, [("400 bad-item".to_owned(), 2)].into());
    assert!(report.verdict.starts_with("FAIL: failed: 2 orders were"), "{}", report.verdict);
}

/// Goal: the admin token opens a shop that asks for it, and its absence is explained.
#[tokio::test(flavor = "multi_thread")]
async fn admin_token_is_sent() {
    let shop = Shop::open(Fault::AdminToken("let-me-in")).await;
    let flags = ["--requests", "2", "--stock", "2"];
    let error = load(&shop, &flags).await.expect_err("no token was given");
    assert!(error.to_string().contains("is --admin-token-file missing?"), "{error}");

    let directory = tempfile::tempdir().expect("a directory for the token");
    let file = directory.path().join("token");
    std::fs::write(&file, "let-me-in\n").expect("the directory is writable");
    let file = file.to_str().expect("a temporary directory's name is UTF-8");
    let with_token = [&flags[..], &["--admin-token-file", file]].concat();
    assert!(load(&shop, &with_token).await.expect("the token is right").pass);
    let with_token = [&flags[..], &["--admin-token", "let-me-in"]].concat();
    assert!(load(&shop, &with_token).await.expect("the token is right").pass);
    assert!(Args::from_flags(["--admin-token", "", "http://127.0.0.1"]).is_err(), "an empty token");
}

/// Goal: a service that is not ready, away, or has no sale is no run, with the reason.
#[tokio::test(flavor = "multi_thread")]
async fn no_run_without_a_service() {
    let shop = Shop::open(Fault::NotReady).await;
    let error = load(&shop, &["--stock", "2"]).await.expect_err("the shop is not ready");
    assert!(crate::in_full(&error).contains("503 Service Unavailable: no lock"), "{error}");

    let shop = Shop::open(Fault::None).await;
    let error = load(&shop, &["--item", "unheard-of"]).await.expect_err("there is no such sale");
    assert!(error.to_string().contains("start a sale with --stock"), "{error}");

    // bound, so that no other program gets the port, but not listening
    let closed = TcpSocket::new_v4().expect("a socket");
    closed.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let url = format!("http://{}", closed.local_addr().expect("it is bound"));
    let args = Args::from_flags([&url]).expect("a URL");
    let error = run_shown(&args).await.expect_err("nothing listens");
    assert!(crate::in_full(&error).contains(&format!("cannot connect to {url}")), "{error}");
}
