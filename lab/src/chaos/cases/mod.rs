//! The cases, by what the fault hits, and the faults.

mod clients;
mod configuration;
mod etcd;
mod network;
mod peers;
mod processes;
mod redis;
mod redis_cluster;
mod secured;

use super::case::Case;

/// The scenarios of a short run: fence, atomic script, order ids, durability and script reload.
pub(super) const SHORT: &[&str] =
    &["holder-paused", "holder-killed", "answer-swallowed", "redis-killed", "scripts-flushed"];

/// All cases, in the order of the table: each scenario before its controls.
pub(super) fn all() -> Vec<Case> {
    [
        processes::cases(),
        peers::cases(),
        network::cases(),
        clients::cases(),
        redis::cases(),
        redis_cluster::cases(),
        etcd::cases(),
        secured::cases(),
        configuration::cases(),
    ]
    .concat()
}

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    all().into_iter().filter(|case| case.control.is_none()).map(|case| case.name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Goal: each case has a title of its own, which names its directory; the scenarios of a short run exist and have a control.
    #[test]
    fn titles_are_unique_and_short_rows_exist() {
        let all = all();
        let titles: BTreeSet<_> = all.iter().map(Case::title).collect();
        assert_eq!(titles.len(), all.len());
        for name in SHORT {
            let of_name: Vec<_> = all.iter().filter(|case| case.name == *name).collect();
            assert!(of_name.len() >= 2 && of_name[1..].iter().all(|it| it.control.is_some()));
        }
    }
}
