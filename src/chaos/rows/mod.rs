//! The faults.

mod clients;
mod processes;

use super::row::Row;

/// The rows of a short run: the lock's own faults, and those of its neighbours.
pub(super) const SHORT: &[&str] = &["holder-killed", "answer-swallowed"];

/// All rows, in the order of the table.
pub(super) fn all() -> Vec<Row> {
    [processes::rows(), clients::rows()].concat()
}
