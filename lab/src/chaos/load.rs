//! The clients: the load test, and its checker.

use std::path::Path;
use std::time::Duration;

use loadtest::Report;
use loadtest::report::Violation;

use super::scene::Scene;
use crate::error::LabError;
use crate::load::Load;

/// How long one order may take, asking again included; an attempt may take half of it,
/// unless a scenario has it otherwise.
pub(super) const ORDER_TIMEOUT: Duration = Duration::from_secs(8);

/// How long checking a history may take.
const CHECK_TIMEOUT: Duration = Duration::from_mins(5);

/// Starts to send orders to all instances of the scene, and to write down what became of them.
pub(super) fn start(
    scene: &Scene,
    lasts: Duration,
    seed: u64,
    history: &Path,
) -> Result<Load, LabError> {
    let plan = scene.setup.load;
    let mut args = Vec::new();
    let mut flag = |name: &str, value: String| args.extend([name.to_owned(), value]);
    flag("--duration", format!("{}ms", lasts.as_millis()));
    flag("--rate", plan.rate.to_string());
    flag("--concurrency", plan.connections.to_string());
    flag("--stock", plan.stock.to_string());
    flag("--seed", seed.to_string());
    flag("--timeout", format!("{}ms", ORDER_TIMEOUT.as_millis()));
    flag("--history", history.to_string_lossy().into_owned());
    args.extend(plan.alone.then(|| "--alone".to_owned()));
    args.push("--tokens".to_owned());
    args.extend(plan.flags.iter().map(|&flag| flag.to_owned()));
    args.extend(scene.cluster.urls());
    Load::start(&scene.cluster, &args, false)
}

/// Has a history checked; the sale may have paused for `longest_pause`. Beside the report, returns what must not
/// be: the violations, and what else is wrong, such as answers that are neither yes nor no.
pub(super) async fn check(
    scene: &Scene,
    history: &Path,
    longest_pause: Duration,
) -> Result<(Report, Vec<Violation>), LabError> {
    let pause = format!("{}ms", longest_pause.as_millis());
    let args = ["check", &history.to_string_lossy(), "--longest-pause", &pause];
    let checker = Load::start(&scene.cluster, &args.map(str::to_owned), false)?;
    let report = checker.report(CHECK_TIMEOUT).await?;
    let mut found = report.violations.clone();
    let is_told = |text: &str| found.iter().any(|told| text.ends_with(&told.sentence));
    let others = report.reasons.iter().filter(|reason| !is_told(&reason.text));
    let others: Vec<_> =
        others.map(|reason| Violation::new(&reason.kind, reason.text.clone())).collect();
    found.extend(others);
    Ok((report, found))
}

/// Units that were sold and are still in stock, as the first instance said at the end.
pub(super) fn lost_units(report: &Report) -> u64 {
    let state = report.after.values().next().cloned().unwrap_or_default();
    u64::try_from(state.stock + state.lucky - state.initial).unwrap_or(0)
}
