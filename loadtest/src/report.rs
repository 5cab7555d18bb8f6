//! The report on a run: with `--json` the one object on stdout.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

pub use crate::checker::Tally;
pub use crate::checker::model::Finding;
use crate::checker::{Found, History, Kind, Order, StockState, judge};
use crate::cli::Limits;
use crate::load::due;
use crate::record::Setup;

/// The verdict of an interrupted run, in place of "PASS".
const INTERRUPTED: &str = "INTERRUPTED";

/// The report on a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Whether the run passed.
    pub pass: bool,
    /// Whether the run was stopped early: then it can fail, but not pass.
    pub interrupted: bool,
    /// The verdict as text.
    pub verdict: String,
    /// What is wrong, the most important first.
    pub findings: Vec<Finding>,
    /// Remarks that do not fail the run.
    pub notes: Vec<String>,
    /// The flags, and the state before: the fields that `record` describes, beside these.
    #[serde(flatten)]
    pub setup: Setup,
    /// How many orders were sent.
    pub requests: usize,
    /// How many orders were due in the time of the run, but not sent because all connections were busy.
    pub not_sent: usize,
    /// The orders by outcome: the fields of [`Tally`], beside these.
    #[serde(flatten)]
    pub tally: Tally,
    /// The path that probes asked for.
    pub probe_path: Option<String>,
    /// How many orders were accepted and are not in the ledger.
    pub lost: u64,
    /// The accepted orders of each instance, by its name.
    pub instances: BTreeMap<String, u64>,
    /// How many times the token changes from one entry to the next.
    pub handovers: usize,
    /// The longest time in which orders were tried and none was decided.
    pub longest_pause_seconds: f64,
    /// When that pause began, counted from the run's start.
    pub longest_pause_at_seconds: f64,
    /// The longest time that one order, or one change of it, was tried: from its first sending until it was settled, else until
    /// the end of its last attempt.
    pub slowest_order_seconds: f64,
    /// From the first request to the last answer.
    pub duration_seconds: f64,
    /// Settled orders a second.
    pub answers_per_second: f64,
    /// Latencies of settled orders, from first sending to answer, retries included; at a rate, from when they were due. Null if
    /// there were none.
    pub latency_microseconds: Option<Percentiles>,
    /// The same by HTTP status, because a refusal takes another time than a sale.
    pub latency_microseconds_by_status: BTreeMap<String, Percentiles>,
    /// CPU time of user and kernel during the load, by process: `loadtest`, and each process of `--process`.
    pub cpu_seconds: BTreeMap<String, f64>,
    /// The state after the run, by the instances' URLs.
    pub after: BTreeMap<String, StockState>,
    /// How many orders the ledger gained.
    pub ledger_orders: usize,
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

pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("so many digits are allowed")
}

/// The latency of an order, in microseconds, without the waits for held units.
///
/// At a rate, it counts from when the order was due, even if all connections were busy then. Otherwise a service that stalls
/// would hide most of the orders that wait for it. Tene, "How not to measure latency" (2013), calls that coordinated omission.
pub(crate) fn latency(rate: Option<f64>, number: usize, order: &Order) -> u64 {
    let due = rate.and_then(|rate| u64::try_from(due(rate, number).as_micros()).ok());
    let ended = order.ended.saturating_sub(order.waited());
    ended.saturating_sub(due.unwrap_or(u64::MAX).min(order.sent))
}

impl Report {
    /// Judges a run.
    pub(crate) fn new(history: &History, limits: Limits) -> Self {
        let mut report = Self {
            handovers: history.handovers(),
            after: history.after.iter().cloned().collect(),
            ledger_orders: history.ledger.len(),
            ..Self::of_load(history)
        };
        judge(history, limits, &mut report);
        for answer in history.answers() {
            *report.instances.entry(answer.instance.clone()).or_default() += 1;
        }
        report.concluded()
    }

    /// The report on probes. Those with a 2xx answer count as accepted.
    pub(crate) fn of_probes(path: &str, history: &History) -> Self {
        let report = Self::of_load(history);
        let Tally { acknowledged, unknown, failed, .. } = report.tally;
        let text = format!(
            "{acknowledged} of {} requests for {path} answered over {} connections, {failed} failed, {unknown} \
             without an answer: {:.3} s, {:.0} answers/s",
            report.requests,
            report.setup.connections,
            report.duration_seconds,
            report.answers_per_second
        );
        let mut found = Found::default();
        if failed > 0 || unknown > 0 && !report.interrupted {
            found.add(Kind::Failed, &*text);
        }
        let (verdict, findings) = (format!("PASS: {text}"), found.findings());
        Self { verdict, findings, probe_path: Some(path.to_owned()), ..report }.concluded()
    }

    /// The figures of the orders that were sent.
    fn of_load(history: &History) -> Self {
        let History { setup, orders, interrupted, .. } = history;
        let sent = || orders.iter().enumerate().filter(|(_, order)| order.attempts > 0);
        let mut by_status = BTreeMap::new();
        for (number, order) in sent() {
            let Some(status) = order.status else { continue };
            let of_status = by_status.entry(status.to_string()).or_insert_with(histogram);
            of_status.record(latency(setup.plan.rate, number, order)).expect("it grows");
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
            setup: setup.clone(),
            requests: orders.len(),
            not_sent: due.saturating_sub(orders.len()),
            tally: Tally::of(orders, setup.plan.quantity),
            duration_seconds: seconds,
            answers_per_second: if seconds > 0.0 { float(all.len()) / seconds } else { 0.0 },
            latency_microseconds: (!all.is_empty()).then(|| Percentiles::of(&all)),
            latency_microseconds_by_status: by_status.into_iter().map(percentiles).collect(),
            cpu_seconds: history.cpu_seconds.clone(),
            ..Self::default()
        }
    }

    /// Completes the report. The verdict so far is the one of a run without a failure.
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
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}
