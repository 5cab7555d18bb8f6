//! The results as data.

use serde::Serialize;

use super::run::Outcome;

/// The results of the suite.
#[derive(Debug, Default, Serialize)]
pub(super) struct Results {
    pub(super) seed: u64,
    pub(super) build: &'static str,
    /// How long each scenario sent orders.
    pub(super) load_seconds: u64,
    /// How long the suite took.
    pub(super) seconds: f64,
    pub(super) scenarios: Vec<ScenarioResult>,
}

/// The result of a scenario.
#[derive(Debug, Serialize)]
pub(super) struct ScenarioResult {
    pub(super) name: &'static str,
    pub(super) fault: &'static str,
    /// Its outcome, or why it could not run.
    pub(super) run: Result<Outcome, String>,
    pub(super) controls: Vec<ControlResult>,
}

/// The result of a control.
#[derive(Debug, Serialize)]
pub(super) struct ControlResult {
    pub(super) without: &'static str,
    /// The invariants of which one had to break.
    pub(super) breaks: Vec<&'static str>,
    /// The outcome of the last attempt, or why it could not run.
    pub(super) run: Result<Outcome, String>,
    pub(super) attempts: u32,
}

/// The verdict on a scenario, a control or the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The scenario held, or the control failed.
    Good,
    /// The scenario failed, or the control held.
    Bad,
    /// It could not run.
    Unknown,
}

impl ScenarioResult {
    /// Whether the scenario held; its controls do not count.
    pub(super) fn verdict(&self) -> Verdict {
        match &self.run {
            Ok(outcome) if outcome.findings.is_empty() => Verdict::Good,
            Ok(_) => Verdict::Bad,
            Err(_) => Verdict::Unknown,
        }
    }
}

impl ControlResult {
    /// Whether the control failed, as it must.
    pub(super) fn verdict(&self) -> Verdict {
        match &self.run {
            Ok(outcome) if outcome.broke(&self.breaks) => Verdict::Good,
            Ok(_) => Verdict::Bad,
            Err(_) => Verdict::Unknown,
        }
    }
}

impl Results {
    /// The worst verdict on any scenario or control.
    pub(super) fn verdict(&self) -> Verdict {
        let scenarios = self.scenarios.iter().map(ScenarioResult::verdict);
        let controls = self
            .scenarios
            .iter()
            .flat_map(|scenario| &scenario.controls)
            .map(ControlResult::verdict);
        let all: Vec<_> = scenarios.chain(controls).collect();
        if all.contains(&Verdict::Bad) {
            Verdict::Bad
        } else if all.contains(&Verdict::Unknown) {
            Verdict::Unknown
        } else {
            Verdict::Good
        }
    }

    /// The orders of all runs.
    pub(super) fn orders(&self) -> usize {
        self.runs().map(|outcome| outcome.counts.requests).sum()
    }

    /// The run that paused holders without the fence.
    pub(super) fn unfenced(&self) -> Option<&Outcome> {
        let scenario = self.scenarios.iter().find(|scenario| scenario.name == "holder-paused")?;
        scenario.controls.first()?.run.as_ref().ok()
    }

    /// The outcomes of all runs that could run.
    pub(super) fn runs(&self) -> impl Iterator<Item = &Outcome> {
        let controls = self.scenarios.iter().flat_map(|scenario| &scenario.controls);
        let controls = controls.filter_map(|control| control.run.as_ref().ok());
        self.scenarios.iter().filter_map(|scenario| scenario.run.as_ref().ok()).chain(controls)
    }
}
