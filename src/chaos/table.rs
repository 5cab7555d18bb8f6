//! What was found, for people.

use std::fmt::Write as _;

use super::results::{self, ControlResult, Results, RowResult, Verdict};
use super::trial::Outcome;
use crate::bench::markdown::rows;

/// The tables, and what is wrong.
pub(super) fn text(results: &Results) -> String {
    let mut text = String::new();
    let held = results.rows.iter().map(row);
    let head = [
        "fault",
        "times",
        "orders",
        "acknowledged",
        "sold out",
        "unknown",
        "resolved",
        "pause s",
        "bound s",
        "verdict",
    ];
    // writing to a string cannot fail
    let _ = writeln!(text, "## Faults\n\n{}", rows(head, held));
    let controls = results
        .rows
        .iter()
        .flat_map(|row| row.controls.iter().map(move |one| control(row.name, one)));
    let head = ["control of", "without", "breaks", "broke", "tries", "verdict"];
    let controls = rows(head, controls);
    if !controls.is_empty() {
        let _ = writeln!(text, "## The same without the defence\n\n{controls}");
    }
    if let Some(unfenced) = results.unfenced() {
        let counts = unfenced.counts;
        let _ = writeln!(
            text,
            "Without the fence, with five instances and pauses of three TTL, {} of {} acknowledged \
             units were lost: {:.0} %.\n(Jepsen's analysis of etcd 3.4.3 found about 18 % under \
             pauses every five seconds.)\n",
            counts.lost_units,
            counts.acknowledged_units,
            results::percent(counts.lost_units, counts.acknowledged_units),
        );
    }
    for row in &results.rows {
        failures(&mut text, row, results.seed);
    }
    let _ = writeln!(
        text,
        "{} orders in {:.0} s, seed {}.",
        results.orders(),
        results.seconds,
        results.seed
    );
    text
}

fn row(row: &RowResult) -> [String; 10] {
    let verdict = match row.verdict() {
        Verdict::Good => "holds".to_owned(),
        Verdict::Bad => format!("BROKEN: {}", row.run.as_ref().map(broken).unwrap_or_default()),
        Verdict::Unknown => "NOT RUN".to_owned(),
    };
    let Ok(outcome) = &row.run else {
        let mut cells = [const { String::new() }; 10];
        (cells[0], cells[9]) = (row.fault.to_owned(), verdict);
        return cells;
    };
    let counts = outcome.counts;
    [
        row.fault.to_owned(),
        outcome.times.to_string(),
        counts.orders.to_string(),
        counts.acknowledged.to_string(),
        counts.refused.to_string(),
        counts.unknown.to_string(),
        counts.resolved.to_string(),
        format!("{:.1}", counts.longest_pause_seconds),
        format!("{:.1}", outcome.bound_seconds),
        verdict,
    ]
}

fn control(row: &str, control: &ControlResult) -> [String; 6] {
    let verdict = match control.verdict() {
        Verdict::Good => "fails, as it must",
        Verdict::Bad => "PASSES, AND MUST NOT",
        Verdict::Unknown => "NOT RUN",
    };
    [
        row.to_owned(),
        control.without.to_owned(),
        control.breaks.join(" or "),
        control.run.as_ref().map(broken).unwrap_or_default(),
        control.attempts.to_string(),
        verdict.to_owned(),
    ]
}

/// The invariants that were broken, each once.
pub(super) fn broken(outcome: &Outcome) -> String {
    let mut all: Vec<_> = outcome.findings.iter().map(|found| found.invariant.as_str()).collect();
    all.sort_unstable();
    all.dedup();
    all.join(", ")
}

/// What is wrong with a row and its controls, and how to see it again.
fn failures(text: &mut String, row: &RowResult, seed: u64) {
    let mut is_bad = false;
    match &row.run {
        Ok(outcome) => {
            for finding in &outcome.findings {
                is_bad = true;
                let _ = writeln!(
                    text,
                    "{}: {} is broken: {}",
                    row.name, finding.invariant, finding.sentence
                );
            }
            if let (Some(kept), true) = (&outcome.kept, is_bad) {
                let _ = writeln!(text, "  history and logs are in {}", kept.display());
            }
        }
        Err(error) => {
            is_bad = true;
            let _ = writeln!(text, "{}: could not be run: {error}", row.name);
        }
    }
    for control in &row.controls {
        match (&control.run, control.verdict()) {
            (_, Verdict::Good) => {}
            (Ok(outcome), _) => {
                is_bad = true;
                let _ = writeln!(
                    text,
                    "{}: the control without {} broke none of {} in {} attempts (it broke: {}; seen: {:?})",
                    row.name,
                    control.without,
                    control.breaks.join(", "),
                    control.attempts,
                    broken(outcome),
                    outcome.facts,
                );
            }
            (Err(error), _) => {
                is_bad = true;
                let _ = writeln!(
                    text,
                    "{}: the control without {} could not be run: {error}",
                    row.name, control.without
                );
            }
        }
    }
    if is_bad {
        let _ =
            writeln!(text, "  again: CHAOS_SEED={seed} make chaos ARGS='--only {}'\n", row.name);
    }
}
