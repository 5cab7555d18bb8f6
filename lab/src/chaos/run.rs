//! One run, from its start to its outcome.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use loadtest::Report;
use loadtest::report::Violation;
use rand::SeedableRng as _;
use rand_xoshiro::SplitMix64;
use serde::Serialize;
use testkit::{OwnedDir, PrivateEtcd, PrivateRedis};
use tokio::time::Instant;

use super::load;
use super::scenario::Run;
use super::scene::Scene;
use crate::error::LabError;

/// How long the load test may take after its load: the last orders, and reading the ledger.
const OVERTIME: Duration = Duration::from_mins(3);

/// The invariant that the fault must happen.
pub(super) const NO_FAULT: &str = "fault";

/// The outcome of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Outcome {
    pub(super) seed: u64,
    /// How often the fault was injected.
    pub(super) times: u64,
    /// What was seen of it, and how often.
    pub(super) facts: BTreeMap<&'static str, u64>,
    pub(super) counts: Report,
    /// The longest pause that the sale may make (I5).
    pub(super) bound_seconds: f64,
    /// What is wrong; empty if every invariant held.
    pub(super) findings: Vec<Violation>,
    pub(super) seconds: f64,
    /// The directory with history and logs, if they were kept.
    pub(super) kept: Option<PathBuf>,
}

impl Outcome {
    /// Whether the fault happened and one of these invariants was broken.
    pub(super) fn broke(&self, invariants: &[&str]) -> bool {
        self.findings.iter().all(|found| found.invariant != NO_FAULT)
            && self.findings.iter().any(|found| invariants.contains(&found.invariant.as_str()))
    }
}

/// A run with its name, times and seed.
pub(super) struct Plan<'a> {
    /// The name of the scenario, and of the control.
    pub(super) name: &'a str,
    pub(super) run: &'a Run,
    pub(super) lasts: Duration,
    /// Whether the sale may hang until its instances are restarted.
    pub(super) may_hang: bool,
    pub(super) seed: u64,
    /// The directory for history and logs.
    pub(super) out: &'a Path,
}

impl Plan<'_> {
    /// Starts everything, sends orders, injects the fault, and judges.
    pub(super) async fn run(&self, dir: &OwnedDir) -> Result<Outcome, LabError> {
        let began = Instant::now();
        let history = self.prepare().map_err(LabError::system("a directory cannot be made"))?;
        let rng = rng(self.seed, self.name);
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
            // the checker finds that the sale hangs
            Err(LabError::NotInTime { .. }) if self.may_hang => {}
            Err(error) => return Err(error),
        }
        if self.may_hang {
            scene.revive().await?;
        }
        // the checker judges, not this report
        load.report(self.lasts + OVERTIME).await?;
        let bound = scene.evidence.longest_outage + self.run.goes_on_within;
        let (counts, mut findings) = load::check(scene, history, bound).await?;
        findings.retain(|found| !self.run.setup.tolerates.contains(&found.invariant.as_str()));
        let evidence = &mut scene.evidence;
        findings.append(&mut evidence.findings);
        let proof = self.run.proof;
        if evidence.times == 0 || evidence.count(proof) == 0 {
            let message = format!("the fault did not happen: not seen: {proof}");
            findings.push(Violation::new(NO_FAULT, message));
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
        // an earlier run's files would be taken for this one's
        match std::fs::remove_dir_all(self.out) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => std::fs::create_dir_all(self.out)?,
        }
        Ok(self.out.join("history.jsonl"))
    }

    /// Copies the logs, as far as possible.
    fn keep_logs(&self, scene: &Scene) {
        let mut dirs = vec![scene.cluster.dir.path(), scene.cluster.redis.dir()];
        dirs.extend(scene.cluster.etcd.iter().map(PrivateEtcd::dir));
        let watched = scene.cluster.sentinels.iter();
        let watched = watched.flat_map(|all| all.sentinels.iter().chain(&all.replicas));
        dirs.extend(watched.map(PrivateRedis::dir));
        for (n, dir) in dirs.into_iter().enumerate() {
            for entry in std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
                let name = entry.file_name().to_string_lossy().into_owned();
                let is_log = Path::new(&name).extension().is_some_and(|ending| ending == "log");
                if is_log {
                    // the members of etcd have logs of one name
                    let kept = if n < 3 { name } else { format!("{n}-{name}") };
                    let _ = std::fs::copy(entry.path(), self.out.join(kept));
                }
            }
        }
    }

    /// Removes the files of a run that went as it should.
    pub(super) fn forget(&self, outcome: &mut Outcome) {
        if std::fs::remove_dir_all(self.out).is_ok() {
            outcome.kept = None;
        }
    }
}

/// The random choices of this run: those of other runs do not change them.
fn rng(seed: u64, name: &str) -> SplitMix64 {
    // FNV-1a
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    SplitMix64::seed_from_u64(seed ^ hash)
}

#[cfg(test)]
mod tests {
    use rand::Rng as _;

    use super::*;

    /// Goal: a seed repeats a run, and each run has choices of its own.
    #[test]
    fn the_seed_decides() {
        let choice = |seed, name| rng(seed, name).next_u64();
        assert_eq!(choice(7, "a"), choice(7, "a"));
        assert_ne!(choice(7, "a"), choice(8, "a"));
        assert_ne!(choice(7, "a"), choice(7, "b"));
    }
}
