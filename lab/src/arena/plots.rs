//! The results as pictures.

use super::Results;
use super::faults::Takeover;
use super::options::Fault;
use crate::experiment::{Bar, Spread, bars};

/// File name and content of every picture with something to show.
pub(super) fn all(results: &Results) -> Vec<(&'static str, String)> {
    let handovers = results.locks.iter().flat_map(|one| {
        one.handovers.iter().map(|at| Bar {
            label: format!("{}, {} ms away", one.lock, at.round_trip_ms),
            spread: Spread {
                median: at.p50_ms,
                min: at.p50_ms,
                max: at.p99_ms.unwrap_or(at.p50_ms),
            },
            ours: at.round_trip_ms == 0,
        })
    });
    let handovers: Vec<_> = handovers.collect();
    let title = "From a release to the next grant";
    let handovers = bars(title, ("milliseconds", "median to 99th percentile"), &handovers);
    let (mut takeovers, mut never) = (Vec::new(), Vec::new());
    for fault in [Fault::Kill, Fault::Pause, Fault::Partition, Fault::Server, Fault::Leader] {
        for one in &results.locks {
            let of_fault = |it: &&Takeover| it.fault == fault;
            let Some(takeover) = one.takeovers.iter().find(of_fault) else { continue };
            let label = format!("{}, {}", fault.name(), one.lock);
            match (takeover.p50_ms, takeover.longest_ms) {
                (Some(p50), Some(longest)) => {
                    let spread = Spread { median: p50 / 1e3, min: p50 / 1e3, max: longest / 1e3 };
                    takeovers.push(Bar { label, spread, ours: one.lock == "etcd" });
                }
                // no trial hit a holder
                _ if takeover.never == 0 => {}
                _ => never.push(format!("{label}, {} of {}", takeover.never, takeover.trials)),
            }
        }
    }
    let never =
        if never.is_empty() { String::new() } else { format!(" (never: {})", never.join("; ")) };
    let title = format!("Nobody was served after a fault{never}");
    let takeovers = bars(&title, ("seconds", "median to longest"), &takeovers);
    [("handovers.svg", handovers), ("takeovers.svg", takeovers)]
        .into_iter()
        .filter_map(|(name, picture)| Some((name, picture?)))
        .collect()
}
