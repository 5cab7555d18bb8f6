//! Tables in Markdown, for the terminal and for documents, and figures rounded to three digits.

use std::fmt::Write as _;

use clap::ValueEnum;
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use flash_sale::http::reply::grouped;

/// A Markdown table with this head and these rows, written `one | other`; empty without rows. The first column is text, the
/// others are figures.
pub(crate) fn rows(head: &str, rows: impl IntoIterator<Item = String>) -> String {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(head.split(" | "));
    for row in rows {
        table.add_row(row.split(" | "));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    if table.is_empty() { String::new() } else { format!("{table}\n") }
}

/// Adds a table under its title, unless it is empty.
pub(crate) fn section(text: &mut String, title: &str, table: &str) {
    if !table.is_empty() {
        // writing to a string cannot fail
        let _ = write!(text, "## {title}\n\n{table}\n");
    }
}

/// A value's name on the command line.
pub(crate) fn value_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Three significant digits, and commas: `46,100`, `3.14`, `0.0521`.
pub(crate) fn figure(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".to_owned();
    }
    let digits = 2.0 - value.abs().log10().floor();
    let rounded = (value * 10_f64.powf(digits)).round() / 10_f64.powf(digits);
    if rounded.abs() < 100.0 {
        let text = match rounded.abs() {
            10.0.. => format!("{rounded:.1}"),
            1.0.. => format!("{rounded:.2}"),
            _ => format!("{rounded:.4}"),
        };
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let plain = format!("{rounded:.0}");
    plain.parse::<i128>().map_or(plain, grouped)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: figures are short, and keep their significant digits.
    #[test]
    fn figures() {
        for (value, text) in [
            (46_123.0, "46,100"),
            (1_234_567.0, "1,230,000"),
            (123.4, "123"),
            (99.96, "100"),
            (12.34, "12.3"),
            (2.346, "2.35"),
            (1.0, "1"),
            (0.052_14, "0.0521"),
            (0.0, "0"),
        ] {
            assert_eq!(figure(value), text);
        }
    }
}
