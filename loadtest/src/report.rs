//! The report on a run. With `--json` it is the one object on stdout:
//!
//! | field | meaning |
//! |---|---|
//! | `pass` | whether the run passed |
//! | `verdict` | the verdict in words |
//! | `reasons` | the faults, the most important first: `kind` (a stable name) and `text` |
//! | `violations` | those of them that violate an invariant of the sale: `invariant` (`I1` to `I6`) and `sentence`; what each means stands in the module `checker` |
//! | `notes` | remarks that are no fault |
//! | `urls`, `item`, `items`, `quantity` | the request; `item` is null for the default item, and if `items` is more than 1 |
//! | `run` | the prefix of the order ids (of several items: of the first) |
//! | `requests`, `connections` | how many orders were sent, over how many connections |
//! | `seed` | the seed that decided which clients went away |
//! | `acknowledged`, `acknowledged_units` | orders that were accepted, and their units |
//! | `probe_path`, `answered` | the path of probes, or null, and how many of them got a 2xx |
//! | `sold_out`, `unknown`, `failed` | orders refused, without a definite answer, answered with an error |
//! | `refused` | the same as `sold_out` |
//! | `abandoned` | of `unknown`: orders whose client went away for good, on purpose |
//! | `resolved` | orders with an attempt of unknown effect that a retry decided |
//! | `lost` | orders that were accepted and are not in the ledger |
//! | `attempts` | how often orders were sent, retries included |
//! | `stale_tokens` | attempts that were refused because the instance had lost the lock unnoticed |
//! | `answers_by_status` | settled orders by HTTP status |
//! | `failures` | failed orders by status and problem type |
//! | `unsettled_attempts` | attempts without a decision, by reason; each was retried while retries and time were left |
//! | `instances` | by name: `acknowledged` orders, and their `share` (0 to 1) |
//! | `turns` | how often the ledger goes from one instance to another (`handovers`), and how often to another token (`tokens`) |
//! | `longest_pause_seconds`, `longest_pause_at_seconds` | the longest time in which orders were tried and none was decided, and its begin, counted from the run's start (of several items: the longest of all) |
//! | `slowest_order_seconds` | the longest time that one order was tried: from first sending until it was settled, or else to the end of its last attempt (of several items: the longest of all) |
//! | `duration_seconds` | from the first request to the last answer |
//! | `answers_per_second` | settled orders in that time |
//! | `latency_microseconds` | `min`, `p50`, `p90`, `p99`, `p99_9`, `max` of settled orders, from first sending to answer, retries included; null if there were none |
//! | `cpu_seconds` | CPU time of user and kernel during the load, by process: `loadtest` and what `--process` names |
//! | `before`, `after` | the stock before, and after by URL: `stock`, `lucky`, `initial`, `orders`; several items are added up |
//! | `ledger_orders` | orders that the ledger gained |

#![expect(missing_docs, reason = "the table describes the fields")]

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

/// The report on a run. The fields are described at the top of this file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub pass: bool,
    pub verdict: String,
    pub reasons: Vec<Fault>,
    pub violations: Vec<Violation>,
    pub notes: Vec<String>,
    pub urls: Vec<String>,
    pub item: Option<String>,
    pub items: usize,
    pub quantity: u64,
    pub run: String,
    pub requests: usize,
    pub connections: usize,
    pub seed: u64,
    pub acknowledged: u64,
    pub acknowledged_units: u64,
    pub probe_path: Option<String>,
    pub answered: u64,
    pub sold_out: u64,
    pub unknown: u64,
    pub failed: u64,
    pub refused: u64,
    pub abandoned: u64,
    pub resolved: u64,
    pub lost: u64,
    pub attempts: u64,
    pub stale_tokens: u64,
    pub answers_by_status: BTreeMap<u16, u64>,
    pub failures: BTreeMap<String, u64>,
    pub unsettled_attempts: BTreeMap<String, u64>,
    pub instances: BTreeMap<String, Share>,
    pub turns: Turns,
    pub longest_pause_seconds: f64,
    pub longest_pause_at_seconds: f64,
    pub slowest_order_seconds: f64,
    pub duration_seconds: f64,
    pub answers_per_second: f64,
    pub latency_microseconds: Option<Percentiles>,
    pub cpu_seconds: BTreeMap<String, f64>,
    pub before: StockState,
    pub after: BTreeMap<String, StockState>,
    pub ledger_orders: usize,
}

/// A reason for not passing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fault {
    pub kind: String,
    pub text: String,
}

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    pub invariant: String,
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
    pub acknowledged: u64,
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
            refused: tally.sold_out,
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
    reasons: Vec<Fault>,
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
        reasons.extend(
            verdict.reasons.iter().map(|reason| Fault {
                kind: reason.kind().to_owned(),
                text: format!("{of}{reason}"),
            }),
        );
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
        let all: Vec<_> = reasons.iter().map(|fault| fault.text.as_str()).collect();
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
