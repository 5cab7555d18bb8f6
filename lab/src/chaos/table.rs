//! The results as text.

use std::fmt::Write as _;

use loadtest::report::Violation;

use super::results::{ControlResult, Results, ScenarioResult, Verdict};
use super::run::Outcome;
use crate::experiment::rows;

/// The tables, and every failure.
pub(super) fn text(results: &Results) -> String {
    let mut text = String::new();
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
    let _ = writeln!(text, "## Faults\n\n{}", rows(head, results.scenarios.iter().map(row)));
    let controls = results
        .scenarios
        .iter()
        .flat_map(|scenario| scenario.controls.iter().map(move |one| control(scenario.name, one)));
    let head = ["control of", "without", "breaks", "broke", "tries", "verdict"];
    let controls = rows(head, controls);
    if !controls.is_empty() {
        let _ = writeln!(text, "## The same without the safeguard\n\n{controls}");
    }
    if let Some(unfenced) = results.unfenced() {
        let counts = &unfenced.counts;
        // what is in stock and was sold as well, by the first instance's word at the end
        let state = counts.after.values().next().cloned().unwrap_or_default();
        let lost = u32::try_from(state.stock + state.lucky - state.initial).unwrap_or(0);
        let acknowledged = u32::try_from(counts.acknowledged_units).unwrap_or(u32::MAX);
        let _ = writeln!(
            text,
            "Without the fence, with five instances and pauses of three TTL, {} of {} acknowledged \
             units were lost: {:.0} %.\n(Jepsen's analysis of etcd 3.4.3 found about 18 % under \
             pauses every five seconds.)\n",
            lost,
            acknowledged,
            100.0 * f64::from(lost) / f64::from(acknowledged.max(1)),
        );
    }
    for scenario in &results.scenarios {
        text += &failures(scenario, results);
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

fn row(scenario: &ScenarioResult) -> [String; 10] {
    let verdict = match scenario.verdict() {
        Verdict::Good => "holds".to_owned(),
        Verdict::Bad => {
            format!("BROKEN: {}", scenario.run.as_ref().map(broken).unwrap_or_default())
        }
        Verdict::Unknown => "NOT RUN".to_owned(),
    };
    let Ok(outcome) = &scenario.run else {
        let mut cells = [const { String::new() }; 10];
        (cells[0], cells[9]) = (scenario.fault.to_owned(), verdict);
        return cells;
    };
    let counts = &outcome.counts;
    [
        scenario.fault.to_owned(),
        outcome.times.to_string(),
        counts.requests.to_string(),
        counts.acknowledged.to_string(),
        counts.sold_out.to_string(),
        counts.unknown.to_string(),
        counts.resolved.to_string(),
        format!("{:.1}", counts.longest_pause_seconds),
        format!("{:.1}", outcome.bound_seconds),
        verdict,
    ]
}

fn control(scenario: &str, control: &ControlResult) -> [String; 6] {
    let verdict = match control.verdict() {
        Verdict::Good => "fails, as it must",
        Verdict::Bad => "PASSES, AND MUST NOT",
        Verdict::Unknown => "NOT RUN",
    };
    [
        scenario.to_owned(),
        control.without.to_owned(),
        control.breaks.join(" or "),
        control.run.as_ref().map(broken).unwrap_or_default(),
        control.attempts.to_string(),
        verdict.to_owned(),
    ]
}

/// The broken invariants, each once.
pub(super) fn broken(outcome: &Outcome) -> String {
    let mut all: Vec<_> = outcome.findings.iter().map(|found| found.invariant.as_str()).collect();
    all.sort_unstable();
    all.dedup();
    all.join(", ")
}

/// The failures of a scenario and its controls, and how to repeat them.
fn failures(scenario: &ScenarioResult, results: &Results) -> String {
    let (name, Results { seed, load_seconds, .. }) = (scenario.name, results);
    let mut lines: Vec<_> = match &scenario.run {
        Ok(outcome) => outcome
            .findings
            .iter()
            .map(|Violation { invariant, sentence }| {
                format!("{name}: {invariant} is broken: {sentence}")
            })
            .collect(),
        Err(error) => vec![format!("{name}: could not be run: {error}")],
    };
    if let (false, Ok(Outcome { kept: Some(kept), .. })) = (lines.is_empty(), &scenario.run) {
        lines.push(format!("  history and logs are in {}", kept.display()));
    }
    for control in scenario.controls.iter().filter(|one| one.verdict() != Verdict::Good) {
        let ControlResult { without, attempts, .. } = control;
        lines.push(match &control.run {
            Ok(outcome) => format!(
                "{name}: the control without {without} broke none of {} in {attempts} attempts (it broke: {}; \
                 seen: {:?})",
                control.breaks.join(", "),
                broken(outcome),
                outcome.facts,
            ),
            Err(error) => format!("{name}: the control without {without} could not be run: {error}"),
        });
    }
    if !lines.is_empty() {
        lines.push(format!(
            "  again: CHAOS_SEED={seed} CHAOS_SECONDS={load_seconds} make chaos ARGS='--only {name}'\n\n"
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::run::NO_FAULT;

    fn outcome(findings: &[&str]) -> Outcome {
        Outcome {
            findings: findings.iter().map(|name| Violation::new(name, "a sentence")).collect(),
            ..Outcome::default()
        }
    }

    fn results(run: Result<Outcome, String>, control: Result<Outcome, String>) -> Results {
        let control =
            ControlResult { without: "fence", breaks: vec!["I1", "I2"], run: control, attempts: 4 };
        let scenario =
            ScenarioResult { name: "name", fault: "a fault", run, controls: vec![control] };
        Results { seed: 7, load_seconds: 24, scenarios: vec![scenario], ..Results::default() }
    }

    /// Goal: a scenario must hold and its control must break what it is said to, by a fault that happened.
    #[test]
    fn scenarios_hold_and_controls_fail() {
        let good = results(Ok(outcome(&[])), Ok(outcome(&["I4", "I2"])));
        assert_eq!(good.verdict(), Verdict::Good);
        let table = text(&good);
        assert!(table.contains("holds") && table.contains("fails, as it must"), "{table}");
        assert!(!table.contains("again:"), "{table}");

        for bad in [
            results(Ok(outcome(&["I2"])), Ok(outcome(&["I2"]))),
            results(Ok(outcome(&[NO_FAULT])), Ok(outcome(&["I2"]))),
            results(Ok(outcome(&[])), Ok(outcome(&[]))),
            results(Ok(outcome(&[])), Ok(outcome(&["I5"]))),
            results(Ok(outcome(&[])), Ok(outcome(&["I2", NO_FAULT]))),
        ] {
            assert_eq!(bad.verdict(), Verdict::Bad);
            let table = text(&bad);
            let again = "again: CHAOS_SEED=7 CHAOS_SECONDS=24 make chaos ARGS='--only name'";
            assert!(table.contains(again), "{table}");
        }
    }

    /// Goal: what could not be run is neither good nor bad, unless something else is bad.
    #[test]
    fn what_was_not_run_is_not_known() {
        let error = || Err("no etcd".to_owned());
        for unknown in [results(error(), Ok(outcome(&["I1"]))), results(Ok(outcome(&[])), error())]
        {
            assert_eq!(unknown.verdict(), Verdict::Unknown);
            assert!(text(&unknown).contains("no etcd"));
        }
        assert_eq!(results(Ok(outcome(&["I1"])), error()).verdict(), Verdict::Bad);
    }
}
