//! The results as Markdown.

use std::fmt::Write as _;

use loadtest::Report;

use super::Results;
use super::case::{Case, Figure};
use super::options::{Contender, Measure};
use super::ratios::{Finding, p50, p99, rate, ratio};
use crate::experiment::{Spread, figure, float, handovers, rows, section, value_name};

pub(super) fn text(results: &Results) -> String {
    let mut text = String::new();
    let mut add = |title: &str, table: String| section(&mut text, title, &table);
    let machine = results.machine.iter().map(|(name, value)| format!("{name} | {value}"));
    add("Machine, shared by load test, instances, etcd and Redis", rows(" | ", machine));
    add("Ratios", findings(&results.findings));
    add("Throughput", loads(results, Measure::Throughput, "requests/s", rate));
    add("Sold out", loads(results, Measure::SoldOut, "requests/s", rate));
    add("Burst", loads(results, Measure::Burst, "last answer ms", millis));
    add("Handovers", loads(results, Measure::Handovers, "handovers/s", handovers));
    add("CPU time for each request", cpu(results, Measure::Throughput));
    add("CPU time for each request, sold out", cpu(results, Measure::SoldOut));
    add("By distance, guarded : without a lock", far(results));
    add("At 2,000 orders/s", paced(results));
    // writing to a string cannot fail
    for fault in &results.faults {
        let _ = writeln!(text, "FAULT: {fault}");
    }
    text
}

fn findings(findings: &[Finding]) -> String {
    let row = |Finding { name, spread, goal }: &Finding| {
        let (median, least) = (figure(spread.median), figure(*goal));
        let reached = if spread.median >= *goal { "yes" } else { "no" };
        format!("{name} | {median} | {} | {least} | {reached}", range(*spread))
    };
    rows("ratio | median | min to max | at least | reached", findings.iter().map(row))
}

/// A figure of all cases of a measure, and their latency.
fn loads(results: &Results, measure: Measure, what: &str, of: Figure) -> String {
    let table = results.of(measure).filter_map(|one| {
        let found = one.spread(of)?;
        let latency = |of| middle(one.spread(of), 1e-3);
        let (title, median) = (value_name(&one.case.contender), figure(found.median));
        Some(format!("{title} | {median} | {} | {} | {}", range(found), latency(p50), latency(p99)))
    });
    rows(&format!(" | {what} | min to max | p50 ms | p99 ms"), table)
}

fn cpu(results: &Results, measure: Measure) -> String {
    let table = results.of(measure).filter_map(|one| {
        let of = |process: &str| {
            let micros = |load: &Report| {
                Some(load.cpu_seconds.get(process)? * 1e6 / float(load.requests.max(1)))
            };
            Spread::of(one.loads.iter().filter_map(micros))
        };
        of("loadtest")?;
        let [instances, etcd, redis, loadtest] =
            ["instances", "etcd", "redis", "loadtest"].map(|process| middle(of(process), 1.0));
        let title = value_name(&one.case.contender);
        Some(format!("{title} | {instances} | {etcd} | {redis} | {loadtest}"))
    });
    rows("µs a request | instances | etcd | Redis | load test", table)
}

fn far(results: &Results) -> String {
    const GUARDED: [Contender; 2] = [Contender::Combined, Contender::Forwarded];
    let others = results.of(Measure::Distance).filter(|one| !GUARDED.contains(&one.case.contender));
    let pairs = others.flat_map(|other| GUARDED.map(|guarded| (guarded, other)));
    let table = pairs.filter_map(|(guarded, other)| {
        let Case { measure, contender, far, instances, connections, .. } = other.case;
        let title = format!("{} : {}", value_name(&guarded), value_name(&contender));
        let guarded = results.distant(measure, guarded, far, instances, connections)?;
        let (etcd, redis) = far.unwrap_or_default();
        let ratio = ratio(rate, Some(guarded), Some(other))?;
        let (median, range) = (figure(ratio.median), range(ratio));
        let rates = [guarded, other].map(|one| middle(one.spread(rate), 1.0)).join(" | ");
        let tails = [guarded, other].map(|one| middle(one.spread(p99), 1e-3)).join(" | ");
        Some(format!(
            "{title} | {etcd} | {redis} | {instances} | {connections} | {rates} | {median} | {range} | {tails}"
        ))
    });
    let head = "guarded : other | etcd ms | Redis ms | instances | connections | guarded, orders/s | other | ratio \
                | min to max | guarded, p99 ms | other, p99 ms";
    rows(head, table)
}

fn paced(results: &Results) -> String {
    let table = results.of(Measure::Paced).filter_map(|one| {
        let Case { contender, far, instances, .. } = one.case;
        let (etcd, redis) = far.unwrap_or_default();
        let [p50, p99] = [p50, p99].map(|of: Figure| middle(one.spread(of), 1e-3));
        let place = format!("{} | {etcd} | {redis} | {instances}", value_name(&contender));
        one.spread(rate).map(|_| format!("{place} | {p50} | {p99}"))
    });
    rows(" | etcd ms | Redis ms | instances | p50 ms | p99 ms", table)
}

/// Milliseconds from the first request to the last answer.
#[expect(clippy::unnecessary_wraps, reason = "other figures may be missing")]
fn millis(load: &Report) -> Option<f64> {
    Some(load.duration_seconds * 1e3)
}

fn range(spread: Spread) -> String {
    format!("{} to {}", figure(spread.min), figure(spread.max))
}

/// The median in another unit; empty if there is none.
fn middle(spread: Option<Spread>, factor: f64) -> String {
    spread.map_or_else(String::new, |spread| figure(spread.median * factor))
}
