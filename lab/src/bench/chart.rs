//! The charts of the bench: bars to compare, a curve for each sweep.

use super::contender::Contender;
use super::contest::Turn;
use super::markdown::figure;
use super::options::Measure;
use super::results::{Results, burst_millis, handovers, throughput};
use super::stats::Spread;
use super::svg::{Anchor, Svg};

const WIDTH: f64 = 720.0;

/// Room for the title above, and for the axis below.
const TOP: f64 = 44.0;
const BOTTOM: f64 = 46.0;

/// Bars: room for the labels, and for the figures at the ends.
const LABELS: f64 = 190.0;
const FIGURES: f64 = 70.0;
const BAR_STEP: f64 = 30.0;
const BAR: f64 = 18.0;

/// A curve: room for the figures of the axis.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 30.0;
const CURVE_HEIGHT: f64 = 240.0;

/// What a line shows that is drawn over results of several rounds.
const ROUNDS: &str = "smallest to largest of all rounds";

/// One bar.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) spread: Spread,
    /// Drawn in colour.
    pub(crate) ours: bool,
}

/// File name and content of every chart with results.
pub(super) fn charts(results: &Results, contenders: &[Contender]) -> Vec<(&'static str, String)> {
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
        ("throughput.svg", bars(&throughput_title, ("requests/s", ROUNDS), &compared(throughput))),
        ("burst.svg", bars(&burst_title, ("milliseconds", ROUNDS), &compared(burst_millis))),
        (
            "handovers.svg",
            bars(
                "Handovers between two instances, one client each",
                ("handovers/s", ROUNDS),
                &handover_bars,
            ),
        ),
        ("requests.svg", swept(Measure::Requests, "requests")),
        ("connections.svg", swept(Measure::Connections, "connections")),
        ("instances.svg", swept(Measure::Instances, "instances")),
        ("items.svg", swept(Measure::Items, "items")),
    ];
    all.into_iter().filter_map(|(name, chart)| Some((name, chart?))).collect()
}

/// Bars on a logarithmic axis that begins at a power of ten; `None` if there is nothing to show. `unit` is that of the
/// axis, and `line` says what the line across each bar shows.
pub(crate) fn bars(title: &str, (unit, line): (&str, &str), bars: &[Bar]) -> Option<String> {
    let bars: Vec<_> = bars.iter().filter(|bar| bar.spread.min > 0.0).collect();
    let lowest = bars.iter().map(|bar| bar.spread.min).min_by(f64::total_cmp)?;
    let highest = bars.iter().map(|bar| bar.spread.max).max_by(f64::total_cmp)?;
    // the shortest bar can still be seen
    let (from, to) = ((lowest / 1.5).log10().floor(), highest.log10().ceil());
    let to = to.max(from + 1.0);
    let x = |value: f64| LABELS + (value.log10() - from) / (to - from) * (WIDTH - LABELS - FIGURES);

    let count = f64::from(u32::try_from(bars.len()).unwrap_or(0));
    let bottom = TOP + BAR_STEP * count;
    let mut svg = Svg::new(WIDTH, bottom + BOTTOM);
    svg.text("title", (12.0, 22.0), Anchor::Start, title);
    let mut decade = from;
    while decade <= to {
        let at = x(10_f64.powf(decade));
        svg.line("grid", (at, TOP - 6.0), (at, bottom));
        svg.text("small", (at, bottom + 16.0), Anchor::Middle, &figure(10_f64.powf(decade)));
        decade += 1.0;
    }
    let unit = format!("{unit} (logarithmic; line: {line})");
    svg.text("small", (LABELS, bottom + 36.0), Anchor::Start, &unit);
    let mut y = TOP;
    for bar in bars {
        let Spread { median, min, max } = bar.spread;
        let class = if bar.ours { "mark" } else { "other" };
        let middle = y + BAR / 2.0;
        svg.text("", (LABELS - 10.0, middle + 4.5), Anchor::End, &bar.label);
        svg.bar(class, (LABELS, y), x(median) - LABELS, BAR);
        svg.line("range", (x(min), middle), (x(max), middle));
        svg.text("", (x(max.max(median)) + 8.0, middle + 4.5), Anchor::Start, &figure(median));
        y += BAR_STEP;
    }
    svg.line("axis", (LABELS, TOP - 6.0), (LABELS, bottom));
    Some(svg.finish(title))
}

/// A curve with a logarithmic axis to the right and a plain one from 0 upwards; `None` for fewer
/// than two points.
fn curve(title: &str, (right, up): (&str, &str), points: &[(usize, Spread)]) -> Option<String> {
    let float = |value: usize| f64::from(u32::try_from(value.max(1)).unwrap_or(u32::MAX));
    let first = float(points.first()?.0).log10();
    let last = float(points.last()?.0).log10();
    if last <= first {
        return None;
    }
    let highest = points.iter().map(|(_, spread)| spread.max).max_by(f64::total_cmp)?;
    let step = step(highest);
    let top = (highest / step).ceil().max(1.0) * step;
    let bottom = TOP + CURVE_HEIGHT;
    let x = |value| {
        LEFT + 12.0
            + (float(value).log10() - first) / (last - first) * (WIDTH - LEFT - RIGHT - 24.0)
    };
    let y = |value: f64| bottom - value / top * CURVE_HEIGHT;

    let mut svg = Svg::new(WIDTH, bottom + BOTTOM);
    svg.text("title", (12.0, 22.0), Anchor::Start, title);
    svg.text("small", (LEFT, TOP - 8.0), Anchor::Start, up);
    let mut tick = 0.0;
    while tick <= top * 1.001 {
        svg.line("grid", (LEFT, y(tick)), (WIDTH - RIGHT, y(tick)));
        svg.text("small", (LEFT - 8.0, y(tick) + 4.0), Anchor::End, &figure(tick));
        tick += step;
    }
    svg.line("axis", (LEFT, bottom), (WIDTH - RIGHT, bottom));
    let line: Vec<_> = points.iter().map(|(value, spread)| (x(*value), y(spread.median))).collect();
    svg.curve("curve", &line);
    for (value, spread) in points {
        let at = x(*value);
        svg.line("axis", (at, bottom), (at, bottom + 4.0));
        svg.text("small", (at, bottom + 17.0), Anchor::Middle, &figure(float(*value)));
        svg.line("range", (at, y(spread.min)), (at, y(spread.max)));
        svg.dot("mark", (at, y(spread.median)));
    }
    let right = format!("{right} (logarithmic; line: {ROUNDS})");
    svg.text("small", (LEFT, bottom + 36.0), Anchor::Start, &right);
    Some(svg.finish(title))
}

/// A round distance between ticks, so that there are three to six of them.
fn step(highest: f64) -> f64 {
    let rough = (highest / 5.0).max(f64::MIN_POSITIVE);
    let decade = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
    steps.into_iter().find(|step| *step >= rough).unwrap_or(decade * 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: everything that is drawn has finite coordinates within the picture, also for one value.
    #[test]
    fn draws_within_the_picture() {
        let bar = |median: f64| Bar {
            label: "a < b".to_owned(),
            spread: Spread { median, min: median * 0.9, max: median * 1.1 },
            ours: true,
        };
        let spread = Spread { median: 5.0, min: 4.0, max: 6.0 };
        for picture in [
            bars("t", ("u", "l"), &[bar(1.0)]).expect("one bar"),
            bars("t", ("u", "l"), &[bar(0.02), bar(90_000.0)]).expect("two bars"),
            curve("t", ("r", "u"), &[(2, spread), (10_000, spread)]).expect("two points"),
        ] {
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
            assert!(!picture.contains("='-") && !picture.contains("a < b"), "{picture}");
        }
        assert!(
            bars("t", ("u", "l"), &[]).is_none()
                && curve("t", ("r", "u"), &[(2, spread)]).is_none()
        );
    }

    /// Goal: ticks are round numbers, three to six of them.
    #[test]
    fn ticks_are_round() {
        for (highest, expected) in [(46_000.0, 10_000.0), (100.0, 20.0), (7.0, 2.0)] {
            assert!((step(highest) - expected).abs() < 1e-9, "{highest}: {}", step(highest));
        }
    }
}
