//! All orders of a run: connections first, then all buyers at once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::Barrier;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::buyer::{Buyer, Witness};
use crate::checker::{FinalOutcome, Order};
use crate::connection::ConnectionError;
use crate::cpu::Meter;
use crate::latency::Latencies;
use crate::pace::{Pace, Patience, due};
use crate::plan::Plan;
use crate::record::{Recorder, RecorderGone};

/// How many connections are being opened at any time: fewer than any listen backlog holds.
const OPENING_AT_ONCE: usize = 100;

/// The outcome of all orders.
#[derive(Debug)]
pub(crate) struct Load {
    /// By the order's number.
    pub(crate) orders: Vec<Order>,
    /// Attempts without a decision, by reason.
    pub(crate) unsettled: BTreeMap<String, u64>,
    /// Of the orders that were answered, from the first time they were sent.
    pub(crate) latencies: Latencies,
    /// From the first request to the last answer.
    pub(crate) duration: Duration,
    /// CPU seconds spent in that time, by process.
    pub(crate) cpu_seconds: BTreeMap<String, f64>,
}

/// The live state of a run, for its caller.
#[derive(Debug, Default)]
pub struct Live {
    /// Orders that were accepted.
    pub acknowledged: AtomicU64,
    /// Orders that were refused because too few units were left.
    pub sold_out: AtomicU64,
    /// Orders that ended otherwise, or without an answer.
    pub unsettled: AtomicU64,
    /// How long the load took, once the last buyer is done.
    pub duration: OnceLock<Duration>,
    /// At first only the connections to this instance (an index into the URLs) send orders; the others wait
    /// until the token is cancelled.
    pub head_start: Option<(usize, CancellationToken)>,
}

impl Live {
    /// Counts an order that has ended.
    fn count(&self, outcome: &FinalOutcome) {
        let counter = match outcome {
            FinalOutcome::Acknowledged(_) | FinalOutcome::Probed => &self.acknowledged,
            FinalOutcome::SoldOut => &self.sold_out,
            FinalOutcome::Unknown | FinalOutcome::Failed { .. } => &self.unsettled,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// How many orders have ended.
    pub(crate) fn ended(&self) -> u64 {
        let counters = [&self.acknowledged, &self.sold_out, &self.unsettled];
        counters.into_iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }

    async fn wait_for_turn(&self, place: usize) {
        if let Some((first, start)) = &self.head_start
            && *first != place
        {
            start.cancelled().await;
        }
    }
}

/// Why there was no load.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("the connections could not be opened")]
    Connect(#[from] ConnectionError),
    #[error("a buyer's task failed")]
    Task(#[from] JoinError),
    #[error(transparent)]
    Recorder(#[from] RecorderGone),
}

/// One buyer's orders.
struct Purchases {
    orders: Vec<(usize, Order)>,
    unsettled: BTreeMap<String, u64>,
}

/// Sends the orders over `connections` connections, spread evenly over the instances.
///
/// # Errors
/// A connection cannot be opened, and no order was sent then; or an attempt cannot be recorded.
pub(crate) async fn run(
    plan: &Arc<Plan>,
    connections: usize,
    recorder: Option<Recorder>,
    live: &Arc<Live>,
) -> Result<Load, LoadError> {
    let places = (0..connections).map(|number| number % plan.endpoints.len());
    let buyers: Vec<_> = stream::iter(places)
        .map(|place| Buyer::connect(Arc::clone(plan), place))
        .buffer_unordered(OPENING_AT_ONCE)
        .try_collect()
        .await?;

    let release = Arc::new(Barrier::new(connections));
    let mut tasks = JoinSet::new();
    let spent_before = Meter::read(&plan.processes);
    let started = Instant::now();
    let pace = Arc::new(Pace::new(started));
    let witness = Witness { started, recorder };
    for buyer in buyers {
        let (plan, pace, live) = (Arc::clone(plan), Arc::clone(&pace), Arc::clone(live));
        let (witness, release) = (witness.clone(), Arc::clone(&release));
        tasks.spawn(async move {
            release.wait().await;
            live.wait_for_turn(buyer.home).await;
            purchase(buyer, &plan, &pace, &witness, &live).await
        });
    }

    let mut all = Vec::with_capacity(connections);
    while let Some(purchases) = tasks.join_next().await {
        all.push(purchases??);
    }
    // set once: a run has one load
    let _ = live.duration.set(started.elapsed());
    let cpu_seconds = Meter::read(&plan.processes).since(&spent_before);
    let mut unsettled = BTreeMap::new();
    // orders that were not sent, since all buyers gave up, are unknown
    let planned = if plan.duration.is_some() { 0 } else { plan.requests };
    let mut orders = vec![Order::unsent(); planned];
    for purchases in all {
        for (number, order) in purchases.orders {
            if number >= orders.len() {
                orders.resize(number + 1, Order::unsent());
            }
            orders[number] = order;
        }
        for (why, times) in purchases.unsettled {
            *unsettled.entry(why).or_default() += times;
        }
    }
    let load = Load::of(orders.iter().enumerate(), plan.rate, unsettled);
    Ok(Load { orders, cpu_seconds, ..load })
}

impl Load {
    /// The figures of `orders`, with their numbers in the run, without keeping them.
    ///
    /// At a rate, the latency of an order that was sent begins when it was due, also if all connections were busy
    /// then: else a service that stalls would hide most of the orders that wait for it. Tene, "How not to measure
    /// latency" (2013), calls that coordinated omission.
    pub(crate) fn of<'o>(
        orders: impl IntoIterator<Item = (usize, &'o Order)>,
        rate: Option<f64>,
        unsettled: BTreeMap<String, u64>,
    ) -> Self {
        let mut latencies = Latencies::default();
        let mut span: Option<(u64, u64)> = None;
        for (number, order) in orders.into_iter().filter(|(_, order)| order.attempts > 0) {
            let (sent, ended) = (order.sent, order.ended);
            if order.outcome != FinalOutcome::Unknown {
                let sent = Duration::from_micros(sent);
                let since = rate.map_or(sent, |rate| due(rate, number).min(sent));
                latencies.record(Duration::from_micros(ended).saturating_sub(since));
            }
            let (first, last) = span.unwrap_or((sent, ended));
            span = Some((first.min(sent), last.max(ended)));
        }
        let duration =
            span.map_or(Duration::ZERO, |(first, last)| Duration::from_micros(last - first));
        Self { orders: Vec::new(), unsettled, latencies, duration, cpu_seconds: BTreeMap::new() }
    }
}

/// Takes orders until none is left, or the buyer gives up.
async fn purchase(
    mut buyer: Buyer,
    plan: &Plan,
    pace: &Pace,
    witness: &Witness,
    live: &Live,
) -> Result<Purchases, RecorderGone> {
    let mut orders = Vec::new();
    let mut patience = Patience::default();
    while let Some(number) = pace.next(plan, &patience).await {
        let order = buyer.buy(number, witness).await?;
        live.count(&order.outcome);
        patience.note(order.is_settled() || order.abandoned);
        orders.push((number, order));
    }
    Ok(Purchases { orders, unsettled: buyer.unsettled })
}
