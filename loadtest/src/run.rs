//! A whole run.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use hyper::StatusCode;
use hyper::header::HeaderValue;

use crate::api::ApiError;
use crate::checker::{History, Limits, StockState, judge};
use crate::cli::{Args, bearer};
use crate::end::{Reading, end};
use crate::endpoint::Endpoint;
use crate::load::{self, Live, Load, LoadError};
use crate::plan::{Plan, PlannedItem};
use crate::progress;
use crate::record::{self, ItemLine, Recorder, RunLine, Writer};
use crate::report::{Asked, Judged, Report};

/// Why there was nothing to judge.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("the admin token in {} cannot be read", .path.display())]
    TokenFile { path: PathBuf, source: std::io::Error },
    #[error("the admin token in {} is not one line of visible characters", .path.display())]
    Token { path: PathBuf },
    #[error("the host of {url} cannot be looked up")]
    Resolve { url: String, source: std::io::Error },
    #[error("an instance is not ready")]
    NotReady(#[source] ApiError),
    #[error("the sale cannot be started; is --admin-token-file missing?")]
    Forbidden(#[source] ApiError),
    #[error("the sale cannot be started")]
    Start(#[source] ApiError),
    #[error("the sale's state cannot be read; start a sale with --stock")]
    NoSale(#[source] ApiError),
    #[error("the sale's state cannot be read")]
    State(#[source] ApiError),
    #[error(
        "the stock reads {found} right after the sale was started with {asked}: another client buys; \
         run again without it"
    )]
    NotAlone { asked: u64, found: i64 },
    #[error("no order was sent")]
    Load(#[from] LoadError),
    #[error("the run is over, but it cannot be judged")]
    Judge(#[source] ApiError),
    #[error("the run cannot be recorded in {}", .path.display())]
    History { path: PathBuf, source: std::io::Error },
}

/// Checks that all instances are ready, and does what [`run()`] does, with the progress on stderr.
///
/// # Errors
/// There is nothing to judge: see [`RunError`].
pub(crate) async fn run_shown(args: &Args) -> Result<Report, RunError> {
    let plan = plan(args).await?;
    ready(&plan).await?;
    let live = Arc::default();
    let _progress = progress::start(&plan, &live);
    run(args, &plan, &live).await
}

/// Sends the orders and judges what became of them.
///
/// # Errors
/// There is nothing to judge: see [`RunError`].
pub(crate) async fn run(
    args: &Args,
    plan: &Arc<Plan>,
    live: &Arc<Live>,
) -> Result<Report, RunError> {
    let token = admin_token(args)?;
    let history_error = |source| {
        let path = args.history.clone().unwrap_or_default();
        RunError::History { path, source }
    };
    let file = args.history.as_deref().map(File::create).transpose().map_err(history_error)?;
    let mut before = Vec::new();
    for item in &plan.items {
        before.push(prepare(plan, item, args.stock, token.as_ref()).await?);
    }
    // no connection without an order
    let connections = args.concurrency.min(plan.requests);
    let recording = file.map(|file| Writer::start(file, run_line(plan, connections, &before)));
    let (writer, recorder) = recording.transpose().map_err(history_error)?.unzip();
    let ran = sell(plan, connections, before, recorder, live).await;
    // also after a failure: the record helps to find its cause
    if let Some(writer) = writer {
        let histories = ran.as_ref().ok().map(|(_, ends)| ends.iter().map(|end| &end.history));
        let histories: Option<Vec<_>> = histories.map(Iterator::collect);
        writer.finish(histories.as_deref()).map_err(history_error)?;
    }
    let (load, ends) = ran?;
    let limits = Limits { pause: args.longest_pause, order: args.longest_order };
    let mut judged = Vec::new();
    for (item, End { history, silent }) in plan.items.iter().zip(ends) {
        let mut verdict = judge(&history, limits);
        verdict.notes.extend(silent);
        judged.push(Judged { item: item.name.clone(), history, verdict });
    }
    let urls = args.urls.iter().map(ToString::to_string).collect();
    let asked = Asked { urls, quantity: args.quantity, connections, seed: plan.abandon.seed };
    Ok(Report::new(asked, judged, load))
}

/// The outcome for one item.
struct End {
    history: History,
    /// One note for each instance that no longer answers.
    silent: Vec<String>,
}

/// Sends the orders, and reads states and ledgers after them. The orders are in the histories.
async fn sell(
    plan: &Arc<Plan>,
    connections: usize,
    before: Vec<StockState>,
    recorder: Option<Recorder>,
    live: &Arc<Live>,
) -> Result<(Load, Vec<End>), RunError> {
    let mut load = load::run(plan, connections, recorder, live).await?;
    let mut orders: Vec<_> = plan.items.iter().map(|_| Vec::new()).collect();
    for (number, order) in std::mem::take(&mut load.orders).into_iter().enumerate() {
        orders[plan.place(number).0].push(order);
    }
    let mut ends = Vec::new();
    for ((item, before), orders) in plan.items.iter().zip(before).zip(orders) {
        let Reading { after, gone, ledger, silent } =
            end(plan, item, before.orders).await.map_err(RunError::Judge)?;
        let history = History {
            run: item.run.clone(),
            family: plan.run.clone(),
            alone: plan.alone,
            tokens: plan.tokens,
            quantity: plan.quantity,
            before,
            orders,
            ledger,
            after,
            gone,
        };
        ends.push(End { history, silent });
    }
    Ok((load, ends))
}

/// The first line of the record.
fn run_line(plan: &Plan, connections: usize, before: &[StockState]) -> RunLine {
    let items = plan.items.iter().zip(before);
    RunLine {
        version: record::VERSION,
        run: plan.run.clone(),
        started: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
        requests: plan.requests,
        seconds: plan.duration.map(|duration| duration.as_secs_f64()),
        connections,
        rate: plan.rate,
        abandon: plan.abandon.share,
        seed: plan.abandon.seed,
        quantity: plan.quantity,
        alone: plan.alone,
        tokens: plan.tokens,
        instances: plan.endpoints.iter().map(|endpoint| endpoint.url.to_string()).collect(),
        items: items
            .map(|(item, before)| ItemLine {
                name: item.name.clone(),
                run: item.run.clone(),
                before: before.clone(),
            })
            .collect(),
    }
}

/// Sends probes instead of orders.
///
/// # Errors
/// They cannot be sent: see [`RunError`].
pub(crate) async fn probe(args: &Args) -> Result<Report, RunError> {
    let plan = plan(args).await?;
    ready(&plan).await?;
    let connections = args.concurrency.min(plan.requests);
    let live = Arc::default();
    let _progress = progress::start(&plan, &live);
    let load = load::run(&plan, connections, None, &live).await?;
    Ok(Report::of_probes(plan.probe.clone().unwrap_or_default(), connections, load))
}

pub(crate) async fn plan(args: &Args) -> Result<Arc<Plan>, RunError> {
    let mut endpoints = Vec::new();
    for url in &args.urls {
        let resolved = Endpoint::resolve(url.clone()).await;
        endpoints
            .push(resolved.map_err(|source| RunError::Resolve { url: url.to_string(), source })?);
    }
    Ok(Arc::new(Plan::new(args, endpoints)))
}

fn admin_token(args: &Args) -> Result<Option<HeaderValue>, RunError> {
    let Some(path) = &args.admin_token_file else { return Ok(args.admin_token.clone()) };
    let text = std::fs::read_to_string(path)
        .map_err(|source| RunError::TokenFile { path: path.clone(), source })?;
    bearer(&text).map(Some).map_err(|_| RunError::Token { path: path.clone() })
}

/// Checks that all instances are ready.
async fn ready(plan: &Plan) -> Result<(), RunError> {
    for endpoint in &plan.endpoints {
        plan.items[0].api(endpoint).ready().await.map_err(RunError::NotReady)?;
    }
    Ok(())
}

/// Starts the sale of an item if asked to, and reads its state.
async fn prepare(
    plan: &Plan,
    item: &PlannedItem,
    stock: Option<u64>,
    token: Option<&HeaderValue>,
) -> Result<StockState, RunError> {
    let mut first = item.api(&plan.endpoints[0]);
    if let Some(units) = stock {
        first.start_sale(units, token).await.map_err(|error| match error {
            ApiError::Refused {
                status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, ..
            } => RunError::Forbidden(error),
            error => RunError::Start(error),
        })?;
    }
    let before = first.stock().await.map_err(|error| match error {
        ApiError::Refused { status: StatusCode::NOT_FOUND, .. } => RunError::NoSale(error),
        error => RunError::State(error),
    })?;
    match stock {
        Some(asked) if i64::try_from(asked) != Ok(before.stock) => {
            Err(RunError::NotAlone { asked, found: before.stock })
        }
        _ => Ok(before),
    }
}
