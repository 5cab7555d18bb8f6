//! The report as text: a table and the verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::checker::{StockState, count, meaning, u64_from};
use crate::report::{Report, float};

/// The table and the verdict.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.probe_path.is_some() {
            return writeln!(f, "{}", self.verdict);
        }
        writeln!(
            f,
            "{} of {} each, over {} at {}\n",
            count(u64_from(self.requests), "order"),
            count(self.setup.plan.quantity, "unit"),
            count(u64_from(self.setup.connections), "connection"),
            self.setup.urls.join(", ")
        )?;
        rows(f, "answers", answers(self))?;
        let counted = |counts: &BTreeMap<String, u64>| -> Vec<_> {
            counts.iter().map(|(name, n)| counter(name, *n)).collect()
        };
        rows(f, "later", counted(&self.tally.changes))?;
        rows(f, "failures", counted(&self.tally.failures))?;
        rows(f, "unsettled", counted(&self.tally.unsettled_attempts))?;
        let sold: u64 = self.instances.values().sum();
        let sold_by = self.instances.iter().map(|(instance, n)| {
            format!("{}  {:>5.1} %", counter(instance, *n), 100.0 * float(*n) / float(sold))
        });
        rows(f, "sold by", sold_by)?;
        let (length, at) = (self.longest_pause_seconds, self.longest_pause_at_seconds);
        let pause = format!("longest pause {length:.3} s, from {at:.3} s on");
        let time = format!(
            "{:.3} s from the first request to the last answer, {:.0} answers/s",
            self.duration_seconds, self.answers_per_second
        );
        rows(f, "time", [time, pause])?;
        rows(f, "latency", latencies(self))?;
        rows(f, "stock", stock(self))?;
        rows(f, "note", &self.notes)?;
        if self.findings.is_empty() {
            return writeln!(f, "\n{}", self.verdict);
        }
        let findings: Vec<_> = self.findings.iter().map(ToString::to_string).collect();
        writeln!(f, "\nFAIL: {}", findings.join("\n      "))?;
        let broken: BTreeSet<_> = self.findings.iter().flat_map(|it| &it.invariant).collect();
        broken.iter().try_for_each(|name| writeln!(f, "      ({name}: {})", meaning(name)))
    }
}

/// Writes rows with a label before the first.
fn rows(
    f: &mut fmt::Formatter<'_>,
    mut label: &str,
    rows: impl IntoIterator<Item = impl fmt::Display>,
) -> fmt::Result {
    rows.into_iter().try_for_each(|row| writeln!(f, "  {:<13}{row}", std::mem::take(&mut label)))
}

fn counter(name: &str, n: u64) -> String {
    format!("{name:<24}{n:>8}")
}

fn answers(report: &Report) -> Vec<String> {
    let tally = &report.tally;
    let rows = [
        ("200 reserved", tally.acknowledged),
        ("409 sold out", tally.sold_out),
        ("409 all held, or paused", tally.held_out),
        ("409 limit reached", tally.limited),
        ("ended before the answer", tally.over),
        ("none in the end", tally.unknown),
        ("(of which went away)", tally.abandoned),
        ("decided by a retry", tally.resolved),
        ("due and not sent", u64_from(report.not_sent)),
    ];
    rows.iter().filter(|(_, n)| *n > 0).map(|(name, n)| counter(name, *n)).collect()
}

/// The latencies by status, because a refusal takes another time than a sale.
fn latencies(report: &Report) -> Vec<String> {
    let by_status = report.latency_microseconds_by_status.iter();
    let mut rows: Vec<_> = by_status
        .map(|(status, it)| {
            let times = [it.min, it.p50, it.p90, it.p99, it.p99_9, it.max].map(milliseconds);
            let [min, p50, p90, p99, p99_9, max] = times;
            format!(
                "{status}: min {min}  p50 {p50}  p90 {p90}  p99 {p99}  p99.9 {p99_9}  max {max}"
            )
        })
        .collect();
    if !rows.is_empty() {
        let counted = match report.setup.plan.rate {
            Some(_) => "(from when an order was due: a time includes waiting for a connection)",
            None if report.requests > report.setup.connections => {
                "(each connection sends its next order after the answer to the last one)"
            }
            None => "(all are released together: a time includes queueing behind the others)",
        };
        rows.push(counted.to_owned());
    }
    rows
}

pub(crate) fn milliseconds(micros: u64) -> String {
    format!("{}.{} ms", micros / 1000, micros % 1000 / 100)
}

fn stock(report: &Report) -> Vec<String> {
    let before = format!("before: {} to sell", report.setup.before.stock);
    // the instances share one store; if their states differ, the verdict says so
    let after = report.after.values().next().map(|StockState { stock, lucky, orders, .. }| {
        format!("after: stock {stock}, lucky {lucky}, {} in the ledger", count(*orders, "order"))
    });
    [before].into_iter().chain(after).collect()
}
