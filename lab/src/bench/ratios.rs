//! Ratios within a round, which are comparable between machines.

use loadtest::Report;
use serde::Serialize;

use super::Results;
use super::case::{CONNECTIONS, Figure, INSTANCES, Measured};
use super::options::{Contender, Measure};
use crate::experiment::{Spread, float, handovers, value_name};

/// A ratio, or another figure that hardly depends on the machine.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) name: String,
    /// Over all rounds.
    pub(super) spread: Spread,
    /// The least median that is wanted.
    pub(super) goal: f64,
}

pub(super) fn findings(results: &Results) -> Vec<Finding> {
    use Contender::{AtomicScript, BatchedScript, Combined, EtcdRecipe, Forwarded, NoStore};
    use Measure::{Burst, Distance, Handovers, Paced, SoldOut, Throughput};

    let mut all = Vec::new();
    let mut add = |name: &str, spread: Option<Spread>, goal| {
        all.extend(spread.map(|spread| Finding { name: name.to_owned(), spread, goal }));
    };
    let compared: [(_, _, Figure, _, _); 6] = [
        ("throughput, guarded : batched script", Throughput, rate, BatchedScript, 0.9),
        ("throughput, guarded : atomic script", Throughput, rate, AtomicScript, 1.5),
        ("throughput, guarded : no store", Throughput, rate, NoStore, 0.25),
        ("sold out, answers/s, guarded : no store", SoldOut, rate, NoStore, 0.8),
        ("burst, time of etcd recipe : guarded", Burst, bursts, EtcdRecipe, 40.0),
        ("handovers/s, guarded : etcd recipe", Handovers, handovers, EtcdRecipe, 10.0),
    ];
    for (name, measure, figure, other, goal) in compared {
        let [guarded, other] = [Combined, other].map(|one| results.case(measure, one));
        add(name, ratio(figure, guarded, other), goal);
    }
    for (name, etcd, instances, connections, goal) in [
        ("throughput, 10,000 connections : 500", 0, INSTANCES, 10_000, 0.9),
        ("throughput, 8 instances : 2", 0, 8, CONNECTIONS, 0.8),
        ("throughput, 8 instances : 2, etcd 2 ms away", 2, 8, CONNECTIONS, 0.8),
    ] {
        let at = |instances, connections| {
            results.distant(Distance, Combined, Some((etcd, 0)), instances, connections)
        };
        add(name, ratio(rate, at(instances, connections), at(INSTANCES, CONNECTIONS)), goal);
    }
    let far = |figure, far, connections, other| {
        let of = |one| results.distant(Distance, one, Some(far), INSTANCES, connections);
        ratio(figure, of(Combined), of(other))
    };
    for (distance, connections, other, goal) in [
        ((6, 2), 500, BatchedScript, 0.8),
        ((6, 2), 5000, BatchedScript, 0.9),
        ((6, 2), 500, AtomicScript, 1.0),
        ((2, 0), 500, AtomicScript, 1.2),
        ((6, 0), 500, AtomicScript, 1.0),
        ((20, 0), 500, AtomicScript, 0.75),
    ] {
        let ((etcd, redis), title) = (distance, value_name(&other));
        let place = format!("etcd {etcd}, Redis {redis} ms away, {connections} connections");
        let name = format!("throughput, guarded : {title}, {place}");
        add(&name, far(rate, distance, connections, other), goal);
    }
    let tails = far(per_p99, (20, 0), CONNECTIONS, AtomicScript);
    add("p99, atomic script : guarded, etcd 20 ms away", tails, 0.25);
    let forwarded = results.case(Throughput, Forwarded);
    let add_forwarded = |figure, other| ratio(figure, forwarded, results.case(Throughput, other));
    add("throughput, forwarded : batched script", add_forwarded(rate, BatchedScript), 0.9);
    add("orders by CPU time, forwarded : guarded", add_forwarded(per_cpu, Combined), 0.87);
    for (distance, instances, goal) in [
        ((0, 0), INSTANCES, 0.9),
        ((0, 0), 8, 0.9),
        ((6, 2), INSTANCES, 0.9),
        ((6, 2), 8, 0.85),
        ((20, 2), INSTANCES, 0.85),
        ((20, 2), 8, 0.9),
    ] {
        let (etcd, redis) = distance;
        let of = |one| results.distant(Distance, one, Some(distance), instances, CONNECTIONS);
        let place = format!("etcd {etcd}, Redis {redis} ms away, {instances} instances");
        let name = format!("throughput, forwarded : batched script, {place}");
        add(&name, ratio(rate, of(Forwarded), of(BatchedScript)), goal);
    }
    let of = |instances| results.distant(Distance, Forwarded, Some((0, 0)), instances, CONNECTIONS);
    add("throughput, forwarded, 8 instances : 2", ratio(rate, of(8), of(INSTANCES)), 0.9);
    let of = |one| results.distant(Paced, one, Some((6, 2)), 8, CONNECTIONS);
    let tails = ratio(per_p99, of(Forwarded), of(BatchedScript));
    add("p99 at 2,000 orders/s, batched script : forwarded, 8 instances", tails, 0.8);
    let steady = results.case(Throughput, Combined);
    let smaller = steady.and_then(|steady| steady.spread(smaller_share));
    add("share of the instance that sold less", smaller, 0.45);
    all
}

/// The first case's figure divided by the second's, over the rounds that have both.
pub(super) fn ratio(
    figure: Figure,
    above: Option<&Measured>,
    below: Option<&Measured>,
) -> Option<Spread> {
    let pairs = above?.loads.iter().zip(&below?.loads);
    Spread::of(pairs.filter_map(|(above, below)| {
        let (above, below) = (figure(above)?, figure(below)?);
        (below > 0.0).then(|| above / below)
    }))
}

/// Answers a second.
#[expect(clippy::unnecessary_wraps, reason = "other figures may be missing")]
pub(super) fn rate(load: &Report) -> Option<f64> {
    Some(load.answers_per_second)
}

/// Bursts a second, so that more is better, as with the other figures.
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

/// The inverse of the 99th percentile, so that more is better, as with the other figures.
fn per_p99(load: &Report) -> Option<f64> {
    Some(1.0 / p99(load).filter(|p99| *p99 > 0.0)?)
}

/// Orders for each second of the instances' CPU time.
fn per_cpu(load: &Report) -> Option<f64> {
    Some(float(load.requests) / load.cpu_seconds.get("instances").filter(|used| **used > 0.0)?)
}

fn smaller_share(load: &Report) -> Option<f64> {
    let sold: u64 = load.instances.values().sum();
    if load.instances.len() < load.after.len() {
        return Some(0.0);
    }
    Some(float(*load.instances.values().min()?) / float(sold))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an instance that sells nothing has a share of nothing. Method: the report counts the instances that sold.
    #[test]
    #[expect(clippy::default_trait_access, reason = "the type of a state is not public")]
    fn an_instance_without_orders_has_no_share() {
        for (sold, share) in [(&[("a", 75), ("b", 25)][..], 0.25), (&[("a", 100)], 0.0)] {
            let mut report = Report::default();
            report.instances.extend(sold.iter().map(|(name, sold)| ((*name).to_owned(), *sold)));
            report.after.extend(["x", "y"].map(|url| (url.to_owned(), Default::default())));
            assert_eq!(smaller_share(&report), Some(share));
        }
    }
}
