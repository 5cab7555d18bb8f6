//! Runs the bench.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::ValueEnum as _;
use flash_sale::error_chain::ErrorChain;
use testkit::{EtcdOptions, OwnedDir, RedisOptions};

use super::contender::Contender;
use super::contest::{self, Round, Turn};
use super::options::{BenchOptions, Measure};
use super::results::{Results, burst_millis, handovers, throughput};
use super::scale::Scale;
use super::{distance, load, memory, ratios, sweep, table};
use crate::error::LabError;
use crate::experiment::{Bar, Machine, bars};
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
    let machine = Machine::this();
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
    for (name, chart) in plots(results, contenders) {
        std::fs::write(out.join(name), chart)?;
    }
    Ok(())
}

/// Progress, on standard error: standard output has the results.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// File name and content of every plot with something to show.
fn plots(results: &Results, contenders: &[Contender]) -> Vec<(&'static str, String)> {
    let scale = &results.scale;
    let line = "smallest to largest of all rounds";
    let compared = |figure: fn(&Turn) -> Option<f64>| -> Vec<Bar> {
        let bar = |contender: &Contender| {
            let spread = results.figures(*contender, figure)?;
            let (label, ours) = (contender.title().to_owned(), *contender == Contender::Combined);
            Some(Bar { label, spread, ours })
        };
        contenders.iter().filter_map(bar).collect()
    };
    let swept = |measure: Measure| -> Vec<Bar> {
        let bar = |point: &super::sweep::Point| Bar {
            label: point.value.to_string(),
            spread: point.throughput(),
            ours: true,
        };
        results.points(measure).iter().map(bar).collect()
    };
    let connections = scale.connections;
    let throughput_title = format!("Orders answered, 2 instances, {connections} connections");
    let (buyers, stock) = (scale.burst_buyers, scale.burst_stock);
    let burst_title = format!("{buyers} buyers at once for {stock} units: time to the last answer");
    let title = |what: &str| format!("Guarded sale: throughput by {what}");
    let all = [
        ("throughput.svg", throughput_title, "requests/s", compared(throughput)),
        ("burst.svg", burst_title, "milliseconds", compared(burst_millis)),
        (
            "handovers.svg",
            "Handovers between two instances".to_owned(),
            "handovers/s",
            compared(handovers),
        ),
        ("requests.svg", title("requests"), "orders/s", swept(Measure::Requests)),
        ("connections.svg", title("connections"), "orders/s", swept(Measure::Connections)),
        ("instances.svg", title("instances"), "orders/s", swept(Measure::Instances)),
        ("items.svg", title("items"), "orders/s", swept(Measure::Items)),
    ];
    let drawn = all
        .into_iter()
        .filter_map(|(name, title, unit, of)| Some((name, bars(&title, (unit, line), &of)?)));
    drawn.collect()
}
