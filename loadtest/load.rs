//! All orders of a run: connections first, then all buyers at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::Barrier;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use crate::buyer::Buyer;
use crate::connection::ConnectionError;
use crate::cpu::Meter;
use crate::history::Told;
use crate::latency::Latencies;
use crate::plan::Plan;
use crate::progress;

/// How many connections are being opened at any time: fewer than any listen backlog holds.
const OPENING_AT_ONCE: usize = 100;

/// After this many orders in a row without an answer a buyer sends no more: a service that is gone
/// must not keep a long run waiting for each order in turn.
const GIVE_UP_AFTER: usize = 3;

/// What came of all orders.
#[derive(Debug)]
pub(crate) struct Load {
    /// By the order's number. One that was not sent since all buyers gave up is unknown as well.
    pub(crate) told: Vec<Told>,
    /// Why attempts settled nothing, and how often.
    pub(crate) unsettled: BTreeMap<String, u64>,
    /// Of the orders that were answered, from the first time they were sent.
    pub(crate) latencies: Latencies,
    /// From the first request to the last answer.
    pub(crate) duration: Duration,
    /// CPU seconds spent in that time, by process.
    pub(crate) cpu_seconds: BTreeMap<String, f64>,
}

/// Why there was no load.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("the connections could not be opened")]
    Connect(#[from] ConnectionError),
    #[error("a buyer's task failed")]
    Task(#[from] JoinError),
}

/// One buyer's orders.
struct Purchases {
    orders: Vec<(usize, Told, Duration)>,
    unsettled: BTreeMap<String, u64>,
    /// First request and last answer; `None` for a buyer for whom no order was left.
    span: Option<(Instant, Instant)>,
}

/// Sends `requests` orders over `connections` connections, spread evenly over the instances.
///
/// # Errors
/// A connection cannot be opened; no order was sent then.
pub(crate) async fn run(
    plan: &Arc<Plan>,
    requests: usize,
    connections: usize,
) -> Result<Load, LoadError> {
    let places = (0..connections).map(|number| number % plan.endpoints.len());
    let buyers: Vec<_> = stream::iter(places)
        .map(|place| Buyer::connect(Arc::clone(plan), place))
        .buffer_unordered(OPENING_AT_ONCE)
        .try_collect()
        .await?;

    let next = Arc::new(AtomicUsize::new(0));
    let settled = Arc::new(AtomicUsize::new(0));
    let release = Arc::new(Barrier::new(connections));
    let _progress = progress::start(requests, &settled);
    let mut tasks = JoinSet::new();
    let spent_before = Meter::read(&plan.processes);
    for buyer in buyers {
        let (next, settled) = (Arc::clone(&next), Arc::clone(&settled));
        let release = Arc::clone(&release);
        tasks.spawn(async move {
            release.wait().await;
            purchase(buyer, requests, &next, &settled).await
        });
    }

    let mut all = Vec::with_capacity(connections);
    while let Some(purchases) = tasks.join_next().await {
        all.push(purchases?);
    }
    let cpu_seconds = Meter::read(&plan.processes).since(&spent_before);
    Ok(Load { cpu_seconds, ..merge(all, requests) })
}

fn merge(all: Vec<Purchases>, requests: usize) -> Load {
    let mut told = vec![Told::Unknown; requests];
    let mut unsettled = BTreeMap::new();
    let mut latencies = Latencies::default();
    let mut whole: Option<(Instant, Instant)> = None;
    for purchases in all {
        for (number, outcome, latency) in purchases.orders {
            if outcome != Told::Unknown {
                latencies.record(latency);
            }
            told[number] = outcome;
        }
        for (why, times) in purchases.unsettled {
            *unsettled.entry(why).or_default() += times;
        }
        whole = match (whole, purchases.span) {
            (Some((first, last)), Some((from, to))) => Some((first.min(from), last.max(to))),
            (one, other) => one.or(other),
        };
    }
    let duration = whole.map_or(Duration::ZERO, |(first, last)| last - first);
    Load { told, unsettled, latencies, duration, cpu_seconds: BTreeMap::new() }
}

/// Takes order numbers until none is left, or the buyer gives up.
async fn purchase(
    mut buyer: Buyer,
    requests: usize,
    next: &AtomicUsize,
    settled: &AtomicUsize,
) -> Purchases {
    let mut orders = Vec::new();
    let mut span: Option<(Instant, Instant)> = None;
    let mut unanswered = 0;
    while unanswered < GIVE_UP_AFTER {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= requests {
            break;
        }
        let sent = Instant::now();
        let told = buyer.buy(number).await;
        let answered = Instant::now();
        settled.fetch_add(1, Ordering::Relaxed);
        unanswered = if told == Told::Unknown { unanswered + 1 } else { 0 };
        orders.push((number, told, answered - sent));
        span = Some((span.map_or(sent, |(first, _)| first), answered));
    }
    Purchases { orders, unsettled: buyer.unsettled, span }
}
