//! The faults, one file for each family.

mod clients;
mod configuration;
mod etcd;
mod network;
mod processes;
mod redis;

use super::row::Row;

/// The rows of a short run: a defence of each kind.
pub(super) const SHORT: &[&str] =
    &["holder-paused", "holder-killed", "answer-swallowed", "scripts-flushed", "names-alike"];

/// All rows, in the order of the table.
pub(super) fn all() -> Vec<Row> {
    [
        processes::rows(),
        network::rows(),
        clients::rows(),
        redis::rows(),
        etcd::rows(),
        configuration::rows(),
    ]
    .concat()
}
