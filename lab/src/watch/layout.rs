//! Wraps text into rows.

/// The column where texts begin, behind their labels.
pub(super) const INDENT: usize = 9;

/// The rows of all blocks if they fit; else without empty rows, then without the last blocks that are no
/// alerts.
pub(super) fn fit(mut blocks: Vec<(bool, Vec<String>)>, rows: usize) -> Vec<String> {
    let height = |blocks: &[(bool, Vec<String>)]| -> usize {
        blocks.iter().map(|(_, block)| block.len()).sum()
    };
    if height(&blocks) > rows {
        for (_, block) in &mut blocks {
            block.retain(|row| !row.is_empty());
        }
    }
    while height(&blocks) > rows {
        let Some(last) = blocks.iter().rposition(|(is_wrong, _)| !is_wrong) else { break };
        blocks.remove(last);
    }
    blocks.into_iter().flat_map(|(_, block)| block).collect()
}

/// An age, in seven characters.
pub(super) fn age(ms: f64) -> String {
    let seconds = (ms.max(0.0) / 1000.0).floor();
    if seconds < 100.0 {
        format!("{seconds:>3} s")
    } else if seconds < 6000.0 {
        format!("{:>3} min", (seconds / 60.0).floor())
    } else {
        format!("{:>3} h", (seconds / 3600.0).floor())
    }
}

/// The text behind its label, in rows of at most `columns`. Further rows are indented if there is room. Words
/// longer than a row are cut.
pub(super) fn wrap(label: &str, text: &str, columns: usize) -> Vec<String> {
    let indent = if columns >= 3 * INDENT { INDENT } else { 1 };
    let mut rows = Vec::new();
    let mut row = format!("{label:<INDENT$}");
    let mut is_empty = true;
    for word in text.split(' ') {
        let length = word.chars().count();
        if !is_empty && row.chars().count() + 1 + length > columns {
            rows.push(std::mem::replace(&mut row, " ".repeat(indent)));
            is_empty = true;
        }
        if !is_empty {
            row.push(' ');
        }
        row.push_str(word);
        is_empty = false;
    }
    rows.push(row);
    rows.into_iter().map(|row| row.chars().take(columns).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no row is longer than the terminal is wide, however narrow that is, and no word is lost where
    /// there is room.
    #[test]
    fn rows_fit() {
        let text = "8080 holds it for 1.5 s, token 123456, lease 694d9aa1f2c3b4d5";
        for columns in 1..100 {
            let rows = wrap("lock", text, columns);
            assert!(rows.iter().all(|row| row.chars().count() <= columns), "{rows:?}");
            if columns >= 40 {
                let words: Vec<_> = rows.iter().flat_map(|row| row.split_whitespace()).collect();
                assert_eq!(words.join(" "), format!("lock {text}"));
            }
        }
        assert_eq!(wrap("lock", text, 100), [format!("lock     {text}")]);
        assert_eq!(wrap("lock", text, 50)[1], "         lease 694d9aa1f2c3b4d5");
    }

    /// Goal: where there is little room, what is wrong is seen all the same.
    #[test]
    fn what_is_wrong_is_not_cut() {
        let block = |is_wrong, rows: &[&str]| {
            (is_wrong, rows.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let blocks =
            || vec![block(false, &["stock", ""]), block(false, &["lock"]), block(true, &["WRONG"])];
        assert_eq!(fit(blocks(), 4), ["stock", "", "lock", "WRONG"]);
        assert_eq!(fit(blocks(), 3), ["stock", "lock", "WRONG"]);
        assert_eq!(fit(blocks(), 2), ["stock", "WRONG"]);
        assert_eq!(fit(blocks(), 0), ["WRONG"]);
    }

    #[test]
    fn ages_are_short() {
        let ages = [-5.0, 9_000.0, 100_000.0, 7_200_000.0].map(age);
        assert_eq!(ages, ["  0 s", "  9 s", "  1 min", "  2 h"]);
    }
}
