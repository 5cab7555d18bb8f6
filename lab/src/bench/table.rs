//! The results as Markdown, for the terminal and for documents.

use std::fmt::Write as _;

use loadtest::Report;

use super::contender::Contender;
use super::contest::Turn;
use super::load;
use super::memory::Memory;
use super::options::Measure;
use super::results::{Finding, Goal, Results, burst_millis, handovers};
use crate::experiment::{Machine, Spread, figure, rows};

/// One load of a turn.
type LoadOf = fn(&Turn) -> Option<&Report>;

/// All results.
pub(super) fn text(results: &Results, contenders: &[Contender]) -> String {
    let mut text = String::new();
    for (title, table) in [
        ("Machine", machine(&results.machine)),
        ("Ratios", findings(&results.findings)),
        ("Throughput", steady(results, contenders, |turn| turn.throughput.as_ref())),
        ("Sold out", steady(results, contenders, |turn| turn.sold_out.as_ref())),
        ("Burst", burst(results, contenders)),
        ("Handovers", passed(results, contenders)),
        ("CPU time for each request", cpu(results, contenders, |turn| turn.throughput.as_ref())),
        (
            "CPU time for each request, sold out",
            cpu(results, contenders, |turn| turn.sold_out.as_ref()),
        ),
        ("By requests", swept(results, Measure::Requests, "requests")),
        ("By connections", swept(results, Measure::Connections, "connections")),
        ("By instances", swept(results, Measure::Instances, "instances")),
        ("By items", swept(results, Measure::Items, "items")),
        ("By distance, guarded : atomic script", far(results)),
        ("Memory of one instance", results.memory.as_ref().map(memory).unwrap_or_default()),
    ] {
        if !table.is_empty() {
            // writing to a string cannot fail
            let _ = write!(text, "## {title}\n\n{table}\n");
        }
    }
    for left_out in &results.left_out {
        let _ = writeln!(text, "Left out: {left_out}.");
    }
    for fault in &results.faults {
        let _ = writeln!(text, "FAULT: {fault}");
    }
    text
}

fn machine(machine: &Machine) -> String {
    let Machine { date, build, cores, processor, memory, kernel, load_average, etcd, redis } =
        machine;
    rows(
        ["", ""],
        [
            ["date".to_owned(), date.clone()],
            ["cores".to_owned(), format!("{cores} ({processor})")],
            ["memory".to_owned(), memory.clone()],
            ["system".to_owned(), kernel.clone()],
            ["etcd, Redis".to_owned(), format!("{etcd}, {redis} (appendfsync always)")],
            ["load average before".to_owned(), load_average.clone()],
            ["build".to_owned(), (*build).to_owned()],
            [
                "shared by".to_owned(),
                "load test, instances, etcd and Redis, all on these cores".to_owned(),
            ],
        ],
    )
}

fn findings(findings: &[Finding]) -> String {
    let row = |finding: &Finding| {
        let goal = match finding.goal {
            None => String::new(),
            Some(Goal::AtLeast(least)) => format!("at least {}", figure(least)),
            Some(Goal::AtMost(most)) => format!("at most {}", figure(most)),
        };
        let reached = match finding.goal {
            None => "",
            Some(goal) if goal.is_reached(finding.spread.median) => "yes",
            Some(_) => "no",
        };
        let Spread { median, .. } = finding.spread;
        [finding.name.to_owned(), figure(median), range(finding.spread), goal, reached.to_owned()]
    };
    rows(["ratio", "median", "min to max", "goal", "reached"], findings.iter().map(row))
}

fn steady(results: &Results, contenders: &[Contender], load: LoadOf) -> String {
    let table = contenders.iter().filter_map(|&contender| {
        let rate = results.figures(contender, |turn| Some(load(turn)?.answers_per_second))?;
        let micros = |at: fn(&Report) -> Option<u64>| {
            results.figures(contender, |turn| at(load(turn)?).map(float))
        };
        let p50 = micros(|load| Some(load.latency_microseconds?.p50));
        let p99 = micros(|load| Some(load.latency_microseconds?.p99));
        let name = contender.title().to_owned();
        Some([name, figure(rate.median), range(rate), millis(p50), millis(p99)])
    });
    rows(["", "requests/s", "min to max", "p50 ms", "p99 ms"], table)
}

fn burst(results: &Results, contenders: &[Contender]) -> String {
    let table = contenders.iter().filter_map(|&contender| {
        let time = results.figures(contender, burst_millis)?;
        let micros = |at: fn(&Report) -> Option<u64>| {
            millis(results.figures(contender, |turn| at(turn.burst.as_ref()?).map(float)))
        };
        Some([
            contender.title().to_owned(),
            figure(time.median),
            range(time),
            micros(|load| Some(load.latency_microseconds?.p50)),
            micros(|load| Some(load.latency_microseconds?.p99)),
        ])
    });
    rows(["", "last answer ms", "min to max", "p50 ms", "p99 ms"], table)
}

fn passed(results: &Results, contenders: &[Contender]) -> String {
    let mut table: Vec<_> = contenders
        .iter()
        .filter_map(|&contender| {
            let rate = results.figures(contender, handovers)?;
            Some([contender.title().to_owned(), figure(rate.median), range(rate)])
        })
        .collect();
    let etcd = || results.rounds.iter().filter_map(|round| round.etcd.as_ref());
    let rate = |micros: f64| 1e6 / micros.max(1.0);
    for (name, found) in [
        ("one commit at a time", Spread::of(etcd().map(|etcd| rate(etcd.commit.median)))),
        (
            "one commit and one notification at a time",
            Spread::of(etcd().map(|etcd| rate(etcd.commit_and_notification.median))),
        ),
    ] {
        table.extend(found.map(|found| [name.to_owned(), figure(found.median), range(found)]));
    }
    rows(["", "handovers/s", "min to max"], table)
}

fn cpu(results: &Results, contenders: &[Contender], load: LoadOf) -> String {
    let table = contenders.iter().filter_map(|&contender| {
        let of = |process: &str| {
            results.figures(contender, |turn| load::cpu_micros(load(turn)?, process))
        };
        let [instances, etcd, redis, loadtest] = ["instances", "etcd", "redis", "loadtest"].map(of);
        let of = |spread: Option<Spread>| spread.map_or_else(String::new, |s| figure(s.median));
        loadtest?;
        Some([contender.title().to_owned(), of(instances), of(etcd), of(redis), of(loadtest)])
    });
    rows(["µs a request", "instances", "etcd", "Redis", "load test"], table)
}

fn swept(results: &Results, measure: Measure, name: &str) -> String {
    let table = results.points(measure).iter().map(|point| {
        let rate = point.throughput();
        let micros = |at: fn(&Report) -> Option<u64>| {
            millis(Spread::of(point.loads.iter().filter_map(at).map(float)))
        };
        [
            figure(float(u64::try_from(point.value).unwrap_or(u64::MAX))),
            figure(rate.median),
            range(rate),
            micros(|load| Some(load.latency_microseconds?.p50)),
            micros(|load| Some(load.latency_microseconds?.p99)),
        ]
    });
    rows([name, "orders/s", "min to max", "p50 ms", "p99 ms"], table)
}

fn far(results: &Results) -> String {
    let table = results.distances.iter().filter_map(|distance| {
        let rates = |loads: &[Report]| {
            let rates: Vec<_> = loads.iter().map(|load| load.answers_per_second).collect();
            Spread::of(rates).map_or_else(String::new, |rate| figure(rate.median))
        };
        let tails = |loads: &[Report]| {
            let tails = loads.iter().filter_map(|load| Some(load.latency_microseconds?.p99));
            Spread::of(tails.map(|micros| float(micros) / 1e3))
                .map_or_else(String::new, |tail| figure(tail.median))
        };
        let ratio = distance.throughput()?;
        Some([
            distance.etcd.to_string(),
            distance.redis.to_string(),
            distance.instances.to_string(),
            distance.connections.to_string(),
            distance.share.map_or("closed".to_owned(), |share| format!("{:.0} %", share * 100.0)),
            rates(&distance.guarded),
            rates(&distance.unguarded),
            figure(ratio.median),
            range(ratio),
            tails(&distance.guarded),
            tails(&distance.unguarded),
        ])
    });
    rows(
        [
            "etcd ms",
            "Redis ms",
            "instances",
            "connections",
            "load",
            "guarded, orders/s",
            "atomic script",
            "ratio",
            "min to max",
            "guarded, p99 ms",
            "atomic script, p99 ms",
        ],
        table,
    )
}

fn memory(memory: &Memory) -> String {
    let mebibytes = |bytes: u64| format!("{} MiB", figure(float(bytes >> 10) / 1024.0));
    rows(
        ["", ""],
        [
            ["idle".to_owned(), mebibytes(memory.idle)],
            [format!("with {} waiting orders", memory.orders), mebibytes(memory.waiting)],
            [
                "each of them, connection included".to_owned(),
                format!("{} KiB", figure(float(memory.for_each_order()) / 1024.0)),
            ],
        ],
    )
}

fn range(spread: Spread) -> String {
    format!("{} to {}", figure(spread.min), figure(spread.max))
}

fn millis(micros: Option<Spread>) -> String {
    micros.map_or_else(String::new, |micros| figure(micros.median / 1e3))
}

fn float(count: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
    let float = count as f64;
    float
}
