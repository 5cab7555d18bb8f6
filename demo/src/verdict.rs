//! The load test's report in words for a first-time reader, for the demo and for the page.

use flash_sale::http::reply::grouped;
use loadtest::Report;

use crate::control::record::{Fault, Run, Verdict};

/// Findings of the load test that may have another cause than a fault of the service.
const NO_FAULT: [&str; 2] = ["unanswered", "failed"];

/// The verdict on a run, from the load test's report.
pub(crate) fn judge(run: &Run, report: &Report, stale_batches: u64) -> Verdict {
    let unfenced = "The holder was paused beyond its lease and then wrote what it had decided before: \
                    without a fence, nothing stops it.";
    let is_unfenced = !run.fence && run.fault == Some(Fault::Pause);
    // the reason for which the settings of the run make it fail
    let flaw = run.guard.flaw().map(|[_, text]| text).or(is_unfenced.then_some(unfenced));
    let cause = flaw.unwrap_or("That must not happen: it is a fault of the service.");
    let sold = report.tally.acknowledged_units;
    let oversold = sold.saturating_sub(run.stock);
    let unanswered = report.tally.unknown + report.tally.failed;
    let [sold, sold_out, stock] = [sold, report.tally.sold_out, run.stock].map(grouped);
    let violation = report.findings.iter().find(|found| found.invariant.is_some());
    let text = match report.findings.first() {
        None => {
            format!("{sold} of {stock} sold, {sold_out} told sold out: no unit was sold twice.")
        }
        Some(_) if oversold > 0 && flaw.is_some() => {
            format!("{sold} sold of {stock}: {} too many. {cause}", grouped(oversold))
        }
        Some(found) if NO_FAULT.contains(&found.kind.as_str()) => format!("{}.", found.text),
        Some(found) => format!("{}. {cause}", violation.unwrap_or(found).text),
    };
    let text = match unanswered {
        0 => text,
        n => format!("{text} {} buyers got no answer.", grouped(n)),
    };
    let told =
        |text| Verdict { pass: report.pass, oversold, lost: report.lost, stale_batches, text };
    let what = match (run.fault, stale_batches) {
        (Some(Fault::Pause), 0) if run.fence => "was paused while it held the lock",
        (Some(Fault::Pause), 1..) => {
            "was paused beyond its lease; when it went on, the fence refused its batch"
        }
        (Some(Fault::Kill), _) => {
            "was killed while it held the lock; the next was served when its claim had ended"
        }
        _ => return told(text),
    };
    told(format!("{text} {} {what}.", run.victim.as_deref().unwrap_or("the holder")))
}

#[cfg(test)]
mod tests {
    use loadtest::report::{Finding, Tally};

    use super::*;

    /// Goal: buyers without an answer are counted. A failure that the settings do not explain is a fault of the service.
    #[test]
    fn gives_numbers_and_cause() {
        let told = |sold, sold_out, found: &str| {
            let findings = [found].into_iter().filter(|text| !text.is_empty());
            let findings = findings.map(|text| Finding::new("a kind", text)).collect();
            let unknown = 500 - sold - sold_out;
            let tally = Tally { acknowledged_units: sold, sold_out, unknown, ..Tally::default() };
            let report = Report { findings, tally, ..Report::default() };
            let run = Run { stock: 300, fence: true, ..Run::default() };
            judge(&run, &report, 0).text
        };
        let unanswered = "no unit was sold twice. 400 buyers got no answer.";
        assert!(told(100, 0, "").ends_with(unanswered), "{}", told(100, 0, ""));
        let fault = "lost: 2. That must not happen: it is a fault of the service.";
        assert_eq!(told(300, 200, "lost: 2"), fault);
    }

    /// Goal: the verdict names the fault of the run, and a failure that this fault explains.
    #[test]
    fn a_fault_is_named() {
        let told = |fence, fault, sold| {
            let victim = Some("8090".to_owned());
            let run = Run { stock: 300, fence, fault: Some(fault), victim, ..Run::default() };
            let findings =
                (sold > 300).then(|| Finding::new("a kind", "text")).into_iter().collect();
            let tally = Tally { acknowledged_units: sold, ..Tally::default() };
            judge(&run, &Report { findings, tally, ..Report::default() }, 0).text
        };
        for (fence, fault, sold, words) in [
            (true, Fault::Pause, 300, "8090 was paused while it held the lock."),
            (true, Fault::Kill, 300, "8090 was killed"),
            (false, Fault::Pause, 301, "without a fence, nothing stops it"),
            (true, Fault::Pause, 301, "a fault of the service"),
        ] {
            let text = told(fence, fault, sold);
            assert!(text.contains(words), "{text}");
        }
    }
}
