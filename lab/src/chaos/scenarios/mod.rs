//! The faults, one file for each family.

mod clients;
mod configuration;
mod etcd;
mod network;
mod processes;
mod redis;
mod secured;

use super::scenario::Scenario;

/// The scenarios of a short run: the fence, the script that is one step, the order ids, what is
/// kept on the disk, and what comes back by itself.
pub(super) const SHORT: &[&str] =
    &["holder-paused", "holder-killed", "answer-swallowed", "redis-killed", "scripts-flushed"];

/// All scenarios, in the order of the table.
pub(super) fn all() -> Vec<Scenario> {
    [
        processes::scenarios(),
        network::scenarios(),
        clients::scenarios(),
        redis::scenarios(),
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

    /// Goal: each scenario can be asked for by a name of its own, and a short run has scenarios that there are,
    /// with a control each.
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

    /// Goal: a control differs from its scenario by more than its name, or it could not fail.
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
