//! One run, from its start to its outcome.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use loadtest::report::Finding;
use loadtest::{Limits, Report};
use serde::Serialize;
use testkit::OwnedDir;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::case::{Case, WHOLE_FAULT};
use super::scene::Scene;
use crate::experiment::random;
use crate::load::Load;

/// The time limit of an order with its retries; an attempt may take half of it, unless the case says otherwise.
const ORDER_TIMEOUT: &str = "8s";

/// How long the load test may take after its load: the last orders, and reading the ledger.
const OVERTIME: Duration = Duration::from_mins(3);

/// Within such a stretch, each instance sells something.
const RECOVERED: Duration = Duration::from_secs(1);

/// Findings of the load test that do not count in any case: orders that a busy machine did not send in time.
const NOT_JUDGED: [&str; 1] = ["not_sent"];

/// The invariant that the fault must happen.
pub(super) const NO_FAULT: &str = "fault";

/// The record of a run, and how it ended.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Outcome {
    pub(super) times: u64,
    /// The facts that were seen of the fault, and how often each.
    pub(super) facts: BTreeMap<&'static str, u64>,
    pub(super) counts: Report,
    /// The longest time in which a fault kept all instances from selling.
    #[serde(skip)]
    pub(super) longest_outage: Duration,
    /// The longest pause that the sale may make (I5).
    pub(super) bound_seconds: f64,
    /// The broken invariants; empty if every one held.
    pub(super) findings: Vec<Finding>,
    pub(super) seconds: f64,
    /// The directory with history and logs, if they were kept.
    pub(super) kept: Option<PathBuf>,
}

impl Outcome {
    pub(super) fn add(&mut self, what: &'static str, times: u64) {
        if times > 0 {
            *self.facts.entry(what).or_default() += times;
        }
    }

    /// Records that no instance could sell for this time.
    pub(super) fn outage(&mut self, lasted: Duration) {
        self.longest_outage = self.longest_outage.max(lasted);
    }

    /// Records that an invariant does not hold.
    pub(super) fn broken(&mut self, invariant: &str, message: impl Into<String>) {
        self.findings.push(Finding::new(invariant, message));
    }
}

pub(super) struct Run<'a> {
    pub(super) case: &'a Case,
    pub(super) lasts: Duration,
    pub(super) seed: u64,
    /// The directory for history and logs.
    pub(super) out: &'a Path,
}

impl Run<'_> {
    /// Starts everything, sends orders, injects the fault, and judges.
    pub(super) async fn run(&self, dir: &OwnedDir) -> Result<Outcome> {
        let began = Instant::now();
        // remove an earlier run's files, which would be taken for this run's
        match std::fs::remove_dir_all(self.out) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => std::fs::create_dir_all(self.out)?,
        }
        let random = random(self.seed, &self.case.title());
        let mut scene = Scene::open(dir, self.case, random).await?;
        let judged = self.inject(&mut scene).await;
        if judged.is_err() || !scene.evidence.findings.is_empty() {
            keep_logs(scene.cluster.dir.path(), self.out);
        }
        let mut outcome = std::mem::take(&mut scene.evidence);
        scene.close().await?;
        judged?;
        outcome.seconds = began.elapsed().as_secs_f64();
        Ok(outcome)
    }

    async fn inject(&self, scene: &mut Scene) -> Result<()> {
        let Case { goes_on_within, proof, tolerates, .. } = *self.case;
        let history = self.out.join("history.jsonl");
        let load = self.send_orders(scene, &history)?;
        scene.ends_at = Instant::now() + self.lasts;
        if self.case.crowded {
            scene.add_other_locks().await?;
        }
        let injected = async {
            while scene.next_round().await {
                self.case.inject.inject(scene).await?;
                scene.evidence.add(WHOLE_FAULT, 1);
            }
            if self.case.control.is_none()
                && let Err(error) = scene.until_all_sell(RECOVERED).await
            {
                scene.evidence.broken("recovery", format!("after the fault: {error:#}"));
            }
            scene.record_totals().await
        };
        match injected.await {
            // the checker will report that the sale hangs
            Err(error) if self.case.may_hang() && is_late(&error) => {}
            done => done?,
        }
        if self.case.may_hang() {
            scene.restart_if_it_stands().await?;
        }
        // the checker decides the verdict, not this report
        load.report(self.lasts + OVERTIME).await?;
        let bound = scene.evidence.longest_outage + goes_on_within;
        let limits = Limits { longest_pause: bound, longest_order: None };
        let counts = spawn_blocking(move || loadtest::check(&history, limits)).await??;
        let mut findings = counts.findings.clone();
        findings.retain(|found| {
            !NOT_JUDGED.contains(&&*found.kind) && !tolerates.contains(&&*found.kind)
        });
        let evidence = &mut scene.evidence;
        evidence.findings.splice(..0, findings);
        if !evidence.facts.contains_key(proof) {
            evidence.broken(NO_FAULT, format!("the fault did not happen: not seen: {proof}"));
        }
        let refused = counts.tally.sold_out + counts.tally.held_out;
        if self.case.control.is_none() && refused == 0 {
            evidence.broken(NO_FAULT, "there were always units left");
        }
        evidence.counts = counts;
        evidence.bound_seconds = bound.as_secs_f64();
        evidence.kept = Some(self.out.to_owned());
        Ok(())
    }

    /// Starts to send orders to all instances and to record their outcomes.
    fn send_orders(&self, scene: &Scene, history: &Path) -> Result<Load> {
        let Case { rate, connections, stock, others_order, load_flags, conduct, control, .. } =
            *self.case;
        let (lasts, seed) = (self.lasts.as_millis(), self.seed);
        let flags = format!(
            "--duration {lasts}ms --rate {rate} --concurrency {connections} --stock {stock} --seed {seed} \
             --timeout {ORDER_TIMEOUT} --tokens --history"
        );
        let mut args: Vec<_> = flags.split(' ').map(str::to_owned).collect();
        args.push(history.display().to_string());
        args.extend((!others_order).then(|| "--alone".to_owned()));
        // in a control, only the fault may break something, not repeated orders
        args.extend(control.map(|_| "--again=0".to_owned()));
        args.extend(load_flags.iter().chain(conduct).map(|&flag| flag.to_owned()));
        args.extend(scene.cluster.urls());
        Load::start(&scene.cluster.program, &scene.cluster.dir, &args)
    }
}

/// Whether the error says that something did not happen in time.
fn is_late(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|it| it.kind() == io::ErrorKind::TimedOut)
}

/// Copies the logs of all processes, as far as possible.
fn keep_logs(dir: &Path, out: &Path) {
    for path in std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            keep_logs(&path, out);
        } else if path.extension().is_some_and(|ending| ending == "log") {
            // logs of several servers may have the same name
            let names = [dir.file_name(), path.file_name()].map(Option::unwrap_or_default);
            let _ = std::fs::copy(&path, out.join(names.join("-".as_ref())));
        }
    }
}
