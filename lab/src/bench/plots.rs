//! Which plots there are, by file name.

use super::chart::{Bar, bars, curve};
use super::contender::Contender;
use super::contest::Turn;
use super::options::Measure;
use super::results::{Results, burst_millis, handovers, throughput};
use super::stats::Spread;

/// File name and content of every plot that the results are enough for.
pub(super) fn plots(results: &Results, contenders: &[Contender]) -> Vec<(&'static str, String)> {
    let scale = &results.scale;
    let compared = |figure: fn(&Turn) -> Option<f64>| -> Vec<Bar> {
        let bar = |contender: &Contender| {
            let spread = results.figures(*contender, figure)?;
            let (label, ours) = (contender.title().to_owned(), *contender == Contender::Combined);
            Some(Bar { label, spread, ours })
        };
        contenders.iter().filter_map(bar).collect()
    };
    let mut handover_bars = compared(handovers);
    let bound = results.rounds.iter().filter_map(|round| round.etcd.as_ref());
    let bound = bound.map(|etcd| 1e6 / etcd.commit_and_notification.median.max(1.0));
    if let Some(spread) = Spread::of_some(bound) {
        let label = "one commit + notification".to_owned();
        handover_bars.push(Bar { label, spread, ours: false });
    }
    let connections = scale.connections;
    let throughput_title = format!("Orders answered, 2 instances, {connections} connections");
    let (buyers, stock) = (scale.burst_buyers, scale.burst_stock);
    let burst_title = format!("{buyers} buyers at once for {stock} units: time to the last answer");
    let swept = |measure: Measure, right: &str| {
        let points = results.points(measure).iter();
        let points: Vec<_> = points.map(|point| (point.value, point.throughput())).collect();
        let title = format!("Guarded sale: throughput by {right}");
        curve(&title, (right, "orders/s"), &points)
    };
    let all = [
        ("throughput.svg", bars(&throughput_title, "requests/s", &compared(throughput))),
        ("burst.svg", bars(&burst_title, "milliseconds", &compared(burst_millis))),
        (
            "handovers.svg",
            bars("Handovers between two instances, one client each", "handovers/s", &handover_bars),
        ),
        ("requests.svg", swept(Measure::Requests, "requests")),
        ("connections.svg", swept(Measure::Connections, "connections")),
        ("instances.svg", swept(Measure::Instances, "instances")),
        ("items.svg", swept(Measure::Items, "items")),
    ];
    all.into_iter().filter_map(|(name, plot)| Some((name, plot?))).collect()
}
