//! What was found, as data.

use serde::Serialize;

use super::run::Outcome;

/// All that was found.
#[derive(Debug, Default, Serialize)]
pub(super) struct Results {
    pub(super) seed: u64,
    pub(super) build: &'static str,
    /// How long each scenario sent orders.
    pub(super) load_seconds: u64,
    /// How long all of it took.
    pub(super) seconds: f64,
    pub(super) scenarios: Vec<ScenarioResult>,
}

/// A scenario, as it is told.
#[derive(Debug, Serialize)]
pub(super) struct ScenarioResult {
    pub(super) name: &'static str,
    pub(super) fault: &'static str,
    /// What it came to, or why it came to nothing.
    pub(super) run: Result<Outcome, String>,
    pub(super) controls: Vec<ControlResult>,
}

/// A control, as it is told.
#[derive(Debug, Serialize)]
pub(super) struct ControlResult {
    pub(super) without: &'static str,
    /// One of these had to break.
    pub(super) breaks: Vec<&'static str>,
    /// The last attempt, or why it came to nothing.
    pub(super) run: Result<Outcome, String>,
    pub(super) attempts: u32,
}

/// How a scenario, or a control, did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// As it should.
    Good,
    /// Not as it should.
    Bad,
    /// It could not be found out.
    Unknown,
}

impl ScenarioResult {
    /// Of the scenario alone.
    pub(super) fn verdict(&self) -> Verdict {
        match &self.run {
            Ok(outcome) if outcome.findings.is_empty() => Verdict::Good,
            Ok(_) => Verdict::Bad,
            Err(_) => Verdict::Unknown,
        }
    }
}

impl ControlResult {
    /// Good if it failed as it must.
    pub(super) fn verdict(&self) -> Verdict {
        match &self.run {
            Ok(outcome) if outcome.broke(&self.breaks) => Verdict::Good,
            Ok(_) => Verdict::Bad,
            Err(_) => Verdict::Unknown,
        }
    }
}

impl Results {
    /// Of the whole.
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

    /// Orders that were sent in all runs that came to something.
    pub(super) fn orders(&self) -> usize {
        self.runs().map(|outcome| outcome.counts.requests).sum()
    }

    /// The run in which holders were paused and nothing refused their writes.
    pub(super) fn unfenced(&self) -> Option<&Outcome> {
        let scenario = self.scenarios.iter().find(|scenario| scenario.name == "holder-paused")?;
        scenario.controls.first()?.run.as_ref().ok()
    }

    /// Every run that came to something.
    pub(super) fn runs(&self) -> impl Iterator<Item = &Outcome> {
        let controls = self.scenarios.iter().flat_map(|scenario| &scenario.controls);
        let controls = controls.filter_map(|control| control.run.as_ref().ok());
        self.scenarios.iter().filter_map(|scenario| scenario.run.as_ref().ok()).chain(controls)
    }
}

/// A share in percent.
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
    let share = part as f64 / whole.max(1) as f64;
    share * 100.0
}
