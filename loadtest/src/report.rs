//! The report on a run: with `--json` the one object on stdout.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::checker::{History, Order, Pause, Verdict, judge, u64_from};
pub use crate::checker::{StockState, Tally, Turns};
use crate::cli::Limits;
use crate::load::{Load, due};
use crate::record::Setup;

/// In place of "PASS".
const INTERRUPTED: &str = "INTERRUPTED";

/// Longer latencies are recorded as this long.
const LONGEST_LATENCY: Duration = Duration::from_hours(1);

/// The report on a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Whether the run passed.
    pub pass: bool,
    /// Whether it was ended before its time: then it can fail, but not pass.
    pub interrupted: bool,
    /// The version of the load test.
    pub version: String,
    /// When the run began, by the wall clock.
    pub started: String,
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
    /// The orders a second that were asked for; null if each followed the answer before it.
    pub rate: Option<f64>,
    /// The time that orders were to be sent in; null if their number alone was the bound.
    pub bound_seconds: Option<f64>,
    /// Orders that were due in that time and were not sent, since all connections were busy.
    pub not_sent: usize,
    /// The connections that they were sent over.
    pub connections: usize,
    /// The seed that decided which clients went away.
    pub seed: u64,
    /// What became of the orders: the fields of [`Tally`], beside these.
    #[serde(flatten)]
    pub tally: Tally,
    /// The path of probes.
    pub probe_path: Option<String>,
    /// Probes that got a 2xx.
    pub answered: u64,
    /// Orders that were accepted and are not in the ledger.
    pub lost: u64,
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
    /// The same by HTTP status: to be told *sold out* takes another time than to buy.
    pub latency_microseconds_by_status: BTreeMap<String, Percentiles>,
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

/// Percentiles, in microseconds, to three digits.
#[expect(missing_docs, reason = "the fields say it")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    pub min: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
    pub max: u64,
}

impl Percentiles {
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile);
        Self {
            min: histogram.min(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: histogram.max(),
        }
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, micros(LONGEST_LATENCY), 3)
        .expect("the bounds and the precision are in the allowed range")
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Report {
    /// Judges each item of a run. `histories` has at least one.
    pub(crate) fn new(setup: &Setup, histories: &[History], limits: Limits, load: Load) -> Self {
        let orders: Vec<_> = histories.iter().map(|history| &history.orders[..]).collect();
        let mut report = Self {
            urls: setup.instances.clone(),
            items: setup.items.len(),
            quantity: setup.quantity,
            run: setup.items[0].run.clone(),
            seed: setup.seed,
            tally: Tally::of(orders.iter().copied().flatten(), setup.quantity),
            unsettled_attempts: load.unsettled,
            ..Self::of_load(setup, &orders, load.cpu_seconds)
        };
        let mut pause = Pause::default();
        for (item, history) in setup.items.iter().zip(histories) {
            let verdict = judge(history, limits);
            if verdict.longest_pause.length() > pause.length() {
                pause = verdict.longest_pause;
            }
            report.add(history, &verdict);
            let name = item.name.as_ref().filter(|_| report.items > 1);
            let name = name.map(|name| format!("{name}: ")).unwrap_or_default();
            report.add_verdict(&name, &verdict);
            report.verdict = verdict.pass;
        }
        if let [item] = &setup.items[..] {
            report.item.clone_from(&item.name);
        } else {
            // what came back is not sold
            let after = report.after.values().next().map_or(0, |after| after.lucky);
            let (units, items) = (after.saturating_sub(report.before.lucky), report.items);
            report.verdict =
                format!("PASS: {units} units of {items} items sold, each exactly once");
        }
        report.interrupted = histories[0].interrupted;
        if report.interrupted {
            (report.verdict, report.not_sent) = (report.verdict.replace("PASS", INTERRUPTED), 0);
        }
        report.pass = report.reasons.is_empty() && !report.interrupted;
        if !report.reasons.is_empty() {
            let all: Vec<_> = report.reasons.iter().map(|failure| &*failure.text).collect();
            report.verdict = format!("FAIL: {}", all.join("; "));
        }
        for share in report.instances.values_mut() {
            share.share = float(share.acknowledged) / float(report.tally.acknowledged);
        }
        let answers = report.tally.answers_by_status.values().sum();
        report.answers_per_second = per_second(answers, report.duration_seconds);
        report.longest_pause_seconds = pause.length().as_secs_f64();
        report.longest_pause_at_seconds = Duration::from_micros(pause.from).as_secs_f64();
        report
    }

    /// The figures of the orders that were sent, item by item.
    ///
    /// At a rate, the latency of an order begins when it was due, also if all connections were busy then: else a
    /// service that stalls would hide most of the orders that wait for it. Tene, "How not to measure latency" (2013),
    /// calls that coordinated omission.
    fn of_load(setup: &Setup, orders: &[&[Order]], cpu_seconds: BTreeMap<String, f64>) -> Self {
        let numbered = orders.iter().enumerate().flat_map(|(item, of_item)| {
            let numbers = (item..).step_by(orders.len());
            numbers.zip(of_item.iter()).filter(|(_, order)| order.attempts > 0)
        });
        let mut by_status = BTreeMap::new();
        for (number, order) in numbered.clone() {
            let Some(status) = order.status() else { continue };
            let sent = Duration::from_micros(order.sent);
            let since = setup.rate.map_or(sent, |rate| due(rate, number).min(sent));
            let latency = Duration::from_micros(order.ended).saturating_sub(since);
            let of_status = by_status.entry(status.to_string()).or_insert_with(histogram);
            of_status.saturating_record(micros(latency));
        }
        let mut all = histogram();
        for of_status in by_status.values() {
            all += of_status;
        }
        let first = numbered.clone().map(|(_, order)| order.sent).min().unwrap_or(0);
        let last = numbered.map(|(_, order)| order.ended).max().unwrap_or(0);
        let requests = orders.iter().map(|of_item| of_item.len()).sum();
        let percentiles = |(status, of_status)| (status, Percentiles::of(&of_status));
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: setup.started.clone(),
            requests,
            rate: setup.rate,
            bound_seconds: setup.seconds,
            not_sent: setup.due().saturating_sub(requests),
            connections: setup.connections,
            duration_seconds: Duration::from_micros(last - first).as_secs_f64(),
            latency_microseconds: (!all.is_empty()).then(|| Percentiles::of(&all)),
            latency_microseconds_by_status: by_status.into_iter().map(percentiles).collect(),
            cpu_seconds,
            ..Self::default()
        }
    }

    /// Adds the figures of an item.
    fn add(&mut self, history: &History, verdict: &Verdict) {
        self.lost += verdict.lost;
        let slowest = verdict.slowest.length().as_secs_f64();
        self.slowest_order_seconds = self.slowest_order_seconds.max(slowest);
        let turns = history.turns();
        self.turns.handovers += turns.handovers;
        self.turns.tokens += turns.tokens;
        self.before += &history.before;
        for (url, state) in &history.after {
            *self.after.entry(url.clone()).or_default() += state;
        }
        self.ledger_orders += history.ledger.len();
        for answer in history.answers() {
            self.instances.entry(answer.instance.clone()).or_default().acknowledged += 1;
        }
    }

    /// Adds the texts of an item, each behind `name`.
    fn add_verdict(&mut self, name: &str, verdict: &Verdict) {
        for reason in &verdict.reasons {
            let (kind, text) = (reason.kind.name().to_owned(), format!("{name}{reason}"));
            self.reasons.push(Failure { kind, text });
            if let Some(invariant) = reason.kind.invariant() {
                let sentence = format!("{name}{}", reason.sentence());
                self.violations.push(Violation::new(invariant, sentence));
            }
        }
        self.notes.extend(verdict.notes.iter().map(|note| format!("{name}{note}")));
    }

    /// For probes.
    pub(crate) fn of_probes(path: &str, setup: &Setup, load: Load) -> Self {
        let tally = Tally::of(&load.orders, setup.quantity);
        let Tally { acknowledged: answered, unknown, failed, .. } = tally;
        let (orders, interrupted) = ([&*load.orders], load.interrupted);
        let report = Self { interrupted, ..Self::of_load(setup, &orders, load.cpu_seconds) };
        let (requests, seconds) = (report.requests, report.duration_seconds);
        let pass = answered == u64_from(requests) && !interrupted;
        let answers_per_second = per_second(answered, seconds);
        let word = match (pass, interrupted) {
            (true, _) => "PASS",
            (false, true) => INTERRUPTED,
            (false, false) => "FAIL",
        };
        let verdict = format!(
            "{word}: {answered} of {requests} requests for {path} answered over {} connections, {failed} \
             failed, {unknown} without an answer: {seconds:.3} s, {answers_per_second:.0} answers/s",
            setup.connections
        );
        let probe_path = Some(path.to_owned());
        // probes are no orders
        let tally = Tally { unknown, failed, ..Tally::default() };
        Self { pass, verdict, tally, probe_path, answered, answers_per_second, ..report }
    }
}

/// Things per second; 0 if there was no time.
fn per_second(things: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { float(things) / seconds } else { 0.0 }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
fn float(count: u64) -> f64 {
    count as f64
}
