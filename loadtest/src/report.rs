//! The report on a run: with `--json` the one object on stdout.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

pub use crate::checker::{Finding, StockState, Tally, Turns};
use crate::checker::{Found, History, Kind, Order, judge};
use crate::cli::Limits;
use crate::load::due;

/// In place of "PASS".
const INTERRUPTED: &str = "INTERRUPTED";

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
    /// What is wrong, the most important first.
    pub findings: Vec<Finding>,
    /// Remarks that are no failure.
    pub notes: Vec<String>,
    /// The instances that the orders were sent to.
    pub urls: Vec<String>,
    /// The ordered item; null for the default item.
    pub item: Option<String>,
    /// The units of each order.
    pub quantity: u64,
    /// The prefix of the order ids.
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
    /// The longest time in which orders were tried and none was decided.
    pub longest_pause_seconds: f64,
    /// When that pause began, counted from the run's start.
    pub longest_pause_at_seconds: f64,
    /// The longest time that one order was tried: from its first sending until it was settled, or else to
    /// the end of its last attempt.
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
    /// The stock before.
    pub before: StockState,
    /// The stock after, by URL.
    pub after: BTreeMap<String, StockState>,
    /// Orders that the ledger gained.
    pub ledger_orders: usize,
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
    /// How many there are in each tenth of the time from 0 to `max`.
    pub tenths: [u64; 10],
}

impl Percentiles {
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile);
        let mut tenths = [0; 10];
        for some in histogram.iter_recorded() {
            let tenth = some.value_iterated_to() * 10 / (histogram.max() + 1);
            tenths[usize::try_from(tenth).map_or(9, |tenth| tenth.min(9))] += some.count_at_value();
        }
        Self {
            min: histogram.min(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: histogram.max(),
            tenths,
        }
    }
}

pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("so many digits are allowed")
}

/// The latency of an order, in microseconds.
///
/// At a rate, it begins when the order was due, also if all connections were busy then: else a service that stalls
/// would hide most of the orders that wait for it. Tene, "How not to measure latency" (2013), calls that coordinated
/// omission.
pub(crate) fn latency(rate: Option<f64>, number: usize, order: &Order) -> u64 {
    let due = rate.and_then(|rate| u64::try_from(due(rate, number).as_micros()).ok());
    order.ended.saturating_sub(due.unwrap_or(u64::MAX).min(order.sent))
}

impl Report {
    /// Judges a run.
    pub(crate) fn new(history: &History, limits: Limits) -> Self {
        let mut report = Self {
            turns: history.turns(),
            before: history.before().clone(),
            after: history.after.iter().cloned().collect(),
            ledger_orders: history.ledger.len(),
            ..Self::of_load(history)
        };
        judge(history, limits, &mut report);
        for answer in history.answers() {
            report.instances.entry(answer.instance.clone()).or_default().acknowledged += 1;
        }
        for share in report.instances.values_mut() {
            share.share = float(share.acknowledged) / float(report.tally.acknowledged);
        }
        report.concluded()
    }

    /// For probes.
    pub(crate) fn of_probes(path: &str, history: &History) -> Self {
        let report = Self::of_load(history);
        let Tally { acknowledged: answered, unknown, failed, .. } = report.tally;
        let text = format!(
            "{answered} of {} requests for {path} answered over {} connections, {failed} failed, {unknown} \
             without an answer: {:.3} s, {:.0} answers/s",
            report.requests, report.connections, report.duration_seconds, report.answers_per_second
        );
        let verdict = format!("PASS: {text}");
        let is_bad = failed > 0 || unknown > 0 && !report.interrupted;
        let mut found = Found::default();
        if is_bad {
            found.add(Kind::Failed, text);
        }
        let findings = found.findings();
        // probes are no orders
        let tally = Tally { unknown, failed, ..Tally::default() };
        let probe_path = Some(path.to_owned());
        Self { verdict, findings, tally, probe_path, answered, ..report }.concluded()
    }

    /// The figures of the orders that were sent.
    fn of_load(history: &History) -> Self {
        let History { setup, orders, interrupted, .. } = history;
        let sent = || orders.iter().enumerate().filter(|(_, order)| order.attempts > 0);
        let mut by_status = BTreeMap::new();
        for (number, order) in sent() {
            let Some(status) = order.status else { continue };
            let of_status = by_status.entry(status.to_string()).or_insert_with(histogram);
            of_status.record(latency(setup.rate, number, order)).expect("it grows");
        }
        let mut all = histogram();
        for of_status in by_status.values() {
            all += of_status;
        }
        let first = sent().map(|(_, order)| order.sent).min().unwrap_or(0);
        let last = sent().map(|(_, order)| order.ended).max().unwrap_or(0);
        let seconds = Duration::from_micros(last - first).as_secs_f64();
        let percentiles = |(status, of_status)| (status, Percentiles::of(&of_status));
        let due = if *interrupted { 0 } else { setup.due() };
        Self {
            interrupted: *interrupted,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: setup.started.clone(),
            urls: setup.instances.clone(),
            item: setup.item.clone(),
            quantity: setup.quantity,
            run: setup.run.clone(),
            requests: orders.len(),
            rate: setup.rate,
            bound_seconds: setup.seconds,
            not_sent: due.saturating_sub(orders.len()),
            connections: setup.connections,
            seed: setup.seed,
            tally: Tally::of(orders, setup.quantity),
            unsettled_attempts: history.unsettled.clone(),
            duration_seconds: seconds,
            answers_per_second: if seconds > 0.0 { float(all.len()) / seconds } else { 0.0 },
            latency_microseconds: (!all.is_empty()).then(|| Percentiles::of(&all)),
            latency_microseconds_by_status: by_status.into_iter().map(percentiles).collect(),
            cpu_seconds: history.cpu_seconds.clone(),
            ..Self::default()
        }
    }

    /// Decides: the verdict so far is that of a run without a failure.
    fn concluded(mut self) -> Self {
        self.pass = self.findings.is_empty() && !self.interrupted;
        if !self.findings.is_empty() {
            let all: Vec<_> = self.findings.iter().map(ToString::to_string).collect();
            self.verdict = format!("FAIL: {}", all.join("; "));
        } else if self.interrupted {
            self.verdict = self.verdict.replace("PASS", INTERRUPTED);
        }
        self
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
fn float(count: u64) -> f64 {
    count as f64
}
