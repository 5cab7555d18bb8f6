//! Runs the bench.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::ValueEnum as _;
use flash_sale::error_chain::ErrorChain;
use testkit::{EtcdOptions, OwnedDir, RedisOptions};

use super::contender::Contender;
use super::contest::{self, Round};
use super::machine::{Machine, load_average};
use super::options::{BenchOptions, Measure};
use super::results::Results;
use super::scale::Scale;
use super::{chart, distance, load, memory, ratios, sweep, table};
use crate::error::LabError;
use demo::cluster::Cluster;

const FAULTS: u8 = 1;
const NO_RESULTS: u8 = 2;

/// Takes the measures, prints the results, and writes results.json and the charts.
///
/// The exit code is 0 if every load was answered and accounted for, 1 if not, 2 without results.
pub async fn run(options: BenchOptions) -> ExitCode {
    match Box::pin(bench(&options)).await {
        Ok(results) if results.faults.is_empty() => ExitCode::SUCCESS,
        Ok(_) => FAULTS.into(),
        Err(error) => {
            note(&format!("lab bench: {}", ErrorChain(&error)));
            NO_RESULTS.into()
        }
    }
}

async fn bench(options: &BenchOptions) -> Result<Results, LabError> {
    let load_average = load_average();
    let mut scale = if options.short { Scale::short() } else { Scale::full() };
    if let Some(rounds) = options.rounds {
        scale.rounds = rounds;
        scale.sweep_rounds = scale.sweep_rounds.min(rounds);
        scale.distance_rounds = rounds;
    }
    let dir =
        OwnedDir::create().map_err(LabError::system("no temporary directory could be made"))?;
    let mut cluster =
        Cluster::open(&dir, 1, EtcdOptions::default(), RedisOptions::default()).await?;
    let machine = Machine::look(&cluster, load_average).await;
    let mut results = Results {
        machine,
        scale,
        findings: Vec::new(),
        faults: Vec::new(),
        left_out: Vec::new(),
        rounds: Vec::new(),
        sweeps: Vec::new(),
        distances: Vec::new(),
        memory: None,
    };
    let all = Contender::value_variants().iter().copied();
    let contenders: Vec<_> = all.filter(|one| options.wants_contender(*one)).collect();
    measure(&mut cluster, options, &contenders, &mut results).await?;
    let stopped = cluster.stop().await.and(cluster.remove().await).and(dir.remove().await);
    stopped.map_err(LabError::system("not everything is stopped"))?;

    results.faults = results
        .loads()
        .filter_map(|(what, load)| Some(format!("{what}: {}", load::fault(load)?)))
        .collect();
    results.findings = ratios::findings(&results);
    let mut text = table::text(&results, &contenders);
    if options.short {
        text.push_str("A short run: the figures mean nothing.\n");
    }
    // if this fails, the files remain
    let _ = write!(io::stdout(), "{text}");
    write(&options.out, &results, &contenders, &text)
        .map_err(LabError::system("the results could not be written"))?;
    note(&format!("results.json, tables.md and plots are in {}", options.out.display()));
    Ok(results)
}

async fn measure(
    cluster: &mut Cluster,
    options: &BenchOptions,
    contenders: &[Contender],
    results: &mut Results,
) -> Result<(), LabError> {
    let compares = [Measure::Throughput, Measure::SoldOut, Measure::Burst, Measure::Handovers]
        .into_iter()
        .any(|measure| options.wants(measure));
    let rounds = if compares { results.scale.rounds } else { 0 };
    for number in 1..=rounds {
        note(&format!("round {number} of {rounds}: the contenders in turn"));
        let round: Round =
            contest::round(cluster, options, &results.scale, contenders, &results.rounds).await?;
        results.rounds.push(round);
    }
    for measure in [Measure::Requests, Measure::Connections, Measure::Instances, Measure::Items] {
        if options.wants(measure) {
            note(&format!("{measure:?}: {:?}", sweep::values(&results.scale, measure)));
            results.sweeps.push(sweep::run(cluster, &results.scale, measure).await?);
        }
    }
    if options.wants(Measure::Distance) {
        results.distances = distance::run(cluster, &results.scale).await?;
    }
    if options.wants(Measure::Memory) {
        note(&format!("memory: {} waiting orders", results.scale.waiting));
        results.memory = memory::measure(cluster, &results.scale).await?;
        if results.memory.is_none() {
            results.left_out.push("memory and CPU time, which need /proc".to_owned());
        }
    }
    Ok(())
}

fn write(out: &Path, results: &Results, contenders: &[Contender], text: &str) -> io::Result<()> {
    std::fs::create_dir_all(out)?;
    std::fs::write(out.join("results.json"), serde_json::to_vec_pretty(results)?)?;
    std::fs::write(out.join("tables.md"), text)?;
    for (name, chart) in chart::charts(results, contenders) {
        std::fs::write(out.join(name), chart)?;
    }
    Ok(())
}

/// Progress, on standard error: standard output has the results.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
