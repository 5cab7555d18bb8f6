//! The load test's report in words for a first-time reader.

use loadtest::Report;

use super::options::DemoOptions;

/// The text behind PASS or FAIL.
pub(super) fn explain(options: &DemoOptions, report: &Report) -> String {
    let DemoOptions { requests, stock, instances, lock, .. } = *options;
    let (sold, refused) = (report.acknowledged_units, report.sold_out);
    let sale = format!(
        "{}, {}, {}",
        count(stock, "unit"),
        count(requests, "buyer"),
        count(instances.into(), "instance")
    );
    if report.pass {
        let unanswered = match report.unknown {
            0 => String::new(),
            n => format!("{n} left without an answer, "),
        };
        return format!(
            "{sale}: {sold} sold, {refused} told sold out, {unanswered}nobody got a unit that was \
             not there."
        );
    }
    let excess = sold.saturating_sub(stock);
    if excess == 0 {
        return format!("{sale}: {}", without_label(&report.verdict));
    }
    // it must not happen without a known flaw: then the load test's message helps to find the cause
    let cause = lock.flaw().unwrap_or_else(|| without_label(&report.verdict));
    format!("{sale}: sold {sold} of {stock}: {excess} too many. {cause}")
}

/// The load test's message without the label, which the demo prints itself.
fn without_label(message: &str) -> &str {
    message.trim_start_matches("PASS: ").trim_start_matches("FAIL: ")
}

fn count(n: u64, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::LockMode;

    fn explained(lock: LockMode, pass: bool, sold: u64, refused: u64) -> String {
        let options = DemoOptions {
            once: true,
            secure: false,
            requests: 500,
            stock: 300,
            instances: 2,
            port: 8080,
            lock,
        };
        let verdict = "FAIL: lost: 1 acknowledged order is not in the ledger".to_owned();
        let unknown = 500 - sold.min(500) - refused;
        let report = Report {
            pass,
            verdict,
            acknowledged_units: sold,
            sold_out: refused,
            unknown,
            ..Report::default()
        };
        explain(&options, &report)
    }

    /// Goal: each outcome is explained with its numbers and its cause.
    #[test]
    fn tells_numbers_and_cause() {
        assert_eq!(
            explained(LockMode::Etcd, true, 300, 200),
            "300 units, 500 buyers, 2 instances: 300 sold, 200 told sold out, nobody got a unit \
             that was not there."
        );
        assert_eq!(
            explained(LockMode::NoLock, false, 500, 0),
            "300 units, 500 buyers, 2 instances: sold 500 of 300: 200 too many. That is what \
             happens without a lock."
        );
        assert!(explained(LockMode::Local, false, 400, 100).contains(
            "sold 400 of 300: 100 too many. That is what happens without a lock between the \
             instances"
        ));
    }

    /// Goal: buyers who gave up are mentioned.
    #[test]
    fn tells_of_buyers_without_an_answer() {
        let told = explained(LockMode::Etcd, true, 100, 0);
        assert!(told.contains("100 sold, 0 told sold out, 400 left without an answer, nobody"));
    }

    /// Goal: a fault with another cause is explained by the load test's message.
    #[test]
    fn tells_other_faults() {
        let told = explained(LockMode::Etcd, false, 300, 200);
        assert!(
            told.ends_with("instances: lost: 1 acknowledged order is not in the ledger"),
            "{told}"
        );
    }
}
