//! The load test's report in words for a first-time reader, for the demo and for the page.

use clap::ValueEnum as _;
use flash_sale::http::reply::grouped;
use loadtest::Report;

use crate::control::record::{Fault, Run, Verdict};
use crate::locks::LockMode;

/// Failures of the load test that the service need not have caused.
const NO_FAULT: [&str; 2] = ["unanswered", "failed"];

/// The load test's report, in the terms of this run.
pub(crate) fn judge(run: &Run, report: &Report, stale_batches: u64) -> Verdict {
    Verdict {
        pass: report.pass,
        oversold: report.tally.acknowledged_units.saturating_sub(run.stock),
        lost: report.lost,
        stale_batches,
        text: text(run, report, stale_batches),
    }
}

/// The text behind PASS or FAIL.
fn text(run: &Run, report: &Report, stale_batches: u64) -> String {
    let flaw = flaw(run);
    let cause = flaw.unwrap_or("That must not happen: it is a fault of the service.");
    let sold = report.tally.acknowledged_units;
    let excess = sold.saturating_sub(run.stock);
    let unanswered = report.tally.unknown + report.tally.failed;
    let [sold, sold_out, stock] = [sold, report.tally.sold_out, run.stock].map(grouped);
    let text = match report.reasons.first() {
        None => {
            format!("{sold} of {stock} sold, {sold_out} told sold out: no unit was sold twice.")
        }
        Some(_) if excess > 0 && flaw.is_some() => {
            format!("{sold} sold of {stock}: {} too many. {cause}", grouped(excess))
        }
        Some(reason) if NO_FAULT.contains(&reason.kind.as_str()) => format!("{}.", reason.text),
        Some(reason) => {
            let violation = report.violations.first().map(|violation| &violation.sentence);
            format!("{}. {cause}", violation.unwrap_or(&reason.text))
        }
    };
    let text = match unanswered {
        0 => text,
        n => format!("{text} {} buyers got no answer.", grouped(n)),
    };
    let what = match (run.fault, stale_batches) {
        (Some(Fault::Pause), 0) if run.fence => "was paused while it held the lock",
        (Some(Fault::Pause), 1..) => {
            "was paused beyond its lease; when it went on, the fence refused its batch"
        }
        (Some(Fault::Kill), _) => {
            "was killed while it held the lock; the next was served when its claim had ended"
        }
        _ => return text,
    };
    format!("{text} {} {what}.", run.victim.as_deref().unwrap_or("the holder"))
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
    use loadtest::report::{Failure, Tally};

    use super::*;

    fn explained(lock: LockMode, sold: u64, sold_out: u64, reason: Option<&str>) -> String {
        let reason = reason.map(|text| Failure { kind: "a kind".into(), text: text.into() });
        let unknown = 500 - sold - sold_out;
        let tally = Tally { acknowledged_units: sold, sold_out, unknown, ..Tally::default() };
        let reasons = reason.into_iter().collect();
        let report = Report { reasons, tally, ..Report::default() };
        let run = Run { stock: 300, guard: lock.name().into(), ..Run::default() };
        judge(&run, &report, 0).text
    }

    /// Goal: each outcome is explained with its numbers and its cause; a failure that the lock mode does not explain is a
    /// fault of the service.
    #[test]
    fn gives_numbers_and_cause() {
        assert_eq!(
            explained(LockMode::Etcd, 300, 200, None),
            "300 of 300 sold, 200 told sold out: no unit was sold twice."
        );
        assert_eq!(
            explained(LockMode::Etcd, 100, 0, None),
            "100 of 300 sold, 0 told sold out: no unit was sold twice. 400 buyers got no answer."
        );
        assert_eq!(
            explained(LockMode::NoLock, 500, 0, Some("oversold: 500 orders")),
            "500 sold of 300: 200 too many. That is what happens without a lock, when reading, deciding and writing are three steps."
        );
        assert!(explained(LockMode::Local, 400, 100, Some("oversold")).starts_with(
            "400 sold of 300: 100 too many. That is what happens without a lock between the instances"
        ));
        assert_eq!(
            explained(LockMode::Etcd, 300, 200, Some("lost: 2 orders")),
            "lost: 2 orders. That must not happen: it is a fault of the service."
        );
    }

    /// Goal: the verdict says what the fault was and how the fence met it.
    #[test]
    fn says_that_the_fence_refused_a_batch() {
        let tally = Tally { acknowledged_units: 300, sold_out: 200, ..Tally::default() };
        let report = Report { pass: true, tally, ..Report::default() };
        let run = Run { stock: 300, fence: true, fault: Some(Fault::Pause), ..Run::default() };
        let verdict = judge(&run, &report, 1);
        assert!(
            verdict.pass && verdict.text.ends_with("the fence refused its batch."),
            "{verdict:?}"
        );
    }
}
