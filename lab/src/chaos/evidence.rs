//! What a scenario saw: that its fault happened, and what is wrong beside the clients' record.

use std::collections::BTreeMap;
use std::time::Duration;

use loadtest::report::Violation;

/// What was seen during a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    /// How often the fault was injected.
    pub(super) times: u64,
    /// What was seen of it, and how often.
    pub(super) facts: BTreeMap<&'static str, u64>,
    pub(super) findings: Vec<Violation>,
    /// The longest time that a fault lasted in which nobody can be expected to sell.
    pub(super) longest_outage: Duration,
}

impl Evidence {
    /// Something was seen that often.
    pub(super) fn saw(&mut self, what: &'static str, times: u64) {
        *self.facts.entry(what).or_default() += times;
    }

    pub(super) fn count(&self, what: &str) -> u64 {
        self.facts.get(what).copied().unwrap_or_default()
    }

    /// Nobody could sell for that long.
    pub(super) fn outage(&mut self, lasted: Duration) {
        self.longest_outage = self.longest_outage.max(lasted);
    }

    pub(super) fn complain(&mut self, invariant: &str, sentence: impl Into<String>) {
        self.findings.push(Violation::new(invariant, sentence));
    }
}
