//! All orders of a run: connections first, then all buyers at once, or at a rate.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use futures_util::{StreamExt, TryStreamExt, stream};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, Request};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::buyer::{Buyer, pause};
use crate::checker::{Event, FinalOutcome, Order, Outcome, user_name};
use crate::cli::Args;
use crate::cpu::cpu_seconds;
use crate::endpoint::Endpoint;
use crate::record::{Recorder, Setup};

static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// How many connections are being opened at any time: fewer than any listen backlog holds.
const OPENING_AT_ONCE: usize = 100;

/// After this many orders in a row without an answer a buyer stops, so that a long run against a dead service
/// ends. With a duration, the run has its bound, and buyers go on through outages.
const GIVE_UP_AFTER: u32 = 3;

/// How long what is under way may take once a run was stopped.
const UNDER_WAY: Duration = Duration::from_secs(5);

/// What is sent, and where to.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) args: Args,
    pub(crate) setup: Setup,
    pub(crate) endpoints: Vec<Endpoint>,
}

impl Plan {
    /// A request for an order of an item, or for what becomes of it, to this endpoint.
    pub(crate) fn request(
        &self,
        to: usize,
        (item, number): (usize, usize),
        id: &str,
        change: Option<Event>,
    ) -> Request<Full<Bytes>> {
        let Args { probe_path, quantity, conduct, user_header, .. } = &self.args;
        let user = number.checked_rem(conduct.users.unwrap_or(0));
        let user = user.map(|user| user_name(&self.setup.run, user));
        let in_query = user.as_ref().filter(|_| user_header.is_none());
        let in_query = in_query.map(|user| format!("user={user}&")).unwrap_or_default();
        let query = self.setup.items[item].query() + &in_query;
        let (method, path) = match (probe_path, change) {
            (Some(path), _) => (Method::GET, path.clone()),
            (None, None) => (Method::POST, format!("/stock/reduce?{query}quantity={quantity}")),
            (None, Some(event)) => (Method::POST, format!("/orders/{id}/{}?{query}", event.verb())),
        };
        let mut request = self.endpoints[to].request(method, &path);
        let value = |text: &str| HeaderValue::from_str(text).expect("ids are visible ASCII");
        request.headers_mut().insert(&IDEMPOTENCY_KEY, value(id));
        if let Some((header, user)) = user_header.as_ref().zip(user) {
            request.headers_mut().insert(header, value(&user));
        }
        request
    }

    /// Which item the order `number` of the run is for, and its number among that item's orders.
    pub(crate) fn place(&self, number: usize) -> (usize, usize) {
        let items = self.setup.items.len();
        (number % items, number / items)
    }
}

/// The outcome of all orders.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// By the order's number.
    pub(crate) orders: Vec<Order>,
    /// Attempts without a decision, by reason.
    pub(crate) unsettled: BTreeMap<String, u64>,
    /// CPU seconds spent meanwhile, by process.
    pub(crate) cpu_seconds: BTreeMap<String, f64>,
    /// Whether it was stopped before its end.
    pub(crate) interrupted: bool,
}

/// What the buyers of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    started: Instant,
    /// The number of the next order.
    next: AtomicUsize,
    /// Records each attempt, with `--history`.
    pub(crate) recorder: Option<Recorder>,
    /// Cancelled: nothing new is sent.
    pub(crate) stop: CancellationToken,
    /// Cancelled: what is under way is given up.
    pub(crate) cut: CancellationToken,
    unsettled: Mutex<BTreeMap<String, u64>>,
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
    /// When the buyers came, once they have.
    pub started: OnceLock<SystemTime>,
    /// How long the load took, once the last buyer is done.
    pub duration: OnceLock<Duration>,
    /// At first only the connections to this instance (an index into the URLs) send orders; the others wait
    /// until the token is cancelled.
    pub head_start: Option<(usize, CancellationToken)>,
    /// When it is cancelled, no further order is sent, and what is under way has some seconds.
    pub stop: CancellationToken,
}

impl Live {
    /// Counts an order that has ended.
    fn count(&self, outcome: &FinalOutcome) {
        let counter = match outcome {
            FinalOutcome::Acknowledged(_) => &self.acknowledged,
            FinalOutcome::SoldOut => &self.sold_out,
            _ => &self.unsettled,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// How many orders have ended.
    pub(crate) fn ended(&self) -> u64 {
        let counters = [&self.acknowledged, &self.sold_out, &self.unsettled];
        counters.into_iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }
}

/// Sends the orders over the planned connections, spread evenly over the instances.
///
/// # Errors
/// A connection cannot be opened, and no order was sent then; or an attempt cannot be recorded.
pub(crate) async fn run(
    plan: &Arc<Plan>,
    recorder: Option<Recorder>,
    live: &Arc<Live>,
) -> Result<Load> {
    let connections = plan.setup.connections;
    let places = (0..connections).map(|number| number % plan.endpoints.len());
    let buyers: Vec<_> = stream::iter(places)
        .map(|place| Buyer::connect(Arc::clone(plan), place))
        .buffer_unordered(OPENING_AT_ONCE)
        .try_collect()
        .await?;

    let release = Arc::new(Barrier::new(connections));
    let mut tasks = JoinSet::new();
    let processes = &plan.args.processes;
    let spent_before = cpu_seconds(processes, &BTreeMap::new());
    let started = Instant::now();
    // set once: a run has one load
    let _ = live.started.set(SystemTime::now());
    let (next, unsettled) = (AtomicUsize::new(0), Mutex::default());
    let (stop, cut) = (live.stop.clone(), CancellationToken::new());
    let shared = Arc::new(Shared { started, next, recorder, stop, cut, unsettled });
    let late = Arc::clone(&shared);
    let _cutting = AbortOnDropHandle::new(tokio::spawn(async move {
        late.stop.cancelled().await;
        sleep(UNDER_WAY).await;
        late.cut.cancel();
    }));
    for buyer in buyers {
        let (plan, shared, live) = (Arc::clone(plan), Arc::clone(&shared), Arc::clone(live));
        let release = Arc::clone(&release);
        tasks.spawn(async move {
            release.wait().await;
            if let Some((first, start)) = &live.head_start
                && *first != buyer.home
            {
                start.cancelled().await;
            }
            purchase(buyer, &plan, shared, &live).await
        });
    }
    let mut all = Vec::with_capacity(connections);
    while let Some(orders) = tasks.join_next().await {
        all.push(orders??);
    }
    let _ = live.duration.set(started.elapsed());
    let cpu_seconds = cpu_seconds(processes, &spent_before);
    let interrupted = live.stop.is_cancelled();
    // orders that were not sent, since all buyers gave up, are unknown
    let is_bounded = plan.args.duration.is_some() || interrupted;
    let mut orders = vec![Order::default(); if is_bounded { 0 } else { plan.setup.requests }];
    for (number, order) in all.into_iter().flatten() {
        if number >= orders.len() {
            orders.resize(number + 1, Order::default());
        }
        orders[number] = order;
    }
    let mut unsettled = shared.unsettled.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Load { orders, unsettled: std::mem::take(&mut *unsettled), cpu_seconds, interrupted })
}

/// Takes orders until none is left, or the buyer gives up. Returns them with their numbers. Who pays late meanwhile lets
/// others order.
async fn purchase(
    mut buyer: Buyer,
    plan: &Plan,
    shared: Arc<Shared>,
    live: &Live,
) -> Result<Vec<(usize, Order)>> {
    let mut orders = Vec::new();
    let mut later: JoinSet<Result<(usize, Order)>> = JoinSet::new();
    // orders in a row without an answer
    let mut unanswered: u32 = 0;
    while let Some(Some(number)) =
        shared.stop.run_until_cancelled(shared.next(plan, unanswered)).await
    {
        let mut order = buyer.buy(number, &shared).await?;
        live.count(&order.outcome);
        let answered = order.is_settled() || order.abandoned;
        unanswered = if answered { 0 } else { unanswered.saturating_add(1) };
        let hold = plan.setup.items[plan.place(number).0].before.hold_seconds;
        let hold = hold.filter(|_| order.answer().is_some()).map(Duration::from_secs);
        let steps = hold.map(|hold| plan.args.conduct.steps(plan.setup.seed, number, hold));
        match steps.unwrap_or_default() {
            steps if steps.first().is_some_and(|first| !first.wait.is_zero()) => {
                let (mut buyer, shared) = (buyer.another(), Arc::clone(&shared));
                later.spawn(async move {
                    buyer.settle(number, &mut order, &steps, &shared).await?;
                    Ok((number, order))
                });
            }
            steps => {
                buyer.settle(number, &mut order, &steps, &shared).await?;
                orders.push((number, order));
            }
        }
    }
    while let Some(order) = later.join_next().await {
        orders.push(order??);
    }
    Ok(orders)
}

/// How long after the run's start the order `number` is due.
pub(crate) fn due(rate: f64, number: usize) -> Duration {
    #[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
    Duration::from_secs_f64(number as f64 / rate)
}

impl Shared {
    /// The number of the next order, once it is due; `None` if the buyer, whose last orders were `unanswered`, is
    /// done. There are no gaps.
    async fn next(&self, plan: &Plan, unanswered: u32) -> Option<usize> {
        let Args { duration, rate, .. } = plan.args;
        if unanswered > 0 && duration.is_some() {
            sleep(pause(unanswered - 1)).await;
        } else if unanswered >= GIVE_UP_AFTER {
            return None;
        }
        let over = duration.map(|duration| self.started + duration);
        if over.is_some_and(|over| Instant::now() >= over) {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // counted from the start, so that delays do not add up
        let due = self.started + rate.map_or(Duration::ZERO, |rate| due(rate, number));
        if number >= plan.setup.requests || over.is_some_and(|over| due >= over) {
            return None;
        }
        if rate.is_some() {
            sleep_until(due).await;
        }
        Some(number)
    }

    /// Counts an attempt that settled nothing.
    pub(crate) fn note(&self, outcome: &Outcome) {
        if let Some(why) = outcome.unsettled() {
            let mut unsettled = self.unsettled.lock().unwrap_or_else(PoisonError::into_inner);
            *unsettled.entry(why).or_default() += 1;
        }
    }

    /// Microseconds since the run's start.
    pub(crate) fn micros(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.started);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}
