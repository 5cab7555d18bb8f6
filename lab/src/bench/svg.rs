//! A small writer of SVG: lines, boxes, circles and text.

use std::fmt::{self, Display, Write as _};

/// Grey that is readable on white and on black, and one colour for emphasis.
const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#6b7280}\
    .title{font-size:15px;font-weight:600}.small{font-size:11px}\
    .grid{stroke:#9ca3af;stroke-opacity:.35}.axis{stroke:#6b7280}\
    .mark{fill:#2f81d6}.other{fill:#9ca3af}\
    .curve{fill:none;stroke:#2f81d6;stroke-width:2}.range{stroke:#6b7280;stroke-width:1.5}";

/// Where a text ends up beside its point.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture that is being drawn. Coordinates are in pixels from the top left corner.
#[derive(Debug)]
pub(super) struct Svg {
    body: String,
    width: f64,
    height: f64,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { body: String::new(), width, height }
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.add(format_args!(
            "<line class='{class}' x1='{x1:.1}' y1='{y1:.1}' x2='{x2:.1}' y2='{y2:.1}'/>"
        ));
    }

    pub(super) fn bar(&mut self, class: &str, corner: (f64, f64), width: f64, height: f64) {
        let (x, y) = corner;
        self.add(format_args!(
            "<rect class='{class}' x='{x:.1}' y='{y:.1}' width='{width:.1}' height='{height:.1}' rx='2'/>"
        ));
    }

    pub(super) fn dot(&mut self, class: &str, centre: (f64, f64)) {
        let (x, y) = centre;
        self.add(format_args!("<circle class='{class}' cx='{x:.1}' cy='{y:.1}' r='4'/>"));
    }

    pub(super) fn curve(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.add(format_args!("<polyline class='{class}' points='{}'/>", points.join(" ")));
    }

    pub(super) fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let (x, y) = at;
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.add(format_args!(
            "<text class='{class}' x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'>{}</text>",
            Escaped(text)
        ));
    }

    /// The whole file; `title` is for screen readers.
    pub(super) fn finish(self, title: &str) -> String {
        let Self { body, width, height } = self;
        let title = Escaped(title);
        format!(
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' \
             height='{height}' role='img'>\n<title>{title}</title>\n<style>{STYLE}</style>\n{body}</svg>\n"
        )
    }

    fn add(&mut self, element: fmt::Arguments<'_>) {
        // writing to a string cannot fail
        let _ = writeln!(self.body, "{element}");
    }
}

/// Text with escaped markup.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '<' => f.write_str("&lt;"),
                '>' => f.write_str("&gt;"),
                '&' => f.write_str("&amp;"),
                c => f.write_char(c),
            }?;
        }
        Ok(())
    }
}
