//! The clients: the load test as a process of its own, and its checker.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use testkit::Child;
use tokio::time::timeout;

use super::error::ChaosError;
use super::evidence::Finding;
use super::scene::Scene;
use crate::LOADTEST;
use crate::demo::instance::is_setting;

/// How long one order may take, asking again included; an attempt may take half of it,
/// unless a row has it otherwise.
pub(super) const ORDER_TIMEOUT: Duration = Duration::from_secs(8);

/// How long the load test may take beyond its load: the last orders, and reading the ledger.
const OVERTIME: Duration = Duration::from_mins(3);

/// How long checking a history may take.
const CHECK_TIMEOUT: Duration = Duration::from_mins(5);

/// How long it may take to end when asked to.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// How much of what it said is shown when it failed.
const TAIL_BYTES: usize = 2000;

/// What the clients saw.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Counts {
    /// Orders that were sent.
    #[serde(alias = "requests")]
    pub(super) orders: u64,
    /// How often they were sent, asking again included.
    pub(super) attempts: u64,
    pub(super) acknowledged: u64,
    /// Told that nothing is left.
    pub(super) refused: u64,
    /// Never answered.
    pub(super) unknown: u64,
    /// Answered after an attempt that was not.
    pub(super) resolved: u64,
    /// Of the unknown ones: clients that went away on purpose.
    pub(super) abandoned: u64,
    /// Attempts that an instance refused since it had lost the lock without knowing.
    pub(super) stale_tokens: u64,
    pub(super) acknowledged_units: u64,
    /// Units that were sold and are still in stock.
    pub(super) lost_units: u64,
    pub(super) longest_pause_seconds: f64,
}

/// What the checker says of a history.
#[derive(Clone, Debug, Deserialize)]
struct Checked {
    #[serde(flatten)]
    counts: Counts,
    violations: Vec<Finding>,
    reasons: Vec<Reason>,
    /// What each instance said at the end.
    after: BTreeMap<String, State>,
}

/// The stock.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct State {
    stock: i64,
    lucky: i64,
    initial: i64,
}

/// Something that is wrong with a run, a violation or not.
#[derive(Clone, Debug, Deserialize)]
struct Reason {
    kind: String,
    text: String,
}

/// A load that runs.
#[derive(Debug)]
pub(super) struct Load {
    child: Child,
    pub(super) history: PathBuf,
    lasts: Duration,
}

impl Load {
    /// Starts to send orders to all instances of the scene, and to write down what became of them.
    pub(super) fn start(
        scene: &Scene,
        lasts: Duration,
        seed: u64,
        history: &Path,
    ) -> Result<Self, ChaosError> {
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
        if plan.alone {
            args.push("--alone".to_owned());
        }
        args.extend(["--tokens", "--json"].map(str::to_owned));
        args.extend(plan.flags.iter().map(|&flag| flag.to_owned()));
        args.extend(scene.urls());
        let child = start(scene, "load", &args)?;
        Ok(Self { child, history: history.to_owned(), lasts })
    }

    /// Waits for its end; what it thinks of the run is not asked: the checker is.
    pub(super) async fn end(mut self) -> Result<PathBuf, ChaosError> {
        let ended = timeout(self.lasts + OVERTIME, self.child.wait()).await;
        let status = ended
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(ChaosError::system("the load test does not end"))?;
        if matches!(status.code(), Some(0 | 1)) {
            Ok(self.history)
        } else {
            Err(ChaosError::NoReport(tail(&said(&self.child))))
        }
    }
}

/// Has a history checked; the sale may have paused for `longest_pause`.
pub(super) async fn check(
    scene: &Scene,
    history: &Path,
    longest_pause: Duration,
) -> Result<(Counts, Vec<Finding>), ChaosError> {
    let pause = format!("{}ms", longest_pause.as_millis());
    let args = ["check", &history.to_string_lossy(), "--longest-pause", &pause, "--json"];
    let mut child = start(scene, "check", &args.map(str::to_owned))?;
    let ended = timeout(CHECK_TIMEOUT, child.wait()).await;
    let status = ended
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(ChaosError::system("the checker does not end"))?;
    let said = said(&child);
    // what it says to people comes before the report, in the same file
    let report = said.find("{\n").and_then(|start| {
        let mut reports = serde_json::Deserializer::from_str(&said[start..]).into_iter();
        reports.next()?.ok()
    });
    let report: Option<Checked> = report;
    match (status.code(), report) {
        (Some(0 | 1), Some(checked)) => {
            let State { stock, lucky, initial } =
                checked.after.values().next().copied().unwrap_or_default();
            let lost_units = u64::try_from(stock + lucky - initial).unwrap_or(0);
            Ok((Counts { lost_units, ..checked.counts }, findings(checked)))
        }
        _ => Err(ChaosError::NotChecked(tail(&said))),
    }
}

/// The violations, and what else is wrong: answers that are neither yes nor no.
fn findings(checked: Checked) -> Vec<Finding> {
    let Checked { mut violations, reasons, .. } = checked;
    let is_told = |text: &str| violations.iter().any(|told| text.ends_with(&told.sentence));
    let others: Vec<_> = reasons
        .into_iter()
        .filter(|reason| !is_told(&reason.text))
        .map(|reason| Finding::new(&reason.kind, reason.text))
        .collect();
    violations.extend(others);
    violations
}

fn start(scene: &Scene, what: &str, args: &[String]) -> Result<Child, ChaosError> {
    let log = scene.dir.path().join(format!("{what}.log"));
    let program = &scene.stage().program;
    let args = std::iter::once(LOADTEST).chain(args.iter().map(String::as_str));
    Child::start(program, args, &scene.dir, &log, STOP_GRACE, is_setting)
        .map_err(ChaosError::system("the load test could not be started"))
}

fn said(child: &Child) -> String {
    std::fs::read_to_string(child.log()).unwrap_or_else(|error| error.to_string())
}

fn tail(said: &str) -> String {
    said[said.floor_char_boundary(said.len().saturating_sub(TAIL_BYTES))..].to_owned()
}
