//! All orders of a run: connections first, then all buyers at once, or at a rate.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use futures_util::{StreamExt, TryStreamExt, stream};
use hdrhistogram::Histogram;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Request};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::api::path_of;
use crate::buyer::{Buyer, pause};
use crate::checker::{Event, FinalOutcome, History, Order};
use crate::cli::Args;
use crate::connection::Connection;
use crate::cpu;
use crate::endpoint::Endpoint;
use crate::record::{Recorder, Setup};
use crate::report::{histogram, latency};
use crate::table::milliseconds;

static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// How many connections are being opened at any time: fewer than any listen backlog holds.
const OPENING_AT_ONCE: usize = 100;

/// After this many orders in a row without an answer a buyer stops, so that a long run against a dead service
/// ends. With a duration, the run has its bound, and buyers go on through outages.
const GIVE_UP_AFTER: u32 = 3;

/// The time limit for the first connection; later ones count as part of an order.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// How long requests under way may take after a run was stopped.
const UNDER_WAY: Duration = Duration::from_secs(5);

/// The buyers of a run share this.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) args: Args,
    pub(crate) setup: Setup,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) live: Arc<Live>,
    started: Instant,
    next: AtomicUsize,
    /// Records each attempt, with `--history`.
    pub(crate) recorder: Option<Recorder>,
    /// Once cancelled, requests under way are given up.
    pub(crate) cut: CancellationToken,
}

impl Run {
    /// A request for an order, or for a change of it, to this endpoint.
    pub(crate) fn request(
        &self,
        to: usize,
        number: usize,
        id: &str,
        change: Option<Event>,
    ) -> Request<Full<Bytes>> {
        let Args { probe_path, plan, user_header, .. } = &self.args;
        let user = self.setup.user(number);
        let in_query = plan.conduct.users.filter(|_| user_header.is_none());
        let in_query = in_query.map(|_| format!("user={user}&")).unwrap_or_default();
        let item = plan.item.as_deref();
        let (method, path) = match (probe_path, change) {
            (Some(path), _) => (Method::GET, path.clone()),
            (None, None | Some(Event::Reserved)) => {
                let query = format!("{in_query}quantity={}", plan.quantity);
                (Method::POST, path_of("/stock/reduce", item, &query))
            }
            (None, Some(event)) => {
                let path = format!("/orders/{id}/{}", event.verb());
                (Method::POST, path_of(&path, item, &in_query))
            }
        };
        let mut request = self.endpoints[to].request(method, &path);
        let value = |text: &str| HeaderValue::from_str(text).expect("ids are visible ASCII");
        request.headers_mut().insert(&IDEMPOTENCY_KEY, value(id));
        if let Some(header) = user_header {
            request.headers_mut().insert(header, value(&user));
        }
        // confirming and returning needs the shop server's token
        if matches!(change, Some(Event::Confirmed | Event::Returned))
            && let Some(token) = self.args.of_shop()
        {
            request.headers_mut().insert(header::AUTHORIZATION, token.clone());
        }
        request
    }

    /// The number of the next order, once it is due. `None` if this buyer, whose last orders were `unanswered`, is done. No
    /// number is left out.
    pub(crate) async fn next(&self, unanswered: u32) -> Option<usize> {
        let (duration, rate) = (self.args.duration, self.args.plan.rate);
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
        if number >= self.setup.most_requests || over.is_some_and(|over| due >= over) {
            return None;
        }
        if rate.is_some() {
            sleep_until(due).await;
        }
        Some(number)
    }

    /// Microseconds since the run's start.
    pub(crate) fn micros(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.started);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

/// The live state of a run, for its caller.
#[derive(Debug, Default)]
pub struct Live {
    /// Orders that were accepted.
    pub acknowledged: AtomicU64,
    /// Orders that were refused because too few units were left.
    pub sold_out: AtomicU64,
    /// Orders that got another answer, or none.
    pub unsettled: AtomicU64,
    /// The latencies since the last call of `progress`; `None` while nobody shows the progress.
    pub recent: Mutex<Option<Histogram<u64>>>,
    /// The time at which the buyers began.
    pub started: OnceLock<SystemTime>,
    /// How long the load took, once the last buyer is done.
    pub duration: OnceLock<Duration>,
    /// Gives the connections to one instance (an index into the URLs) a head start: the others send no order until the token is
    /// cancelled.
    pub head_start: Option<(usize, CancellationToken)>,
    /// Once it is cancelled, no further order is sent, and requests under way have some seconds to end.
    pub stop: CancellationToken,
}

impl Live {
    /// Counts an order that has ended.
    pub(crate) fn count(&self, rate: Option<f64>, number: usize, order: &Order) {
        if order.is_settled()
            && let Some(recent) = &mut *self.recent.lock().unwrap_or_else(PoisonError::into_inner)
        {
            recent.record(latency(rate, number, order)).expect("it grows");
        }
        let counter = match &order.outcome {
            FinalOutcome::Acknowledged(_) => &self.acknowledged,
            FinalOutcome::SoldOut | FinalOutcome::HeldOut => &self.sold_out,
            _ => &self.unsettled,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// How many orders have ended, and the latency since the last call.
    pub(crate) fn progress(&self) -> String {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = recent.replace(histogram()).filter(|recent| !recent.is_empty());
        let at = |recent: &Histogram<u64>, share| milliseconds(recent.value_at_quantile(share));
        let now =
            recent.map(|it| format!("; last second: p50 {}, p99 {}", at(&it, 0.5), at(&it, 0.99)));
        format!("{} orders{}", self.ended(), now.unwrap_or_default())
    }

    /// How many orders have ended.
    pub fn ended(&self) -> u64 {
        let counters = [&self.acknowledged, &self.sold_out, &self.unsettled];
        counters.into_iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }
}

/// Sends the orders over as many connections as planned, spread evenly over the instances. The end of the sale is not read.
///
/// # Errors
/// A connection cannot be opened. Then no order was sent.
pub(crate) async fn run(
    args: &Args,
    setup: Setup,
    endpoints: &[Endpoint],
    recorder: Option<Recorder>,
    live: &Arc<Live>,
) -> Result<(History, Option<Recorder>)> {
    let places = (0..setup.connections).map(|number| number % endpoints.len());
    let connect = |place: usize| async move {
        anyhow::Ok((place, Connection::open(&endpoints[place], CONNECT_LIMIT).await?))
    };
    let connections: Vec<_> =
        stream::iter(places).map(connect).buffer_unordered(OPENING_AT_ONCE).try_collect().await?;

    let release = Arc::new(Barrier::new(connections.len()));
    let mut tasks = JoinSet::new();
    let spent_before = cpu::so_far(&args.processes);
    // set once: a run has one load
    let _ = live.started.set(SystemTime::now());
    let run = Arc::new(Run {
        args: args.clone(),
        setup,
        endpoints: endpoints.to_vec(),
        live: Arc::clone(live),
        started: Instant::now(),
        next: AtomicUsize::new(0),
        recorder,
        cut: CancellationToken::new(),
    });
    let (stop, cut) = (live.stop.clone(), run.cut.clone());
    let _cutting = AbortOnDropHandle::new(tokio::spawn(async move {
        stop.cancelled().await;
        sleep(UNDER_WAY).await;
        cut.cancel();
    }));
    for (home, connection) in connections {
        let (run, release) = (Arc::clone(&run), Arc::clone(&release));
        tasks.spawn(async move {
            release.wait().await;
            if let Some((first, start)) = &run.live.head_start
                && *first != home
            {
                start.cancelled().await;
            }
            Buyer::new(run, home, Some(connection)).purchase().await
        });
    }
    let mut orders = Vec::new();
    while let Some(done) = tasks.join_next().await {
        for (number, order) in done? {
            orders.resize(orders.len().max(number + 1), Order::default());
            orders[number] = order;
        }
    }
    let _ = live.duration.set(run.started.elapsed());
    let cpu_seconds = cpu::cpu_seconds(&args.processes, &spent_before);
    let interrupted = live.stop.is_cancelled();
    let Run { setup, recorder, .. } = Arc::into_inner(run).expect("the buyers are done");
    // orders that were not sent, because all buyers gave up, count as unknown
    if args.duration.is_none() && !interrupted {
        orders.resize(setup.most_requests, Order::default());
    }
    Ok((History { setup, interrupted, orders, cpu_seconds, ..History::default() }, recorder))
}

/// How long after the run's start the order `number` is due.
pub(crate) fn due(rate: f64, number: usize) -> Duration {
    #[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
    Duration::from_secs_f64(number as f64 / rate)
}
