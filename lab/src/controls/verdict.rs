//! What a run's report means, for the page.

use std::fmt::Write as _;

use flash_sale::http::reply::grouped;
use flash_sale::inventory::Stock;
use loadtest::Report;

use super::record::{Fault, Run, Verdict};
use crate::baselines::LockMode;

/// Failures of the load test that do not show a fault of the service.
const NO_FAULT: [&str; 2] = ["unanswered", "failed"];

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
        oversold: report.acknowledged.saturating_sub(run.stock),
        lost: report.lost,
        stock: now.stock,
        lucky: now.lucky,
        balanced: now.is_balanced(),
        stale_batches,
        text: String::new(),
    };
    verdict.text = text(run, guard, report, &verdict);
    verdict
}

fn text(run: &Run, guard: LockMode, report: &Report, verdict: &Verdict) -> String {
    let [sold, sold_out, stock] = [verdict.sold, verdict.sold_out, run.stock].map(grouped);
    let Verdict { unanswered, oversold, .. } = *verdict;
    let mut text = match report.reasons.first() {
        None => format!(
            "{sold} of {stock} sold, {sold_out} told sold out: every unit went to one buyer."
        ),
        Some(_) if oversold > 0 => {
            let oversold = grouped(oversold);
            format!("Sold {sold} of {stock}: {oversold} too many. {}", cause(run, guard))
        }
        Some(reason) if NO_FAULT.contains(&reason.kind.as_str()) => format!("{}.", reason.text),
        Some(reason) => {
            let violation = report.violations.first().map(|violation| &violation.sentence);
            format!("{}. {}", violation.unwrap_or(&reason.text), cause(run, guard))
        }
    };
    if unanswered > 0 {
        let unanswered = grouped(unanswered);
        let _ = write!(text, " {unanswered} buyers got no answer.");
    }
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
            " {victim} was killed while it held the lock; the next was served when its lease had ended."
        ),
        _ => Ok(()),
    };
    text
}

/// The cause of a failure, as far as the settings of the run explain it.
fn cause(run: &Run, guard: LockMode) -> &'static str {
    let of_fault = "The holder was paused beyond its lease and then wrote what it had decided before: \
                    without a fence, nothing stops it.";
    match (guard.flaw(), run.fence, run.fault) {
        (Some(flaw), ..) => flaw,
        (None, false, Some(Fault::Pause)) => of_fault,
        (None, ..) => "That must not happen: it is a fault of the service.",
    }
}

#[cfg(test)]
mod tests {
    use loadtest::report;

    use super::super::record::State;
    use super::*;

    fn judged(guard: LockMode, fault: Option<Fault>, sold: u64, reason: Option<&str>) -> Verdict {
        let run = Run {
            id: "1-8080".into(),
            at_ms: 1,
            by: "8080".into(),
            state: State::Checking,
            stock: 300,
            requests: 500,
            guard: guard.name().into(),
            fence: true,
            fault,
            victim: fault.map(|_| "8090".into()),
            answered: 500,
            sold,
            sold_out: 500 - sold,
            failed: 0,
            elapsed_ms: 1,
            verdict: None,
            error: None,
        };
        let reasons = reason.map(|text| report::Fault { kind: "lost".into(), text: text.into() });
        let report = Report {
            pass: reason.is_none(),
            reasons: reasons.into_iter().collect(),
            acknowledged: sold,
            sold_out: 500 - sold,
            ..Report::default()
        };
        let stock =
            Stock { stock: 0, lucky: 300, initial: 300, fence: None, orders: 300, sale: Some(1) };
        judge(&run, guard, &report, &stock, u64::from(fault.is_some()))
    }

    #[test]
    fn every_unit_sold_once_passes() {
        let verdict = judged(LockMode::Etcd, None, 300, None);
        assert!(verdict.pass, "{verdict:?}");
        assert_eq!(
            verdict.text,
            "300 of 300 sold, 200 told sold out: every unit went to one buyer."
        );
    }

    #[test]
    fn each_fault_is_told() {
        let oversold = judged(LockMode::NoLock, None, 500, Some("oversold: 500 orders"));
        assert!(!oversold.pass && oversold.oversold == 200, "{oversold:?}");
        assert!(oversold.text.contains("200 too many. That is what happens without a lock."));
        let lost = judged(LockMode::Etcd, None, 300, Some("lost: 2 orders"));
        assert_eq!(
            lost.text,
            "lost: 2 orders. That must not happen: it is a fault of the service."
        );
    }

    #[test]
    fn a_refused_batch_is_told() {
        let verdict = judged(LockMode::Etcd, Some(Fault::Pause), 300, None);
        assert!(
            verdict.pass && verdict.text.ends_with("the fence refused its batch."),
            "{verdict:?}"
        );
    }
}
