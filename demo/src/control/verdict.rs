//! The verdict on a run, for the page.

use std::fmt::Write as _;

use flash_sale::inventory::Stock;
use loadtest::Report;

use super::record::{Fault, Run, Verdict};
use crate::baselines::LockMode;
use crate::verdict::explain;

/// The load test's report, with the stock `now`.
pub(super) fn judge(
    run: &Run,
    guard: LockMode,
    report: &Report,
    now: &Stock,
    stale_batches: u64,
) -> Verdict {
    let mut verdict = Verdict {
        pass: report.pass,
        sold: report.acknowledged,
        sold_out: report.sold_out,
        unanswered: report.unknown + report.failed,
        oversold: report.acknowledged_units.saturating_sub(run.stock),
        lost: report.lost,
        stock: now.stock,
        lucky: now.lucky,
        balanced: now.is_balanced(),
        stale_batches,
        takeover_ms: None,
        text: String::new(),
    };
    verdict.text = text(run, guard, report, &verdict);
    verdict
}

fn text(run: &Run, guard: LockMode, report: &Report, verdict: &Verdict) -> String {
    let mut text = explain(report, run.stock, flaw(run, guard));
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
fn flaw(run: &Run, guard: LockMode) -> Option<&'static str> {
    let unfenced = "The holder was paused beyond its lease and then wrote what it had decided before: \
                    without a fence, nothing stops it.";
    let is_unfenced = !run.fence && run.fault == Some(Fault::Pause);
    guard.flaw().or(is_unfenced.then_some(unfenced))
}

#[cfg(test)]
mod tests {
    use super::super::record::State;
    use super::*;

    /// Goal: the verdict says what the fault was and how the fence met it.
    #[test]
    fn says_that_the_fence_refused_a_batch() {
        let run = Run {
            id: "1-8080".into(),
            at_ms: 1,
            by: "8080".into(),
            state: State::Checking,
            began_ms: 1.0,
            hit_ms: None,
            stock: 300,
            requests: 500,
            guard: LockMode::Etcd.name().into(),
            fence: true,
            fault: Some(Fault::Pause),
            victim: Some("8090".into()),
            answered: 500,
            sold: 300,
            sold_out: 200,
            failed: 0,
            elapsed_ms: 1,
            verdict: None,
            error: None,
        };
        let report =
            Report { pass: true, acknowledged_units: 300, sold_out: 200, ..Report::default() };
        let stock =
            Stock { stock: 0, lucky: 300, initial: 300, fence: None, orders: 300, sale: Some(1) };
        let verdict = judge(&run, LockMode::Etcd, &report, &stock, 1);
        assert!(
            verdict.pass && verdict.text.ends_with("the fence refused its batch."),
            "{verdict:?}"
        );
    }
}
