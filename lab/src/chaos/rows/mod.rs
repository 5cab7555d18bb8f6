//! The faults, one file for each family.

mod clients;
mod configuration;
mod etcd;
mod network;
mod processes;
mod redis;
mod secured;

use super::row::Row;

/// The rows of a short run: the fence, the script that is one step, the order ids, what is
/// kept on the disk, and what comes back by itself.
pub(super) const SHORT: &[&str] =
    &["holder-paused", "holder-killed", "answer-swallowed", "redis-killed", "scripts-flushed"];

/// All rows, in the order of the table.
pub(super) fn all() -> Vec<Row> {
    [
        processes::rows(),
        network::rows(),
        clients::rows(),
        redis::rows(),
        etcd::rows(),
        secured::rows(),
        configuration::rows(),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Goal: each row can be asked for by a name of its own, and a short run has rows that there are,
    /// with a control each.
    #[test]
    fn names_are_unique_and_short_rows_exist() {
        let rows = all();
        let names: BTreeSet<_> = rows.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), rows.len());
        for name in SHORT {
            let row = rows.iter().find(|row| row.name == *name).expect("a short row exists");
            assert!(!row.controls.is_empty(), "{name}");
        }
    }

    /// Goal: a control differs from its row by more than its name, or it could not fail.
    #[test]
    fn controls_differ_from_their_rows() {
        for row in all() {
            for control in &row.controls {
                let (with, without) = (row.trial.setup, control.trial.setup);
                assert_ne!(format!("{with:?}"), format!("{without:?}"), "{}", row.name);
            }
        }
    }
}
