//! The scenarios, by what the fault hits.

mod clients;
mod configuration;
mod etcd;
mod network;
mod processes;
mod redis;
mod redis_cluster;
mod secured;

use super::scenario::Scenario;

/// The scenarios of a short run: fence, atomic script, order ids, durability and script reload.
pub(super) const SHORT: &[&str] =
    &["holder-paused", "holder-killed", "answer-swallowed", "redis-killed", "scripts-flushed"];

/// All scenarios, in the order of the table.
pub(super) fn all() -> Vec<Scenario> {
    [
        processes::scenarios(),
        network::scenarios(),
        clients::scenarios(),
        redis::scenarios(),
        redis_cluster::scenarios(),
        etcd::scenarios(),
        secured::scenarios(),
        configuration::scenarios(),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Goal: each scenario has a name of its own; those of a short run exist and have a control.
    #[test]
    fn names_are_unique_and_short_rows_exist() {
        let scenarios = all();
        let names: BTreeSet<_> = scenarios.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), scenarios.len());
        for name in SHORT {
            let scenario = scenarios
                .iter()
                .find(|scenario| scenario.name == *name)
                .expect("a short scenario exists");
            assert!(!scenario.controls.is_empty(), "{name}");
        }
    }

    /// Goal: a control differs from its scenario by more than its name.
    #[test]
    fn controls_differ_from_their_rows() {
        for scenario in all() {
            for control in &scenario.controls {
                let (with, without) = (scenario.run.setup, control.run.setup);
                assert_ne!(format!("{with:?}"), format!("{without:?}"), "{}", scenario.name);
            }
        }
    }
}
