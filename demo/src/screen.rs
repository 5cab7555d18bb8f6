//! The output of the demo.

use std::io::{self, IsTerminal as _, Write as _};

use textwrap::{Options, fill};

/// The width of a line, unless a word is longer.
const WIDTH: usize = 80;

/// Writes a line to standard output. If that fails, the exit code still counts.
pub(super) fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// The numbers of a terminal's colours.
pub(super) const RED: u8 = 31;
pub(super) const GREEN: u8 = 32;
pub(super) const YELLOW: u8 = 33;

/// Writes a wrapped paragraph behind a label. Further lines are indented like the text. On a terminal the label has this colour,
/// unless `NO_COLOR` is set.
pub(super) fn paragraph(colour: u8, label: &str, text: &str) {
    let indent = " ".repeat(label.len());
    let options = Options::new(WIDTH).initial_indent(label).subsequent_indent(&indent);
    let wrapped = fill(text, options);
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    match wrapped.strip_prefix(label) {
        Some(rest) if io::stdout().is_terminal() && !is_plain => {
            say(&format!("\x1b[1;{colour}m{label}\x1b[0m{rest}"));
        }
        _ => say(&wrapped),
    }
}
