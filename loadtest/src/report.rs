//! The report on a run: with `--json` the one object on stdout.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::checker::message::Message;
use crate::checker::{FinalOutcome, History, Pause, Tally, Verdict, u64_from};
pub use crate::checker::{StockState, Turns};
pub use crate::latency::Percentiles;
use crate::load::Load;

/// How the refusal of an old token is counted.
const STALE_TOKEN: &str = "503 stale-token";

/// The report on a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Whether the run passed.
    pub pass: bool,
    /// The verdict in words.
    pub verdict: String,
    /// The failures, the most important first.
    pub reasons: Vec<Failure>,
    /// Those of them that violate an invariant of the sale.
    pub violations: Vec<Violation>,
    /// Remarks that are no failure.
    pub notes: Vec<String>,
    /// The instances that the orders were sent to.
    pub urls: Vec<String>,
    /// The ordered item; null for the default item, and for several.
    pub item: Option<String>,
    /// The number of items.
    pub items: usize,
    /// The units of each order.
    pub quantity: u64,
    /// The prefix of the order ids (of several items: of the first).
    pub run: String,
    /// The orders that were sent.
    pub requests: usize,
    /// The connections that they were sent over.
    pub connections: usize,
    /// The seed that decided which clients went away.
    pub seed: u64,
    /// Accepted orders.
    pub acknowledged: u64,
    /// The units of accepted orders.
    pub acknowledged_units: u64,
    /// The path of probes.
    pub probe_path: Option<String>,
    /// Probes that got a 2xx.
    pub answered: u64,
    /// Orders that were refused because too few units were left.
    pub sold_out: u64,
    /// Orders without a definite answer.
    pub unknown: u64,
    /// Orders that were answered with an error.
    pub failed: u64,
    /// Of `unknown`: orders whose client went away for good, on purpose.
    pub abandoned: u64,
    /// Orders with an attempt of unknown effect that a retry decided.
    pub resolved: u64,
    /// Orders that were accepted and are not in the ledger.
    pub lost: u64,
    /// How often orders were sent, retries included.
    pub attempts: u64,
    /// Attempts that were refused because the instance had lost the lock unnoticed.
    pub stale_tokens: u64,
    /// Settled orders by HTTP status.
    pub answers_by_status: BTreeMap<u16, u64>,
    /// Failed orders by status and problem type.
    pub failures: BTreeMap<String, u64>,
    /// Attempts without a decision, by reason; each was retried while retries and time were left.
    pub unsettled_attempts: BTreeMap<String, u64>,
    /// The accepted orders of each instance, by its name.
    pub instances: BTreeMap<String, Share>,
    /// How often the ledger goes from one instance or token to another.
    pub turns: Turns,
    /// The longest time in which orders were tried and none was decided (of several items: the longest of
    /// all).
    pub longest_pause_seconds: f64,
    /// When that pause began, counted from the run's start.
    pub longest_pause_at_seconds: f64,
    /// The longest time that one order was tried: from its first sending until it was settled, or else to
    /// the end of its last attempt (of several items: the longest of all).
    pub slowest_order_seconds: f64,
    /// From the first request to the last answer.
    pub duration_seconds: f64,
    /// Settled orders a second.
    pub answers_per_second: f64,
    /// Of settled orders, from first sending to answer, retries included; at a rate from when they were due. Null if
    /// there were none.
    pub latency_microseconds: Option<Percentiles>,
    /// CPU time of user and kernel during the load, by process: `loadtest` and what `--process` names.
    pub cpu_seconds: BTreeMap<String, f64>,
    /// The stock before; several items are added up.
    pub before: StockState,
    /// The stock after, by URL; several items are added up.
    pub after: BTreeMap<String, StockState>,
    /// Orders that the ledger gained.
    pub ledger_orders: usize,
}

/// A reason for not passing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// A stable name.
    pub kind: String,
    /// The same in words.
    pub text: String,
}

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// `I1` to `I6`, as the module `checker` describes them, or another name.
    pub invariant: String,
    /// What violates it.
    pub sentence: String,
}

impl Violation {
    /// `invariant` is `I1` to `I6`, or another name.
    pub fn new(invariant: &str, sentence: impl Into<String>) -> Self {
        Self { invariant: invariant.to_owned(), sentence: sentence.into() }
    }
}

/// What one instance did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Share {
    /// Accepted orders.
    pub acknowledged: u64,
    /// Their share of all, 0 to 1.
    pub share: f64,
}

/// The request for a run.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) urls: Vec<String>,
    pub(crate) quantity: u64,
    pub(crate) connections: usize,
    pub(crate) seed: u64,
}

/// One item of a run.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    /// `None` is the default item.
    pub(crate) item: Option<String>,
    pub(crate) history: History,
    pub(crate) verdict: Verdict,
}

impl Report {
    /// `judged` has at least one item.
    pub(crate) fn new(asked: Asked, judged: Vec<Judged>, load: Load) -> Self {
        let mut tally = Tally::default();
        let mut turns = Turns::default();
        let (mut before, mut after) = (StockState::default(), BTreeMap::new());
        let mut ledger_orders = 0;
        let mut answers_by_status = BTreeMap::new();
        let mut failures = BTreeMap::new();
        let mut instances = BTreeMap::<String, Share>::new();
        let mut pause = Pause::default();
        let mut slowest = Duration::ZERO;
        let (mut requests, mut lost) = (0, 0);
        for Judged { history, verdict, .. } in &judged {
            requests += history.orders.len();
            if verdict.longest_pause.length() > pause.length() {
                pause = verdict.longest_pause;
            }
            lost += verdict.lost();
            slowest = slowest.max(verdict.slowest.pause.length());
            tally += history.tally();
            turns += history.turns();
            before += &history.before;
            for (url, state) in &history.after {
                *after.entry(url.clone()).or_insert_with(StockState::default) += state;
            }
            ledger_orders += history.ledger.len();
            for order in &history.orders {
                let status = match &order.outcome {
                    FinalOutcome::Acknowledged(answer) => {
                        count(&mut instances, &answer.instance);
                        200
                    }
                    FinalOutcome::Probed => 200,
                    FinalOutcome::SoldOut => 409,
                    FinalOutcome::Failed { status, kind } => {
                        *failures.entry(kind.clone()).or_default() += 1;
                        *status
                    }
                    FinalOutcome::Unknown => continue,
                };
                *answers_by_status.entry(status).or_default() += 1;
            }
        }
        for share in instances.values_mut() {
            share.share = ratio(share.acknowledged, tally.acknowledged);
        }
        let run = judged.first().map(|first| first.history.run.clone()).unwrap_or_default();
        let item = judged.first().and_then(|first| first.item.clone());
        let items = judged.len();
        let Judgement { reasons, violations, notes, verdict } = conclude(judged, &tally);
        Self {
            pass: reasons.is_empty(),
            verdict,
            reasons,
            violations,
            notes,
            urls: asked.urls,
            item: item.filter(|_| items == 1),
            items,
            quantity: asked.quantity,
            run,
            requests,
            connections: asked.connections,
            seed: asked.seed,
            acknowledged: tally.acknowledged,
            acknowledged_units: tally.acknowledged_units,
            probe_path: None,
            answered: 0,
            sold_out: tally.sold_out,
            unknown: tally.unknown,
            failed: tally.failed,
            abandoned: tally.abandoned,
            resolved: tally.resolved,
            lost,
            attempts: tally.attempts,
            stale_tokens: load.unsettled.get(STALE_TOKEN).copied().unwrap_or_default(),
            answers_per_second: per_second(answers_by_status.values().sum(), load.duration),
            answers_by_status,
            failures,
            unsettled_attempts: load.unsettled,
            instances,
            turns,
            longest_pause_seconds: pause.length().as_secs_f64(),
            longest_pause_at_seconds: Duration::from_micros(pause.from).as_secs_f64(),
            slowest_order_seconds: slowest.as_secs_f64(),
            duration_seconds: load.duration.as_secs_f64(),
            latency_microseconds: load.latencies.percentiles(),
            cpu_seconds: load.cpu_seconds,
            before,
            after,
            ledger_orders,
        }
    }
}

impl Report {
    /// For probes.
    pub(crate) fn of_probes(path: String, connections: usize, load: Load) -> Self {
        let count = |is: fn(&FinalOutcome) -> bool| {
            u64_from(load.orders.iter().filter(|order| is(&order.outcome)).count())
        };
        let requests = load.orders.len();
        let answered = count(|outcome| *outcome == FinalOutcome::Probed);
        let failed = count(|outcome| matches!(outcome, FinalOutcome::Failed { .. }));
        let unknown = count(|outcome| *outcome == FinalOutcome::Unknown);
        let pass = answered == u64_from(requests);
        let answers_per_second = per_second(answered, load.duration);
        let label = if pass { "PASS" } else { "FAIL" };
        let verdict = format!(
            "{label}: {answered} of {requests} requests for {path} answered over {connections} \
             connections, {failed} failed, {unknown} without an answer: {:.3} s, \
             {answers_per_second:.0} answers/s",
            load.duration.as_secs_f64(),
        );
        Self {
            pass,
            verdict,
            probe_path: Some(path),
            requests,
            connections,
            answered,
            failed,
            unknown,
            duration_seconds: load.duration.as_secs_f64(),
            answers_per_second,
            latency_microseconds: load.latencies.percentiles(),
            cpu_seconds: load.cpu_seconds,
            ..Self::default()
        }
    }
}

/// The judgement on the whole run.
struct Judgement {
    reasons: Vec<Failure>,
    violations: Vec<Violation>,
    notes: Vec<String>,
    verdict: String,
}

/// With several items, each text begins with the item's name.
fn conclude(judged: Vec<Judged>, tally: &Tally) -> Judgement {
    let items = judged.len();
    let (mut reasons, mut violations, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    let mut message = String::new();
    for Judged { item, verdict, .. } in judged {
        let of = item.filter(|_| items > 1).map(|item| format!("{item}: ")).unwrap_or_default();
        reasons.extend(verdict.reasons.iter().map(|reason| Failure {
            kind: reason.kind().to_owned(),
            text: format!("{of}{reason}"),
        }));
        violations.extend(verdict.reasons.iter().filter_map(|reason| {
            let invariant = format!("{:?}", reason.invariant()?);
            Some(Violation::new(&invariant, format!("{of}{}", Message(reason))))
        }));
        notes.extend(verdict.notes.into_iter().map(|note| format!("{of}{note}")));
        message = verdict.message;
    }
    let verdict = if items == 1 {
        message
    } else if reasons.is_empty() {
        let units = tally.acknowledged_units;
        format!("PASS: {units} units of {items} items sold, each exactly once")
    } else {
        let all: Vec<_> = reasons.iter().map(|failure| failure.text.as_str()).collect();
        format!("FAIL: {}", all.join("; "))
    };
    Judgement { reasons, violations, notes, verdict }
}

/// Looks the name up before it is copied: this is done for every order.
fn count(instances: &mut BTreeMap<String, Share>, name: &str) {
    if let Some(share) = instances.get_mut(name) {
        share.acknowledged += 1;
    } else {
        instances.insert(name.to_owned(), Share { acknowledged: 1, share: 0.0 });
    }
}

/// Things per second; 0 if there was no time.
fn per_second(things: u64, duration: Duration) -> f64 {
    if duration.is_zero() { 0.0 } else { float(things) / duration.as_secs_f64() }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { float(part) / float(whole) }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
fn float(count: u64) -> f64 {
    count as f64
}
