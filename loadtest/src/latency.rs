//! Latencies of the answers.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longer ones are recorded as this long.
const LONGEST: Duration = Duration::from_hours(1);

/// Latencies in microseconds, to three digits.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

/// Percentiles, in microseconds.
#[expect(missing_docs, reason = "the fields say it")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    pub min: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
    pub max: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, micros(LONGEST), 3);
        Self(histogram.expect("the bounds and the precision are in the allowed range"))
    }
}

impl Latencies {
    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(micros(latency));
    }

    /// `None` if nothing was recorded.
    pub(crate) fn percentiles(&self) -> Option<Percentiles> {
        let at = |quantile| self.0.value_at_quantile(quantile);
        (!self.0.is_empty()).then(|| Percentiles {
            min: self.0.min(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: self.0.max(),
        })
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: percentiles are those of the recorded values, within the histogram's precision.
    #[test]
    fn percentiles_of_a_thousand() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentiles(), None);
        for millis in 1..=1000 {
            latencies.record(Duration::from_millis(millis));
        }
        let found = latencies.percentiles().expect("a thousand were recorded");
        let near = |value: u64, expected: u64| value.abs_diff(expected) * 1000 <= expected;
        assert!(near(found.min, 1000) && near(found.max, 1_000_000), "{found:?}");
        assert!(near(found.p50, 500_000) && near(found.p99, 990_000), "{found:?}");
        assert!(near(found.p99_9, 999_000), "{found:?}");
    }
}
