//! Ratios within a round, which hold on other machines as well.

use loadtest::Report;
use serde::Serialize;

use super::Results;
use super::case::{CONNECTIONS, Figure, INSTANCES, Measured};
use super::options::{Contender, Measure};
use crate::experiment::{Spread, figure, float, handovers};

/// A ratio, or another figure that does not depend on the machine.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) name: String,
    /// Over all rounds.
    pub(super) spread: Spread,
    pub(super) goal: Option<Goal>,
}

/// The goal of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    /// In words, and whether the value reaches it.
    pub(super) fn judge(self, value: f64) -> (String, bool) {
        match self {
            Self::AtLeast(least) => (format!("at least {}", figure(least)), value >= least),
            Self::AtMost(most) => (format!("at most {}", figure(most)), value <= most),
        }
    }
}

/// The findings for which there are results.
pub(super) fn findings(results: &Results) -> Vec<Finding> {
    use Contender::{AtomicScript, BatchedScript, Combined, EtcdRecipe, NoStore};
    use Goal::{AtLeast, AtMost};
    let against = |other, measure, figure| {
        ratios(figure, results.case(measure, Combined), results.case(measure, other))
    };
    let steady = |other| against(other, Measure::Throughput, rate);
    let ours = |figure: Figure| -> Vec<f64> {
        let steady = results.case(Measure::Throughput, Combined);
        steady.iter().flat_map(|one| one.loads.iter().filter_map(figure)).collect()
    };
    // with etcd and Redis so far away
    let at = |far: (u64, u64), instances: usize, connections: usize, contender: Contender| {
        results.of(Measure::Distance).find(|Measured { case, .. }| {
            (case.contender, case.far) == (contender, Some(far))
                && (case.instances, case.connections) == (instances, connections)
        })
    };
    let far = |far, connections, other, figure| {
        let of = |contender| at(far, INSTANCES, connections, contender);
        ratios(figure, of(Combined), of(other))
    };
    let mut all: Vec<(String, Vec<f64>, Option<Goal>)> = Vec::new();
    let mut add = |name: &str, values, goal| all.push((name.to_owned(), values, goal));
    add("throughput, guarded : batched script", steady(BatchedScript), Some(AtLeast(0.9)));
    add("throughput, guarded : atomic script", steady(AtomicScript), Some(AtLeast(1.5)));
    add("throughput, guarded : no store", steady(NoStore), Some(AtLeast(0.25)));
    add("throughput, guarded : etcd recipe", steady(EtcdRecipe), None);
    let sold_out = against(NoStore, Measure::SoldOut, rate);
    add("sold out, answers/s, guarded : no store", sold_out, Some(AtLeast(0.8)));
    let burst = against(EtcdRecipe, Measure::Burst, bursts);
    add("burst, time of etcd recipe : guarded", burst, Some(AtLeast(40.0)));
    let turns = against(EtcdRecipe, Measure::Handovers, handovers);
    add("handovers/s, guarded : etcd recipe", turns, Some(AtLeast(10.0)));
    for (name, etcd, instances, connections, least) in [
        ("throughput, 10,000 connections : 500", 0, INSTANCES, 10_000, 0.9),
        ("throughput, 8 instances : 2", 0, 8, CONNECTIONS, 0.8),
        ("throughput, 8 instances : 2, etcd 2 ms away", 2, 8, CONNECTIONS, 0.8),
    ] {
        let usual = at((etcd, 0), INSTANCES, CONNECTIONS, Combined);
        let values = ratios(rate, at((etcd, 0), instances, connections, Combined), usual);
        add(name, values, Some(AtLeast(least)));
    }
    for (distance, connections, other, least) in [
        ((6, 2), 500, BatchedScript, 0.8),
        ((6, 2), 5000, BatchedScript, 0.9),
        ((6, 2), 500, AtomicScript, 1.0),
        ((2, 0), 500, AtomicScript, 1.2),
        ((6, 0), 500, AtomicScript, 1.0),
        ((20, 0), 500, AtomicScript, 0.75),
    ] {
        let ((etcd, redis), title) = (distance, other.title());
        let place = format!("etcd {etcd}, Redis {redis} ms away, {connections} connections");
        let values = far(distance, connections, other, rate);
        add(&format!("throughput, guarded : {title}, {place}"), values, Some(AtLeast(least)));
    }
    let tail_far = far((20, 0), CONNECTIONS, AtomicScript, p99);
    add("p99, guarded : atomic script, etcd 20 ms away", tail_far, Some(AtMost(4.0)));
    add("share of the instance that sold less", ours(smaller_share), Some(AtLeast(0.45)));
    add("latency of a guarded request, p99 : p50", ours(tail), Some(AtMost(4.0)));
    let found = |(name, values, goal): (_, Vec<f64>, _)| {
        Some(Finding { name, spread: Spread::of(values)?, goal })
    };
    all.into_iter().filter_map(found).collect()
}

/// A figure of the first case divided by that of the second, in each round that has both.
pub(super) fn ratios(
    figure: Figure,
    above: Option<&Measured>,
    below: Option<&Measured>,
) -> Vec<f64> {
    let (Some(above), Some(below)) = (above, below) else { return Vec::new() };
    let pairs = above.loads.iter().zip(&below.loads);
    let ratio = pairs.filter_map(|(above, below)| {
        let (above, below) = (figure(above)?, figure(below)?);
        (below > 0.0).then(|| above / below)
    });
    ratio.collect()
}

/// Answers a second.
#[expect(clippy::unnecessary_wraps, reason = "other figures may be missing")]
pub(super) fn rate(load: &Report) -> Option<f64> {
    Some(load.answers_per_second)
}

/// Bursts a second: more is better, as with the other figures.
fn bursts(load: &Report) -> Option<f64> {
    (load.duration_seconds > 0.0).then(|| 1.0 / load.duration_seconds)
}

/// The median latency in microseconds.
pub(super) fn p50(load: &Report) -> Option<f64> {
    Some(float(load.latency_microseconds?.p50))
}

/// The 99th percentile of the latency in microseconds.
pub(super) fn p99(load: &Report) -> Option<f64> {
    Some(float(load.latency_microseconds?.p99))
}

fn tail(load: &Report) -> Option<f64> {
    Some(p99(load)? / p50(load).filter(|p50| *p50 > 0.0)?)
}

fn smaller_share(load: &Report) -> Option<f64> {
    load.instances.values().map(|share| share.share).min_by(f64::total_cmp)
}
