//! What is told about requests that are no orders.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::checker::{Told, u64_from};
use crate::latency::Percentiles;
use crate::load::Load;
use crate::report::per_second;

/// With `--probe-path` and `--json` this is the one object on stdout. There is no verdict; the
/// fields mean what they mean in [`report`](crate::report).
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ProbeReport {
    pub(crate) probe_path: String,
    pub(crate) requests: usize,
    pub(crate) connections: usize,
    /// Answers with a status of 2xx.
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    pub(crate) unknown: u64,
    pub(crate) duration_seconds: f64,
    pub(crate) answers_per_second: f64,
    pub(crate) latency_microseconds: Option<Percentiles>,
    pub(crate) cpu_seconds: BTreeMap<String, f64>,
}

impl ProbeReport {
    pub(crate) fn new(probe_path: String, connections: usize, load: &Load) -> Self {
        let count = |is: fn(&Told) -> bool| {
            u64_from(load.orders.iter().filter(|order| is(&order.told)).count())
        };
        let answered = count(|told| *told == Told::Probed);
        Self {
            probe_path,
            requests: load.orders.len(),
            connections,
            answered,
            failed: count(|told| matches!(told, Told::Failed { .. })),
            unknown: count(|told| *told == Told::Unknown),
            duration_seconds: load.duration.as_secs_f64(),
            answers_per_second: per_second(answered, load.duration),
            latency_microseconds: load.latencies.percentiles(),
            cpu_seconds: load.cpu_seconds.clone(),
        }
    }

    /// Whether every request was answered as hoped.
    pub(crate) fn all_answered(&self) -> bool {
        self.answered == u64_from(self.requests)
    }
}

impl fmt::Display for ProbeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} of {} requests for {} answered over {} connections, {} failed, {} without an answer: \
             {:.3} s, {:.0} answers/s",
            self.answered,
            self.requests,
            self.probe_path,
            self.connections,
            self.failed,
            self.unknown,
            self.duration_seconds,
            self.answers_per_second
        )
    }
}
