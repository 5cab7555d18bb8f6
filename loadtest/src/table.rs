//! The report as text: a table and the verdict.

use std::fmt;

use crate::checker::message::count;
use crate::checker::u64_from;
use crate::latency::Percentiles;
use crate::report::Report;

/// Shorter pauses are normal.
const PAUSE_WORTH_TELLING_SECONDS: f64 = 0.5;

/// Shows a report.
#[derive(Debug)]
pub(crate) struct Table<'a>(pub(crate) &'a Report);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(report) = self;
        if report.probe_path.is_some() {
            return writeln!(f, "{}", report.verdict);
        }
        writeln!(
            f,
            "{} of {} each, over {} at {}",
            count(u64_from(report.requests), "order"),
            count(report.quantity, "unit"),
            count(u64_from(report.connections), "connection"),
            report.urls.join(", ")
        )?;
        writeln!(f)?;
        self.answers(f)?;
        let mut rows = Rows::new(f, "sold by");
        for (instance, share) in &report.instances {
            let percent = share.share * 100.0;
            rows.row(format_args!("{instance:<24}{:>8}  {percent:>5.1} %", share.acknowledged))?;
        }
        let mut rows = Rows::new(f, "time");
        rows.row(format_args!(
            "{:.3} s from the first request to the last answer, {:.0} answers/s",
            report.duration_seconds, report.answers_per_second
        ))?;
        if report.longest_pause_seconds >= PAUSE_WORTH_TELLING_SECONDS {
            rows.row(format_args!(
                "longest pause {:.3} s, from {:.3} s on",
                report.longest_pause_seconds, report.longest_pause_at_seconds
            ))?;
        }
        if let Some(latency) = &report.latency_microseconds {
            latencies(f, latency)?;
        }
        self.state(f)?;
        for note in &report.notes {
            Rows::new(f, "note").row(format_args!("{note}"))?;
        }
        writeln!(f)?;
        // one reason a line
        let Some((first, rest)) = report.reasons.split_first() else {
            return writeln!(f, "{}", report.verdict);
        };
        writeln!(f, "FAIL: {}", first.text)?;
        rest.iter().try_for_each(|fault| writeln!(f, "      {}", fault.text))
    }
}

impl Table<'_> {
    fn answers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(report) = self;
        let mut rows = Rows::new(f, "answers");
        for (status, answers) in &report.answers_by_status {
            let meaning = match status {
                200 if report.acknowledged == *answers => "reserved",
                409 if report.sold_out == *answers => "sold out",
                _ => "",
            };
            rows.row(format_args!("{status} {meaning:<20}{answers:>8}"))?;
        }
        if report.unknown > 0 {
            rows.row(format_args!("{:<24}{:>8}", "none in the end", report.unknown))?;
        }
        if report.abandoned > 0 {
            rows.row(format_args!("{:<24}{:>8}", "(of which went away)", report.abandoned))?;
        }
        if report.resolved > 0 {
            let unclear = "decided by a retry";
            rows.row(format_args!("{unclear:<24}{:>8}", report.resolved))?;
        }
        let mut rows = Rows::new(f, "failures");
        for (kind, orders) in &report.failures {
            rows.row(format_args!("{kind:<24}{orders:>8}"))?;
        }
        let mut rows = Rows::new(f, "unsettled");
        for (why, times) in &report.unsettled_attempts {
            rows.row(format_args!("{why:<24}{times:>8}"))?;
        }
        Ok(())
    }

    fn state(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(report) = self;
        let mut rows = Rows::new(f, "stock");
        rows.row(format_args!("before: {} to sell", report.before.stock))?;
        // the instances share one store: normally they have one state
        let mut states: Vec<_> = report.after.iter().collect();
        if states.windows(2).all(|pair| pair[0].1 == pair[1].1) {
            states.truncate(1);
        }
        for (url, state) in &states {
            let at = if states.len() > 1 { format!(" at {url}") } else { String::new() };
            rows.row(format_args!(
                "after{at}: stock {}, lucky {}, {} in the ledger",
                state.stock,
                state.lucky,
                count(state.orders, "order")
            ))?;
        }
        Ok(())
    }
}

fn latencies(f: &mut fmt::Formatter<'_>, latency: &Percentiles) -> fmt::Result {
    let mut rows = Rows::new(f, "latency");
    rows.row(format_args!(
        "min {}  p50 {}  p90 {}  p99 {}  p99.9 {}  max {}",
        millis(latency.min),
        millis(latency.p50),
        millis(latency.p90),
        millis(latency.p99),
        millis(latency.p99_9),
        millis(latency.max)
    ))?;
    rows.row(format_args!(
        "(all are released together: a time includes queueing behind the others)"
    ))
}

fn millis(microseconds: u64) -> String {
    format!("{}.{} ms", microseconds / 1000, microseconds % 1000 / 100)
}

/// Rows with a label before the first.
struct Rows<'f, 'b> {
    f: &'f mut fmt::Formatter<'b>,
    label: &'static str,
}

impl<'f, 'b> Rows<'f, 'b> {
    fn new(f: &'f mut fmt::Formatter<'b>, label: &'static str) -> Self {
        Self { f, label }
    }

    fn row(&mut self, text: fmt::Arguments<'_>) -> fmt::Result {
        writeln!(self.f, "  {:<13}{text}", std::mem::take(&mut self.label))
    }
}
