//! Ratios within a round, which hold on other machines as well.

use loadtest::Report;

use super::contender::Contender;
use super::contest::{Round, Turn};
use super::distance::Distance;
use super::memory::Memory;
use super::options::Measure;
use super::results::{Finding, Goal, Results, burst_millis, handovers, sold_out, throughput};
use super::sweep::Point;
use crate::experiment::Spread;

/// The findings for which there are results.
pub(super) fn findings(results: &Results) -> Vec<Finding> {
    use Goal::{AtLeast, AtMost};
    let rounds = |ratio: &dyn Fn(&Round) -> Option<f64>| -> Vec<f64> {
        results.rounds.iter().filter_map(ratio).collect()
    };
    let against = |other: Contender| rounds(&move |round| over(round, throughput, other));
    let all = [
        (
            "throughput, guarded : atomic script",
            against(Contender::AtomicScript),
            Some(AtLeast(1.0)),
        ),
        ("throughput, guarded : no store", against(Contender::NoStore), Some(AtLeast(0.25))),
        (
            "throughput, guarded : better of etcd recipe and etcd Lock RPC",
            rounds(&over_better_peer),
            Some(AtLeast(150.0)),
        ),
        (
            "sold out, answers/s, guarded : no store",
            rounds(&|round| over(round, sold_out, Contender::NoStore)),
            Some(AtLeast(0.8)),
        ),
        ("throughput, guarded : lock per request", against(Contender::Request), None),
        (
            "burst, time of etcd recipe : guarded",
            rounds(&|round| over(round, burst_rate, Contender::EtcdRecipe)),
            Some(AtLeast(40.0)),
        ),
        (
            "handovers/s, guarded : etcd recipe",
            rounds(&|round| over(round, handovers, Contender::EtcdRecipe)),
            Some(AtLeast(10.0)),
        ),
        (
            "handovers/s, guarded : one commit and one notification at a time",
            rounds(&over_etcd_cost),
            None,
        ),
        (
            "throughput, most connections : the usual number",
            between(results, Measure::Connections, usize::MAX, results.scale.connections),
            Some(AtLeast(0.9)),
        ),
        (
            "throughput, most instances : 2",
            between(results, Measure::Instances, usize::MAX, 2),
            Some(AtLeast(0.8)),
        ),
        (
            "throughput, guarded : atomic script, etcd 2 ms away",
            far(results, 2),
            Some(AtLeast(1.2)),
        ),
        (
            "throughput, guarded : atomic script, etcd 6 ms away",
            far(results, 6),
            Some(AtLeast(1.0)),
        ),
        (
            "throughput, guarded : atomic script, etcd 20 ms away",
            far(results, 20),
            Some(AtLeast(0.75)),
        ),
        (
            "p99, guarded : atomic script, etcd 20 ms away",
            at(results, 20, 2, None).map(|distance| distance.ratios(p99)).unwrap_or_default(),
            Some(AtMost(4.0)),
        ),
        (
            "p99 : round trip, etcd 6 ms away, half of what the atomic script reaches",
            at(results, 6, 2, Some(0.5)).map(over_round_trip).unwrap_or_default(),
            Some(AtMost(3.0)),
        ),
        (
            "throughput, 8 instances : 2, etcd 2 ms away",
            between_instances(results),
            Some(AtLeast(0.8)),
        ),
        (
            "share of the instance that sold less",
            rounds(&|round| smaller_share(round.turn(Contender::Combined)?)),
            Some(AtLeast(0.45)),
        ),
        (
            "latency of a guarded request, p99 : p50",
            rounds(&|round| tail(round.turn(Contender::Combined)?)),
            Some(AtMost(4.0)),
        ),
        (
            "memory for each waiting order, KiB",
            results.memory.iter().map(kibibytes).collect(),
            Some(AtMost(20.0)),
        ),
    ];
    let found = |(name, values, goal): (_, Vec<f64>, _)| {
        Some(Finding { name, spread: Spread::of(values)?, goal })
    };
    all.into_iter().filter_map(found).collect()
}

/// The product's figure divided by another contender's.
fn over(round: &Round, figure: fn(&Turn) -> Option<f64>, other: Contender) -> Option<f64> {
    let ours = figure(round.turn(Contender::Combined)?)?;
    let theirs = figure(round.turn(other)?)?;
    (theirs > 0.0).then(|| ours / theirs)
}

/// Bursts a second: more is better, as with the other figures.
fn burst_rate(turn: &Turn) -> Option<f64> {
    burst_millis(turn).filter(|millis| *millis > 0.0).map(|millis| 1.0 / millis)
}

fn over_better_peer(round: &Round) -> Option<f64> {
    let recipe = over(round, throughput, Contender::EtcdRecipe)?;
    Some(recipe.min(over(round, throughput, Contender::EtcdRpc)?))
}

fn over_etcd_cost(round: &Round) -> Option<f64> {
    let ours = handovers(round.turn(Contender::Combined)?)?;
    Some(ours * round.etcd.as_ref()?.commit_and_notification.median / 1e6)
}

/// Throughput at one value of a sweep divided by that at another; the largest for one beyond it.
fn between(results: &Results, measure: Measure, above: usize, below: usize) -> Vec<f64> {
    let points = results.points(measure);
    let at = |value: usize| -> Option<&Point> {
        points.iter().find(|point| point.value == value).or_else(|| {
            points.iter().max_by_key(|point| point.value).filter(|point| point.value < value)
        })
    };
    let (Some(above), Some(below)) = (at(above), at(below)) else { return Vec::new() };
    if above.value == below.value {
        return Vec::new();
    }
    rates(&above.loads, &below.loads)
}

/// The product's throughput divided by that without a lock.
fn far(results: &Results, etcd: u64) -> Vec<f64> {
    let found = at(results, etcd, 2, None);
    found.map(|distance| rates(&distance.guarded, &distance.unguarded)).unwrap_or_default()
}

fn between_instances(results: &Results) -> Vec<f64> {
    let found = at(results, 2, 8, None).zip(at(results, 2, 2, None));
    found.map(|(eight, two)| rates(&eight.guarded, &two.guarded)).unwrap_or_default()
}

/// The loads with etcd so far away and Redis near: of an open loop, or of the closed one with the usual connections.
fn at(results: &Results, etcd: u64, instances: usize, share: Option<f64>) -> Option<&Distance> {
    results.distances.iter().find(|distance| {
        (distance.etcd, distance.redis, distance.instances) == (etcd, 0, instances)
            && distance.share == share
            && (share.is_some() || distance.connections == results.scale.connections)
    })
}

/// The throughput of each load divided by that of its pair.
fn rates(above: &[Report], below: &[Report]) -> Vec<f64> {
    let pairs = above.iter().zip(below).filter(|(_, below)| below.answers_per_second > 0.0);
    pairs.map(|(above, below)| above.answers_per_second / below.answers_per_second).collect()
}

fn over_round_trip(distance: &Distance) -> Vec<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a round trip has few milliseconds")]
    let round_trip = distance.etcd as f64 * 1e3;
    distance.guarded.iter().filter_map(p99).map(|micros| micros / round_trip).collect()
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of one order are far below 2^52")]
fn p99(load: &Report) -> Option<f64> {
    Some(load.latency_microseconds?.p99 as f64)
}

fn smaller_share(turn: &Turn) -> Option<f64> {
    let shares = turn.throughput.as_ref()?.instances.values().map(|share| share.share);
    shares.min_by(f64::total_cmp)
}

fn tail(turn: &Turn) -> Option<f64> {
    let latency = turn.throughput.as_ref()?.latency_microseconds?;
    let float = |micros: u64| f64::from(u32::try_from(micros).unwrap_or(u32::MAX));
    (latency.p50 > 0).then(|| float(latency.p99) / float(latency.p50))
}

fn kibibytes(memory: &Memory) -> f64 {
    f64::from(u32::try_from(memory.for_each_order()).unwrap_or(u32::MAX)) / 1024.0
}
