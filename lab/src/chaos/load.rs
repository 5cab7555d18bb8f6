//! The load test and its checker.

use std::path::Path;
use std::time::Duration;

use loadtest::Report;
use loadtest::report::Violation;

use super::scene::Scene;
use crate::error::LabError;
use demo::load::Load;

/// How long an order may take with its retries; an attempt may take half of it, unless the scenario says
/// otherwise.
pub(super) const ORDER_TIMEOUT: Duration = Duration::from_secs(8);

/// How long the check of a history may take.
const CHECK_TIMEOUT: Duration = Duration::from_mins(5);

/// Starts to send orders to all instances and to record their outcomes.
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
    Ok(Load::start(&scene.cluster, &args, false)?)
}

/// Checks a history in which the sale may have paused for `longest_pause`. Returns the report, and the
/// violations with everything else that is wrong, such as unanswered orders.
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
    let is_found = |text: &str| found.iter().any(|finding| text.ends_with(&finding.sentence));
    let others = report.reasons.iter().filter(|reason| !is_found(&reason.text));
    let others: Vec<_> =
        others.map(|reason| Violation::new(&reason.kind, reason.text.clone())).collect();
    found.extend(others);
    Ok((report, found))
}
