//! The verdict on a run, for the page.

use std::fmt::Write as _;

use clap::ValueEnum as _;
use loadtest::Report;

use super::record::{Fault, Run, Verdict};
use crate::baselines::LockMode;
use crate::verdict::explain;

/// The load test's report, in the terms of this run.
pub(super) fn judge(run: &Run, report: &Report, stale_batches: u64) -> Verdict {
    let mut verdict = Verdict {
        pass: report.pass,
        sold: report.acknowledged,
        sold_out: report.sold_out,
        oversold: report.acknowledged_units.saturating_sub(run.stock),
        lost: report.lost,
        stale_batches,
        takeover_ms: None,
        text: String::new(),
    };
    verdict.text = text(run, report, &verdict);
    verdict
}

fn text(run: &Run, report: &Report, verdict: &Verdict) -> String {
    let mut text = explain(report, run.stock, flaw(run));
    // writing to a text cannot fail
    let victim = run.victim.as_deref().unwrap_or("the holder");
    let _ = match (run.fault, verdict.stale_batches) {
        (Some(Fault::Pause), 0) if run.fence => {
            write!(text, " {victim} was paused while it held the lock.")
        }
        (Some(Fault::Pause), n) if n > 0 => write!(
            text,
            " {victim} was paused beyond its lease; when it went on, the fence refused its batch."
        ),
        (Some(Fault::Kill), _) => write!(
            text,
            " {victim} was killed while it held the lock; the next was served when its claim had ended."
        ),
        _ => Ok(()),
    };
    text
}

/// Why the settings of the run make it fail.
fn flaw(run: &Run) -> Option<&'static str> {
    let unfenced = "The holder was paused beyond its lease and then wrote what it had decided before: \
                    without a fence, nothing stops it.";
    let is_unfenced = !run.fence && run.fault == Some(Fault::Pause);
    let guard = LockMode::from_str(&run.guard, false).unwrap_or_default();
    guard.flaw().or(is_unfenced.then_some(unfenced))
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::run_with;
    use super::*;

    /// Goal: the verdict says what the fault was and how the fence met it.
    #[test]
    fn says_that_the_fence_refused_a_batch() {
        let report =
            Report { pass: true, acknowledged_units: 300, sold_out: 200, ..Report::default() };
        let verdict = judge(&run_with(Fault::Pause), &report, 1);
        assert!(
            verdict.pass && verdict.text.ends_with("the fence refused its batch."),
            "{verdict:?}"
        );
    }
}
