//! A whole run.

use std::convert::Infallible;
use std::fs::File;
use std::future::pending;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Error, Result, bail, ensure};
use hyper::header::HeaderValue;

use crate::api::{Api, NewSale};
use crate::checker::{History, StockState, u64_from};
use crate::cli::{Args, bearer};
use crate::endpoint::Endpoint;
use crate::load::{self, Live, Load, Plan};
use crate::record::{self, Item, Recorder, Setup, Writer};
use crate::report::Report;
use tokio::signal::ctrl_c;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often the end is read at most: an order whose buyer gave up may still be on its way.
const READINGS: u32 = 10;

/// The pause between two readings.
const READING_PAUSE: Duration = Duration::from_millis(300);

/// How soon after its time a hold must have ended, though nobody orders.
const HOLDS_END_WITHIN: Duration = Duration::from_secs(5);

const NO_LOAD: &str = "no order was sent";

/// How often progress is shown. A shorter run shows none.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Checks that all instances are ready, and does what [`run()`] does, or sends probes, with the progress on stderr. Ctrl-C
/// ends the load; the report tells what was until then.
///
/// # Errors
/// There is nothing to judge.
pub(crate) async fn run_shown(args: &Args) -> Result<Report> {
    let endpoints = resolve(args).await?;
    for endpoint in &endpoints {
        Api::new(endpoint, None).ready().await.context("an instance is not ready")?;
    }
    let live = Arc::<Live>::default();
    let run = async {
        match &args.probe_path {
            Some(path) => probe(args, path, endpoints, &live).await,
            None => run(args, endpoints, &live).await.map(|(report, _)| report),
        }
    };
    tokio::select! {
        report = run => report,
        never = show_progress(&live) => match never {},
        () = interrupted_twice(&live.stop) => bail!("interrupted before the report"),
    }
}

/// Stops the load at the first Ctrl-C, and returns at the second.
async fn interrupted_twice(stop: &CancellationToken) {
    // without signals it never is
    let interrupted = async || {
        if ctrl_c().await.is_err() {
            pending::<()>().await;
        }
    };
    interrupted().await;
    eprintln!("interrupted: no further order is sent, and the report follows");
    stop.cancel();
    interrupted().await;
}

/// Sends the orders and judges what became of them.
///
/// # Errors
/// There is nothing to judge.
pub(crate) async fn run(
    args: &Args,
    endpoints: Vec<Endpoint>,
    live: &Arc<Live>,
) -> Result<(Report, Vec<History>)> {
    let token = admin_token(args)?;
    let changing = args.conduct.changing();
    // their sum may be rounded
    ensure!(changing < 1.000_001, "--pay, --pay-late and --cancel are together more than 1");
    let no_history = || {
        let path = args.history.as_deref().unwrap_or(Path::new(""));
        format!("the run cannot be recorded in {}", path.display())
    };
    let file = args.history.as_deref().map(File::create).transpose().with_context(no_history)?;
    let mut setup = set_up(args, &endpoints);
    for item in &mut setup.items {
        let api = Api::new(&endpoints[0], item.name.as_deref());
        item.before = prepare(api, args, token.as_ref()).await?;
        let has_holds = changing == 0.0 || item.before.hold_seconds.is_some();
        ensure!(has_holds, "the sale has no holds; start one with --stock and --hold");
    }
    let recording = file.map(|file| Writer::start(file, &setup)).transpose();
    let (writer, recorder) = recording.with_context(no_history)?.unzip();
    let plan = Arc::new(Plan { args: args.clone(), setup, endpoints });
    let ran = sell(&plan, recorder, live).await;
    // also after a failure: the record helps to find its cause
    if let Some(writer) = writer {
        let histories = ran.as_ref().ok().map(|(_, histories)| &histories[..]);
        writer.finish(histories).with_context(no_history)?;
    }
    let (load, histories) = ran?;
    Ok((Report::new(&plan.setup, &histories, args.limits, load), histories))
}

/// Sends probes instead of orders.
async fn probe(
    args: &Args,
    path: &str,
    endpoints: Vec<Endpoint>,
    live: &Arc<Live>,
) -> Result<Report> {
    let setup = set_up(args, &endpoints);
    let plan = Arc::new(Plan { args: args.clone(), setup, endpoints });
    let load = load::run(&plan, None, live).await.context(NO_LOAD)?;
    Ok(Report::of_probes(path, &plan.setup, load))
}

/// Shows on stderr how many orders have ended.
async fn show_progress(live: &Live) -> Infallible {
    loop {
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        eprintln!("{} orders", live.ended());
    }
}

/// Sends the orders, and reads states and ledgers after them. The orders are in the histories, by item.
async fn sell(
    plan: &Arc<Plan>,
    recorder: Option<Recorder>,
    live: &Arc<Live>,
) -> Result<(Load, Vec<History>)> {
    let mut load = load::run(plan, recorder, live).await.context(NO_LOAD)?;
    let mut histories = plan.setup.histories();
    for (number, order) in std::mem::take(&mut load.orders).into_iter().enumerate() {
        histories[plan.place(number).0].orders.push(order);
    }
    for (item, history) in plan.setup.items.iter().zip(&mut histories) {
        history.interrupted = load.interrupted;
        let read = read_end(plan, item, history).await;
        read.context("the run is over, but it cannot be judged")?;
    }
    Ok((load, histories))
}

/// Reads states and ledger until they agree, or the readings are used up.
async fn read_end(plan: &Plan, item: &Item, history: &mut History) -> Result<()> {
    let mut apis = Vec::new();
    let mut failure = None;
    for endpoint in &plan.endpoints {
        let url = endpoint.url.to_string();
        let mut api = Api::new(endpoint, item.name.as_deref());
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
    if let Some(hold) = history.awaited_hold() {
        let end = Instant::now() + hold + HOLDS_END_WITHIN;
        let is_held = |state: &StockState| state.held.is_some_and(|held| held > 0);
        while Instant::now() < end && apis[0].1.stock().await?.as_ref().is_some_and(is_held) {
            tokio::time::sleep(READING_PAUSE).await;
        }
    }
    let before = history.before.entries();
    for reading in 1..=READINGS {
        history.ledger = apis[0].1.ledger(before).await?;
        history.after.clear();
        for (url, api) in &mut apis {
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

/// What the flags ask for. The state before is not known yet.
fn set_up(args: &Args, endpoints: &[Endpoint]) -> Setup {
    let run = uuid::Uuid::new_v4().simple().to_string();
    let before = StockState::default();
    let item = |name, run| Item { name, run, before: before.clone() };
    let items = match args.items {
        None => vec![item(args.item.clone(), run.clone())],
        Some(n) => (1..=n).map(|n| item(Some(format!("item-{n}")), format!("{run}-{n}"))).collect(),
    };
    Setup {
        version: record::VERSION,
        run,
        started: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
        requests: args.requests(),
        seconds: args.duration.map(|duration| duration.as_secs_f64()),
        // none without an order
        connections: args.concurrency.min(args.requests()),
        rate: args.rate,
        abandon: args.abandon,
        seed: args.seed.unwrap_or_else(crate::any_seed),
        quantity: args.quantity,
        alone: args.alone,
        tokens: args.tokens,
        conduct: args.conduct,
        instances: endpoints.iter().map(|endpoint| endpoint.url.to_string()).collect(),
        items,
    }
}

/// Looks up the hosts.
///
/// # Errors
/// One is not known.
pub(crate) async fn resolve(args: &Args) -> Result<Vec<Endpoint>> {
    let mut endpoints = Vec::new();
    for url in &args.urls {
        let unknown = || format!("the host of {url} cannot be looked up");
        endpoints.push(Endpoint::resolve(url.clone()).await.with_context(unknown)?);
    }
    Ok(endpoints)
}

fn admin_token(args: &Args) -> Result<Option<HeaderValue>> {
    let Some(path) = &args.admin_token_file else { return Ok(args.admin_token.clone()) };
    let what = || format!("the admin token in {} cannot be read", path.display());
    let text = std::fs::read_to_string(path).with_context(what)?;
    bearer(&text).map(Some).map_err(Error::msg).with_context(what)
}

/// Starts the sale of an item if asked to, and reads its state.
async fn prepare(mut api: Api<'_>, args: &Args, token: Option<&HeaderValue>) -> Result<StockState> {
    if let Some(stock) = args.stock {
        let hold_seconds = args.hold.map(|hold| hold.as_millis().div_ceil(1000));
        let per_user = args.per_user;
        let sale = NewSale { stock, per_order: 1_000_000, per_user, hold_seconds };
        let started = api.start_sale(&sale, token).await;
        started.context("the sale cannot be started; is --admin-token-file missing?")?;
    }
    let before = api.stock().await.context("the sale's state cannot be read")?;
    before.context("it is not on sale; start a sale with --stock")
}
