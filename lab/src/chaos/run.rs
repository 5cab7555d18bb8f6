//! One run from its beginning to its judgement.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use loadtest::Report;
use loadtest::report::Violation;
use serde::Serialize;
use testkit::{OwnedDir, PrivateEtcd};
use tokio::time::Instant;

use super::load;
use super::rng::Rng;
use super::scenario::Run;
use super::scene::Scene;
use crate::error::LabError;

/// How long the load test may take beyond its load: the last orders, and reading the ledger.
const OVERTIME: Duration = Duration::from_mins(3);

/// The invariant of a fault that did not happen.
pub(super) const NO_FAULT: &str = "fault";

/// What one run came to.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Outcome {
    pub(super) seed: u64,
    /// How often the fault was injected.
    pub(super) times: u64,
    /// What was seen of it, and how often.
    pub(super) facts: BTreeMap<&'static str, u64>,
    pub(super) counts: Report,
    /// The longest pause of the sale that is allowed (I5).
    pub(super) bound_seconds: f64,
    /// What must not be; empty if all held.
    pub(super) findings: Vec<Violation>,
    pub(super) seconds: f64,
    /// Where the history and the logs are, if they were kept.
    pub(super) kept: Option<PathBuf>,
}

impl Outcome {
    /// Whether one of these was broken, by a fault that did happen.
    pub(super) fn broke(&self, invariants: &[&str]) -> bool {
        self.happened()
            && self.findings.iter().any(|found| invariants.contains(&found.invariant.as_str()))
    }

    pub(super) fn happened(&self) -> bool {
        self.findings.iter().all(|found| found.invariant != NO_FAULT)
    }
}

/// How a run is made.
pub(super) struct Plan<'a> {
    /// The scenario, and the control if it is one.
    pub(super) name: &'a str,
    pub(super) run: &'a Run,
    pub(super) lasts: Duration,
    /// Whether the sale may hang for good.
    pub(super) may_hang: bool,
    pub(super) seed: u64,
    /// Where the history is written, and the logs are kept.
    pub(super) out: &'a Path,
}

impl Plan<'_> {
    /// Starts everything, sends orders, injects the fault, and judges.
    pub(super) async fn run(&self, dir: &OwnedDir) -> Result<Outcome, LabError> {
        let began = Instant::now();
        let history = self.prepare().map_err(LabError::system("a directory cannot be made"))?;
        let rng = Rng::new(self.seed, self.name);
        let mut scene = Scene::open(dir, self.run, rng).await?;
        let judged = self.inject(&mut scene, &history).await;
        if judged.as_ref().map_or(true, |judged| !judged.findings.is_empty()) {
            self.keep_logs(&scene);
        }
        scene.close().await?;
        let mut outcome = judged?;
        outcome.seconds = began.elapsed().as_secs_f64();
        Ok(outcome)
    }

    async fn inject(&self, scene: &mut Scene, history: &Path) -> Result<Outcome, LabError> {
        let load = load::start(scene, self.lasts, self.seed, history)?;
        scene.begin(self.lasts, self.may_hang);
        match (self.run.inject)(scene).await {
            Ok(()) => {}
            // what cannot come about in a sale that hangs is for the checker to tell
            Err(LabError::NotInTime { .. }) if self.may_hang => {}
            Err(error) => return Err(error),
        }
        if self.may_hang {
            scene.revive().await?;
        }
        // what it thinks of the run is not asked: the checker is
        load.report(self.lasts + OVERTIME).await?;
        let bound = scene.evidence.longest_outage + self.run.goes_on_within;
        let (counts, mut findings) = load::check(scene, history, bound).await?;
        findings.retain(|found| !self.run.setup.tolerates.contains(&found.invariant.as_str()));
        let evidence = &mut scene.evidence;
        findings.append(&mut evidence.findings);
        let proof = self.run.proof;
        if evidence.times == 0 || evidence.count(proof) == 0 {
            let sentence = format!("the fault did not happen: not seen: {proof}");
            findings.push(Violation::new(NO_FAULT, sentence));
        }
        Ok(Outcome {
            seed: self.seed,
            times: evidence.times,
            facts: evidence.facts.clone(),
            counts,
            bound_seconds: bound.as_secs_f64(),
            findings,
            seconds: 0.0,
            kept: Some(self.out.to_owned()),
        })
    }

    fn prepare(&self) -> io::Result<PathBuf> {
        // what an earlier run left there would be taken for this one's
        match std::fs::remove_dir_all(self.out) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => std::fs::create_dir_all(self.out)?,
        }
        Ok(self.out.join("history.jsonl"))
    }

    /// Best effort: what cannot be copied is missing, and no reason for another verdict.
    fn keep_logs(&self, scene: &Scene) {
        let mut dirs = vec![scene.cluster.dir.path(), scene.cluster.redis.dir()];
        dirs.extend(scene.cluster.etcd.iter().map(PrivateEtcd::dir));
        for (n, dir) in dirs.into_iter().enumerate() {
            for entry in std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
                let name = entry.file_name().to_string_lossy().into_owned();
                let is_log = Path::new(&name).extension().is_some_and(|ending| ending == "log");
                if is_log {
                    // members of etcd call their logs the same
                    let kept = if n < 3 { name } else { format!("{n}-{name}") };
                    let _ = std::fs::copy(entry.path(), self.out.join(kept));
                }
            }
        }
    }

    /// Removes what was written: the run held.
    pub(super) fn forget(&self, outcome: &mut Outcome) {
        if std::fs::remove_dir_all(self.out).is_ok() {
            outcome.kept = None;
        }
    }
}
