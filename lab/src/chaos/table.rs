//! What was found, for people.

use std::fmt::Write as _;

use super::load;
use super::results::{self, ControlResult, Results, ScenarioResult, Verdict};
use super::run::Outcome;
use crate::bench::markdown::rows;

/// The tables, and what is wrong.
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
        let _ = writeln!(text, "## The same without the defence\n\n{controls}");
    }
    if let Some(unfenced) = results.unfenced() {
        let counts = &unfenced.counts;
        let lost = load::lost_units(counts);
        let _ = writeln!(
            text,
            "Without the fence, with five instances and pauses of three TTL, {} of {} acknowledged \
             units were lost: {:.0} %.\n(Jepsen's analysis of etcd 3.4.3 found about 18 % under \
             pauses every five seconds.)\n",
            lost,
            counts.acknowledged_units,
            results::percent(lost, counts.acknowledged_units),
        );
    }
    for scenario in &results.scenarios {
        failures(&mut text, scenario, results);
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
        counts.refused.to_string(),
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

/// The invariants that were broken, each once.
pub(super) fn broken(outcome: &Outcome) -> String {
    let mut all: Vec<_> = outcome.findings.iter().map(|found| found.invariant.as_str()).collect();
    all.sort_unstable();
    all.dedup();
    all.join(", ")
}

/// What is wrong with a scenario and its controls, and how to see it again.
fn failures(text: &mut String, scenario: &ScenarioResult, results: &Results) {
    let Results { seed, load_seconds, .. } = results;
    let mut is_bad = false;
    match &scenario.run {
        Ok(outcome) => {
            for finding in &outcome.findings {
                is_bad = true;
                let _ = writeln!(
                    text,
                    "{}: {} is broken: {}",
                    scenario.name, finding.invariant, finding.sentence
                );
            }
            if let (Some(kept), true) = (&outcome.kept, is_bad) {
                let _ = writeln!(text, "  history and logs are in {}", kept.display());
            }
        }
        Err(error) => {
            is_bad = true;
            let _ = writeln!(text, "{}: could not be run: {error}", scenario.name);
        }
    }
    for control in &scenario.controls {
        match (&control.run, control.verdict()) {
            (_, Verdict::Good) => {}
            (Ok(outcome), _) => {
                is_bad = true;
                let _ = writeln!(
                    text,
                    "{}: the control without {} broke none of {} in {} attempts (it broke: {}; seen: {:?})",
                    scenario.name,
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
                    scenario.name, control.without
                );
            }
        }
    }
    if is_bad {
        let _ = writeln!(
            text,
            "  again: CHAOS_SEED={seed} CHAOS_SECONDS={load_seconds} make chaos ARGS='--only {}'\n",
            scenario.name
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::run::NO_FAULT;
    use loadtest::report::Violation;

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
        let told = text(&good);
        assert!(told.contains("holds") && told.contains("fails, as it must"), "{told}");
        assert!(!told.contains("again:"), "{told}");

        for bad in [
            results(Ok(outcome(&["I2"])), Ok(outcome(&["I2"]))),
            results(Ok(outcome(&[NO_FAULT])), Ok(outcome(&["I2"]))),
            results(Ok(outcome(&[])), Ok(outcome(&[]))),
            results(Ok(outcome(&[])), Ok(outcome(&["I5"]))),
            results(Ok(outcome(&[])), Ok(outcome(&["I2", NO_FAULT]))),
        ] {
            assert_eq!(bad.verdict(), Verdict::Bad);
            let told = text(&bad);
            let again = "again: CHAOS_SEED=7 CHAOS_SECONDS=24 make chaos ARGS='--only name'";
            assert!(told.contains(again), "{told}");
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
