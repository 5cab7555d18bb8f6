//! Bars, as SVG.

use super::{Spread, figure};

/// Grey that is readable on white and on black, and one colour for emphasis.
const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#6b7280}\
    .title{font-size:15px;font-weight:600}.small{font-size:11px}\
    .grid{stroke:#9ca3af;stroke-opacity:.35}.axis{stroke:#6b7280}\
    .mark{fill:#2f81d6}.other{fill:#9ca3af}.range{stroke:#6b7280;stroke-width:1.5}\
    .end{text-anchor:end}.middle{text-anchor:middle}";

const WIDTH: f64 = 720.0;

/// Room for the title above, and for the axis below.
const TOP: f64 = 44.0;
const BOTTOM: f64 = 46.0;

/// Room for the labels to the left, and for the figures to the right.
const LABELS: f64 = 190.0;
const FIGURES: f64 = 70.0;

const BAR_STEP: f64 = 30.0;
const BAR: f64 = 18.0;

/// One bar.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) spread: Spread,
    /// Drawn in colour.
    pub(crate) ours: bool,
}

/// Bars on a logarithmic axis that begins at a power of ten; `None` if there is nothing to show. `unit` is that of the
/// axis.
pub(crate) fn bars(title: &str, unit: &str, bars: &[Bar]) -> Option<String> {
    let bars: Vec<_> = bars.iter().filter(|bar| bar.spread.min > 0.0).collect();
    let lowest = bars.iter().map(|bar| bar.spread.min).min_by(f64::total_cmp)?;
    let highest = bars.iter().map(|bar| bar.spread.max).max_by(f64::total_cmp)?;
    // the shortest bar can still be seen
    let (from, to) = ((lowest / 1.5).log10().floor(), highest.log10().ceil());
    let to = to.max(from + 1.0);
    let x = |value: f64| LABELS + (value.log10() - from) / (to - from) * (WIDTH - LABELS - FIGURES);

    let height = TOP + BAR_STEP * super::float(bars.len()) + BOTTOM;
    let bottom = height - BOTTOM;
    let mut body = vec![text("title", (12.0, 22.0), title)];
    let mut decade = from;
    while decade <= to {
        let value = 10_f64.powf(decade);
        body.push(line("grid", (x(value), TOP - 6.0), (x(value), bottom)));
        body.push(text("small middle", (x(value), bottom + 16.0), &figure(value)));
        decade += 1.0;
    }
    let unit = format!("{unit} (logarithmic; line: smallest to largest of all rounds)");
    body.push(text("small", (LABELS, bottom + 36.0), &unit));
    let mut y = TOP;
    for bar in bars {
        let Spread { median, min, max } = bar.spread;
        let (class, width) = (if bar.ours { "mark" } else { "other" }, x(median) - LABELS);
        let middle = y + BAR / 2.0;
        body.push(text("end", (LABELS - 10.0, middle + 4.5), &bar.label));
        body.push(format!(
            "<rect class='{class}' x='{LABELS:.1}' y='{y:.1}' width='{width:.1}' height='{BAR:.1}' rx='2'/>"
        ));
        body.push(line("range", (x(min), middle), (x(max), middle)));
        body.push(text("", (x(max.max(median)) + 8.0, middle + 4.5), &figure(median)));
        y += BAR_STEP;
    }
    body.push(line("axis", (LABELS, TOP - 6.0), (LABELS, bottom)));
    let body = body.join("\n");
    let title = escaped(title);
    Some(format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' \
         height='{height}' role='img'>\n<title>{title}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n"
    ))
}

fn line(class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) -> String {
    format!("<line class='{class}' x1='{x1:.1}' y1='{y1:.1}' x2='{x2:.1}' y2='{y2:.1}'/>")
}

fn text(class: &str, (x, y): (f64, f64), text: &str) -> String {
    format!("<text class='{class}' x='{x:.1}' y='{y:.1}'>{}</text>", escaped(text))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
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
        for picture in [
            bars("t", "u", &[bar(1.0)]).expect("one bar"),
            bars("t", "u", &[bar(0.02), bar(90_000.0)]).expect("two bars"),
        ] {
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
            assert!(!picture.contains("='-") && !picture.contains("a < b"), "{picture}");
        }
        assert!(bars("t", "u", &[]).is_none());
    }
}
