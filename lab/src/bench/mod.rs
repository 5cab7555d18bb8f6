//! The `bench` command: compares the guarded sale with other guards and with no guard on this machine.
//!
//! A load is a `Case`. Cases on the same instances follow each other, and all take turns in rounds on the
//! same etcd and the same Redis. Ratios are computed within a round, so that they hold on other machines as well.
//!
//! # Layout
//! - [`BenchOptions`], [`Contender`], [`run()`]: the flags, the contenders, and the whole run
//! - `case`: the loads
//! - `ratios`, `table`: what the results say, as text

mod case;
mod options;
mod ratios;
mod table;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use serde::Serialize;
use testkit::{EtcdOptions, OwnedDir, RedisOptions};

use self::case::Measured;
pub use self::options::{BenchOptions, Contender, Measure};
use self::ratios::Finding;
use crate::experiment::{self, FAULTS, Machine, machine, publish};
use testkit::cluster::Cluster;

#[derive(Debug, Default, Serialize)]
struct Results {
    machine: Machine,
    findings: Vec<Finding>,
    /// Loads in which an order was not answered or not accounted for. Any of them fails the run.
    faults: Vec<String>,
    cases: Vec<Measured>,
}

impl Results {
    fn case(&self, measure: Measure, contender: Contender) -> Option<&Measured> {
        self.of(measure).find(|one| one.case.contender == contender)
    }

    /// The case of this contender at this distance.
    fn distant(
        &self,
        measure: Measure,
        contender: Contender,
        far: Option<(u64, u64)>,
        instances: usize,
        connections: usize,
    ) -> Option<&Measured> {
        self.of(measure).find(|Measured { case, .. }| {
            (case.contender, case.far) == (contender, far)
                && (case.instances, case.connections) == (instances, connections)
        })
    }

    fn of(&self, measure: Measure) -> impl Iterator<Item = &Measured> {
        self.cases.iter().filter(move |one| one.case.measure == measure)
    }
}

/// Takes the measures, prints the results, and writes results.json and tables.md.
///
/// The exit code is 0 if every load was answered and accounted for, 1 if not, 2 without results.
pub async fn run(options: BenchOptions) -> ExitCode {
    experiment::run("bench", async |dir| Box::pin(bench(&options, dir)).await).await
}

async fn bench(options: &BenchOptions, dir: &OwnedDir) -> Result<ExitCode> {
    let mut results = Results { machine: machine(), ..Results::default() };
    let mut cluster =
        Cluster::open(dir, 1, EtcdOptions::default(), RedisOptions::default()).await?;
    let mut failure = None;
    for (rounds, mut stages) in case::stages(options) {
        failure = case::run(&mut cluster, rounds, &mut stages, options).await.err();
        // results from before the failure count
        results.cases.extend(stages.into_iter().flatten());
        if failure.is_some() {
            break;
        }
    }
    let stopped = cluster.stop().await.and(cluster.remove().await);
    stopped.context("not everything is stopped")?;

    let failure = failure.map(|error| format!("stopped: {error:#}"));
    results.faults =
        failure.into_iter().chain(results.cases.iter().flat_map(Measured::faults)).collect();
    results.findings = ratios::findings(&results);
    let mut text = table::text(&results);
    if options.short {
        text.push_str("A short run: the figures mean nothing.\n");
    }
    publish(&options.out, &results, &text)?;
    Ok(if results.faults.is_empty() { ExitCode::SUCCESS } else { FAULTS.into() })
}
