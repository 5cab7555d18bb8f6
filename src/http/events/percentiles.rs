//! The latency over the last seconds.

use std::collections::VecDeque;
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::time::Instant;

use super::clock::round;
use super::view::Percentiles;
use crate::sale::latency::Latency;

/// The length of the window.
const WINDOW_SECONDS: usize = 5;

/// The latency of the last seconds, one histogram a second.
#[derive(Default)]
pub(super) struct LastSeconds {
    seconds: VecDeque<Option<Histogram<u64>>>,
    last: Option<Instant>,
    latest: Option<Percentiles>,
}

impl LastSeconds {
    /// The percentiles, computed once a second.
    pub(super) fn tick(&mut self, latency: &Latency) -> Option<Percentiles> {
        let now = Instant::now();
        if self.last.is_none_or(|last| now - last >= Duration::from_secs(1)) {
            self.last = Some(now);
            if self.seconds.len() == WINDOW_SECONDS {
                self.seconds.pop_front();
            }
            self.seconds.push_back(latency.take());
            self.latest = self.compute();
        }
        self.latest.clone()
    }

    fn compute(&self) -> Option<Percentiles> {
        let mut all = Latency::empty();
        for second in self.seconds.iter().flatten() {
            // fails only if the bounds differ
            all.add(second).ok()?;
        }
        let ms = |us: u64| {
            let us = u32::try_from(us).unwrap_or(u32::MAX);
            // two decimals: a fast order takes less than a tenth of a millisecond
            round(f64::from(us) / 100.0) / 10.0
        };
        (!all.is_empty()).then(|| Percentiles {
            p50: ms(all.value_at_quantile(0.5)),
            p90: ms(all.value_at_quantile(0.9)),
            p99: ms(all.value_at_quantile(0.99)),
            max: ms(all.max()),
            count: all.len(),
            window_s: WINDOW_SECONDS as u64,
        })
    }
}
