//! A whole run.

use std::convert::Infallible;
use std::fs::File;
use std::future::pending;
use std::io::{Write as _, stderr};
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

use crate::api::Api;
use crate::checker::{History, StockState, u64_from};
use crate::cli::Args;
use crate::endpoint::Endpoint;
use crate::load::{self, Live};
use crate::record::{self, Line, Recorder, Setup};
use crate::report::Report;
use tokio::signal::ctrl_c;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How many times the end is read at most, because an order whose buyer gave up may still be on its way.
const READINGS: u32 = 10;

/// The pause between two readings.
const READING_PAUSE: Duration = Duration::from_millis(300);

/// How soon after its time a hold must end when nobody orders.
const HOLDS_END_WITHIN: Duration = Duration::from_secs(5);

/// How often progress is shown. A shorter run shows none.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Checks that all instances are ready, then does what [`run()`] does, or sends probes, and shows the progress on stderr.
/// Ctrl-C ends the load, and the report tells what happened until then.
///
/// # Errors
/// There was no run to judge.
pub(crate) async fn run_shown(args: &Args) -> Result<Report> {
    let endpoints = resolve(args).await?;
    for endpoint in &endpoints {
        Api::new(endpoint, None, None).ready().await?;
    }
    let live = Arc::<Live>::default();
    tokio::select! {
        ran = run(args, endpoints, &live) => ran.map(|(report, _)| report),
        never = show_progress(&live) => match never {},
        () = interrupted_twice(&live.stop) => bail!("interrupted before the report"),
    }
}

/// Stops the load at the first Ctrl-C, and returns at the second.
async fn interrupted_twice(stop: &CancellationToken) {
    for _ in 0..2 {
        // without signals, it waits for ever
        if ctrl_c().await.is_err() {
            pending::<()>().await;
        }
        if !stop.is_cancelled() {
            say("interrupted: no further order is sent, and the report follows".to_owned());
            stop.cancel();
        }
    }
}

/// Sends the orders and judges the run, or sends probes.
///
/// # Errors
/// There was no run to judge.
pub(crate) async fn run(
    args: &Args,
    endpoints: Vec<Endpoint>,
    live: &Arc<Live>,
) -> Result<(Report, History)> {
    let changing = args.plan.conduct.changing();
    // the sum of the shares may be rounded
    ensure!(changing < 1.000_001, "--pay, --pay-late and --cancel are together more than 1");
    let no_history = || {
        let path = args.history.as_deref().unwrap_or(Path::new(""));
        format!("the run cannot be recorded in {}", path.display())
    };
    let file = args.history.as_deref().map(File::create).transpose().with_context(no_history)?;
    let mut setup = set_up(args, &endpoints);
    if args.probe_path.is_none() {
        let before = prepare(&endpoints[0], args).await?;
        let has_holds = changing == 0.0 || before.hold_seconds.is_some();
        ensure!(has_holds, "the sale has no holds; start one with --stock and --hold");
        setup.before = before;
    }
    let recorder = file.map(Recorder::new);
    if let Some(recorder) = &recorder {
        recorder.write(&Line::Run(Box::new(setup.clone())));
    }
    let load = load::run(args, setup, &endpoints, recorder, live);
    let (mut history, recorder) = load.await.context("no order was sent")?;
    if let Some(path) = &args.probe_path {
        return Ok((Report::of_probes(path, &history), history));
    }
    let read = read_end(args, &endpoints, &mut history).await;
    read.context("the run is over, but it cannot be judged")?;
    let written = recorder.map(|recorder| recorder.finish(&history));
    written.transpose().with_context(no_history)?;
    Ok((Report::new(&history, args.limits), history))
}

async fn show_progress(live: &Live) -> Infallible {
    live.progress();
    loop {
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        say(live.progress());
    }
}

/// Writes a line to standard error on a thread of its own. If nobody reads, the load goes on, and further lines are dropped.
fn say(line: String) {
    static LINES: LazyLock<SyncSender<String>> = LazyLock::new(|| {
        let (sender, lines) = sync_channel(16);
        std::thread::spawn(move || lines.iter().try_for_each(|line| writeln!(stderr(), "{line}")));
        sender
    });
    let _ = LINES.try_send(line);
}

/// Reads states and ledger, until they agree or the readings are used up.
async fn read_end(args: &Args, endpoints: &[Endpoint], history: &mut History) -> Result<()> {
    let mut apis = Vec::new();
    let mut failure = None;
    for endpoint in endpoints {
        let url = endpoint.url.clone();
        let api = Api::new(endpoint, args.plan.item.as_deref(), args.of_shop());
        match api.stock().await {
            Ok(Some(_)) => apis.push((url, api)),
            Ok(None) => history.gone.push(url),
            Err(error) => {
                history.silent.push(url);
                failure = Some(error);
            }
        }
    }
    if apis.is_empty() {
        return failure.filter(|_| history.gone.is_empty()).map_or(Ok(()), Err);
    }
    let before = history.before().entries();
    let is_held = |state: &StockState| state.held.is_some_and(|held| held > 0);
    if apis[0].1.stock().await?.as_ref().is_some_and(is_held) {
        // a change may have made holds longer
        history.ledger = apis[0].1.ledger(before).await?;
    }
    if let Some(hold) = history.awaited_hold() {
        let end = Instant::now() + hold + HOLDS_END_WITHIN;
        while Instant::now() < end && apis[0].1.stock().await?.as_ref().is_some_and(is_held) {
            tokio::time::sleep(READING_PAUSE).await;
        }
    }
    for reading in 1..=READINGS {
        history.ledger = apis[0].1.ledger(before).await?;
        history.after.clear();
        for (url, api) in &apis {
            let state = api.stock().await?;
            history.after.extend(state.map(|state| (url.clone(), state)));
        }
        let recorded = before + u64_from(history.ledger.len());
        let is_settled = history
            .after
            .iter()
            .all(|(_, state)| *state == history.after[0].1 && state.entries() == recorded);
        if is_settled || reading == READINGS {
            break;
        }
        tokio::time::sleep(READING_PAUSE).await;
    }
    Ok(())
}

/// The set-up by the flags. The state before is not known yet.
fn set_up(args: &Args, endpoints: &[Endpoint]) -> Setup {
    Setup {
        format: record::FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        run: uuid::Uuid::new_v4().simple().to_string(),
        started: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
        most_requests: args.requests(),
        bound_seconds: args.duration.map(|duration| duration.as_secs_f64()),
        // one connection for each order, at most
        connections: args.concurrency.min(args.requests()),
        urls: endpoints.iter().map(|endpoint| endpoint.url.clone()).collect(),
        before: StockState::default(),
        plan: args.plan.clone(),
    }
}

/// Looks up the hosts.
///
/// # Errors
/// A host is unknown.
pub(crate) async fn resolve(args: &Args) -> Result<Vec<Endpoint>> {
    let mut endpoints = Vec::new();
    for url in &args.urls {
        let unknown = || format!("the host of {url} cannot be looked up");
        endpoints.push(Endpoint::resolve(url).await.with_context(unknown)?);
    }
    Ok(endpoints)
}

/// Starts the sale if the flags ask for it, and reads the state.
async fn prepare(endpoint: &Endpoint, args: &Args) -> Result<StockState> {
    let api = Api::new(endpoint, args.plan.item.as_deref(), args.of_shop());
    if let Some(stock) = args.stock {
        let hold = args.hold.map(|hold| hold.as_millis().div_ceil(1000));
        // the service's own default is one unit an order
        let sale = json!({
            "stock": stock, "per_order": 1_000_000, "per_user": args.per_user, "hold_seconds": hold,
        });
        let started = api.start_sale(&sale, args.of_admin()).await;
        started.context("the sale cannot be started")?;
    }
    let before = api.stock().await.context("the sale's state cannot be read")?;
    let before = before.context("it is not on sale; start a sale with --stock")?;
    if !args.plan.without_ledger {
        api.has_ledger().await.context("the run could not be judged")?;
    }
    Ok(before)
}
