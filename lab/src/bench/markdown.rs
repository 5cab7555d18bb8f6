//! Aligned tables, and figures with the digits that count.

use std::fmt::Write as _;

/// A table whose columns are as wide as they need to be; empty without rows. The first column is
/// text, the others are figures.
pub(crate) fn rows<const N: usize>(
    head: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let rows: Vec<_> = rows.into_iter().collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut widths = head.map(|cell| cell.chars().count().max(3));
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    let mut line = |cells: &[&str]| {
        for (n, (cell, width)) in cells.iter().zip(widths).enumerate() {
            // writing to a string cannot fail
            let _ = match n {
                0 => write!(text, "| {cell:<width$} "),
                _ => write!(text, "| {cell:>width$} "),
            };
        }
        text.push_str("|\n");
    };
    line(&head);
    let rule: Vec<_> = widths.iter().map(|width| "-".repeat(*width)).collect();
    line(&rule.iter().map(String::as_str).collect::<Vec<_>>());
    for row in &rows {
        line(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
    text
}

/// Three digits that count, and commas: `46,100`, `3.14`, `0.0521`.
pub(super) fn figure(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".to_owned();
    }
    let digits = 2.0 - value.abs().log10().floor();
    let rounded = (value * 10_f64.powf(digits)).round() / 10_f64.powf(digits);
    if rounded.abs() < 100.0 {
        let text = format!("{rounded:.6}");
        let decimals = if rounded.abs() >= 10.0 {
            1
        } else if rounded.abs() >= 1.0 {
            2
        } else {
            4
        };
        let cut = text.len() - 6 + decimals;
        let short = text[..cut].trim_end_matches('0').trim_end_matches('.');
        return short.to_owned();
    }
    let plain = format!("{rounded:.0}");
    let mut text = String::new();
    for (n, digit) in plain.chars().enumerate() {
        if n > 0 && (plain.len() - n) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: figures are short, and keep what counts.
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

    /// Goal: columns are aligned.
    #[test]
    fn tables_are_aligned() {
        let row = |name: &str, value: &str| [name.to_owned(), value.to_owned()];
        let table = rows(["name", "n"], [row("a", "1"), row("long name", "10,000")]);
        let lengths: Vec<_> = table.lines().map(|line| line.chars().count()).collect();
        assert!(lengths.windows(2).all(|pair| pair[0] == pair[1]), "{table}");
    }
}
