//! The results as text.

use std::fmt::Write as _;

use loadtest::Report;
use loadtest::report::{Finding, Tally};

use super::case::Control;
use super::run::Outcome;
use super::{CaseResult, Results, Verdict};
use crate::experiment::{rows, section};

/// The tables, and every failure.
pub(super) fn text(results: &Results) -> String {
    let mut text = String::new();
    let (scenarios, controls): (Vec<_>, Vec<_>) =
        results.cases.iter().partition(|result| result.case.control.is_none());
    let head = "fault | times | orders | acknowledged | refused | unknown | resolved | pause s | bound s \
                | verdict";
    section(&mut text, "Faults", &rows(head, scenarios.into_iter().map(scenario)));
    let head = "control of | without | breaks | broke | units lost | in trial | verdict";
    let controls = rows(head, controls.into_iter().filter_map(control));
    section(&mut text, "The same without the safeguard, in at most four trials", &controls);
    for case in results.cases.iter().filter(|case| case.verdict() != Verdict::Good) {
        text += &failure(case, results);
    }
    let outcomes = results.cases.iter().filter_map(|case| case.run.as_ref().ok());
    let orders: usize = outcomes.map(|outcome| outcome.counts.requests).sum();
    let Results { seconds, seed, .. } = results;
    // writing to a string cannot fail
    let _ = writeln!(text, "{orders} orders in {seconds:.0} s, seed {seed}.");
    text
}

fn scenario(result: &CaseResult) -> String {
    let outcome = result.run.clone().unwrap_or_default();
    let (fault, verdict) = (result.case.fault, verdict(result));
    let Outcome { times, counts, bound_seconds, .. } = &outcome;
    let Report { requests, tally, longest_pause_seconds, .. } = counts;
    let Tally { acknowledged, sold_out, held_out, unknown, resolved, .. } = tally;
    let refused = sold_out + held_out;
    format!(
        "{fault} | {times} | {requests} | {acknowledged} | {refused} | {unknown} | {resolved} | \
         {longest_pause_seconds:.1} | {bound_seconds:.1} | {verdict}"
    )
}

fn control(result: &CaseResult) -> Option<String> {
    let Control { without, breaks } = result.case.control?;
    let (broke, lost) = result.run.as_ref().map(|run| (broken(run), lost(run))).unwrap_or_default();
    let (name, breaks, verdict) = (result.case.name, breaks.join(" or "), verdict(result));
    let trials = result.trials;
    Some(format!("{name} | {without} | {breaks} | {broke} | {lost} | {trials} | {verdict}"))
}

fn verdict(result: &CaseResult) -> String {
    match (&result.run, result.case.control, result.verdict()) {
        (Err(_), ..) => "NOT RUN".to_owned(),
        (Ok(_), None, Verdict::Good) => "holds".to_owned(),
        (Ok(outcome), None, _) => format!("BROKEN: {}", broken(outcome)),
        (Ok(_), Some(_), Verdict::Good) => "fails, as it must".to_owned(),
        (Ok(_), Some(_), _) => "PASSES, AND MUST NOT".to_owned(),
    }
}

fn broken(outcome: &Outcome) -> String {
    let mut all: Vec<_> = outcome.findings.iter().map(Finding::name).collect();
    all.sort_unstable();
    all.dedup();
    all.join(", ")
}

/// How many of the acknowledged units are still in stock at the end, by the first instance's state.
fn lost(outcome: &Outcome) -> String {
    let counts = &outcome.counts;
    let state = counts.after.values().next().cloned().unwrap_or_default();
    let lost = (state.stock + state.lucky - state.initial).max(0);
    format!("{lost} of {}", counts.tally.acknowledged_units)
}

/// The failure of a case, and how to repeat it.
fn failure(result: &CaseResult, results: &Results) -> String {
    let CaseResult { case, trials, run } = result;
    let Results { seed, load_seconds, .. } = results;
    let (name, title) = (case.name, case.title());
    let mut lines = match (run, case.control) {
        (Err(error), _) => vec![format!("{title}: could not be run: {error}")],
        (Ok(outcome), None) => {
            let found = outcome.findings.iter();
            found.map(|it| format!("{name}: {} is broken: {}", it.name(), it.text)).collect()
        }
        (Ok(outcome), Some(Control { breaks, .. })) => vec![format!(
            "{title}: broke none of {} in {trials} trials (it broke: {}; seen: {:?})",
            breaks.join(", "),
            broken(outcome),
            outcome.facts,
        )],
    };
    if let Ok(Outcome { kept: Some(kept), .. }) = run {
        lines.push(format!("  history and logs are in {}", kept.display()));
    }
    lines.push(format!(
        "  again: CHAOS_SEED={seed} CHAOS_SECONDS={load_seconds} make chaos ARGS='--only {name}'\n\n"
    ));
    lines.join("\n")
}

/// A line about a trial that has ended.
pub(super) fn progress(result: &CaseResult) -> String {
    let (title, verdict) = (result.case.title(), verdict(result));
    match &result.run {
        Err(error) => format!("{title}: could not be run: {error}"),
        Ok(Outcome { times, seconds, facts, .. }) => {
            format!("{title}: {verdict}; {times} times in {seconds:.0} s ({facts:?})")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::case::Case;
    use crate::chaos::run::NO_FAULT;
    use crate::chaos::scene::Scene;

    /// Goal: a scenario must hold, and its control must break what it names, by a fault that happened; a case that could not run
    /// is neither good nor bad, unless another one is bad.
    #[test]
    fn scenarios_hold_and_controls_fail() {
        let scenario = Case::new("name", "a fault", &async |_: &mut Scene| Ok(()));
        let control = scenario.without_safeguard("fence", &["I1", "I2"]);
        let again = "again: CHAOS_SEED=7 CHAOS_SECONDS=24 make chaos ARGS='--only name'";
        for (of_scenario, of_control, verdict, said) in [
            ("", "I4 I2", Verdict::Good, "fails, as it must"),
            ("I2", "I2", Verdict::Bad, again),
            (NO_FAULT, "I2", Verdict::Bad, again),
            ("", "", Verdict::Bad, again),
            ("", "I5", Verdict::Bad, again),
            ("", "I2 fault", Verdict::Bad, again),
            ("no etcd", "I1", Verdict::Unknown, "no etcd"),
            ("", "no etcd", Verdict::Unknown, "no etcd"),
            ("I1", "no etcd", Verdict::Bad, "no etcd"),
        ] {
            let result = |case, trials, found: &str| {
                let found = Some(found).filter(|found| *found != "no etcd").ok_or("no etcd");
                let findings = |found: &str| -> Vec<_> {
                    found.split_whitespace().map(|name| Finding::new(name, "broken")).collect()
                };
                let outcome = |found| Outcome { findings: findings(found), ..Outcome::default() };
                CaseResult { case, trials, run: found.map(outcome).map_err(str::to_owned) }
            };
            let cases = vec![result(scenario, 1, of_scenario), result(control, 4, of_control)];
            let results = Results { seed: 7, load_seconds: 24, cases, ..Results::default() };
            let table = text(&results);
            assert_eq!(results.verdict(), verdict, "{table}");
            assert_eq!(table.contains("again:"), verdict != Verdict::Good, "{table}");
            assert!(table.contains(said), "{table}");
        }
    }
}
