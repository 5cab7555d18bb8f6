//! Judges a recorded run.

use std::time::Duration;

use super::audit::Audit;
use super::history::{History, StockState, Tally, u64_from};
use super::order::Order;
use super::pause;
use super::real_time;
use super::reason::{Found, Kind, at, count, were};
use crate::cli::Limits;
use crate::report::{Failure, Report, Violation};

/// A run with a larger share of unanswered orders than one in this many cannot pass.
const UNANSWERED_SHARE: u64 = 100;

/// Judges a run: what it finds goes into the report, which has its figures.
pub(crate) fn judge(history: &History, limits: Limits, report: &mut Report) {
    let tally = &report.tally;
    let mut audit = Audit::of(history, tally);
    let mut found = std::mem::take(&mut audit.found);
    if !audit.no_ledger {
        real_time::check(history, audit.lost == 0, &mut found);
    }
    let longest_pause = pause::longest(&history.orders);
    if let Some(limit) = limits.longest_pause.filter(|limit| longest_pause.length() > *limit) {
        let (seconds, from) = (longest_pause.length().as_secs_f64(), at(longest_pause.from));
        let limit = humantime::format_duration(limit);
        let what = format!(
            "for {seconds:.3} s, from {from} on, orders were sent and none was decided; {limit} are allowed"
        );
        found.add(Kind::Paused, what);
    }
    for (number, order) in history.orders.iter().enumerate() {
        if limits.longest_order.is_some_and(|limit| order.length() > limit) {
            let (id, seconds) = (history.setup.id(number), order.length().as_secs_f64());
            found.add(Kind::SlowOrder, format!("{id}: for {seconds:.3} s"));
        }
    }
    if let Some(url) = history.gone.first() {
        found.add(Kind::Gone, format!("{url} no longer has the sale"));
    }
    check_oversold(history, tally, &audit, &mut found);
    check_answers(history, tally, &mut found);
    if let Some((url, after)) = history.after.first() {
        check_state(history, url, after, &mut found);
    }

    report.notes = notes(history, tally, &audit);
    report.verdict = pass_message(history, tally, &audit);
    report.lost = audit.lost;
    report.longest_pause_seconds = longest_pause.length().as_secs_f64();
    report.longest_pause_at_seconds = Duration::from_micros(longest_pause.from).as_secs_f64();
    let slowest = history.orders.iter().map(Order::length).max();
    report.slowest_order_seconds = slowest.unwrap_or_default().as_secs_f64();
    for (kind, sentence) in found.sentences() {
        let (invariant, kind) = (kind.row().0, kind.to_string());
        let text = invariant.map_or(sentence.clone(), |name| format!("{name} {sentence}"));
        report.reasons.push(Failure { kind, text });
        report.violations.extend(invariant.map(|name| Violation::new(name, sentence)));
    }
}

fn check_oversold(history: &History, tally: &Tally, audit: &Audit, found: &mut Found) {
    let available = history.before().stock.max(0).unsigned_abs();
    // where units come back, only the ledger tells how many were sold at one moment
    let known_units = match history.before().hold_seconds {
        None => tally.acknowledged_units + audit.foreign.1 + audit.standing.1,
        Some(_) => 0,
    };
    let known_orders = tally.acknowledged + audit.foreign.0 + audit.standing.0;
    let recorded = (u64::try_from(audit.most).unwrap_or(0), audit.orders);
    let (units, orders) = (known_units, known_orders).max(recorded);
    if let Some(excess) = units.checked_sub(available).filter(|excess| *excess > 0) {
        let (units, orders) = (were(units, "unit"), count(orders, "order"));
        let what =
            format!("{units} sold in {orders}, and there were {available}: {excess} too many");
        found.add(Kind::Oversold, what);
    }
}

/// Orders that were answered with an error, and too many without an answer.
fn check_answers(history: &History, tally: &Tally, found: &mut Found) {
    if tally.failed > 0 {
        let kinds = tally.failures.iter().map(|(kind, n)| format!("{n} x {kind}"));
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        let orders = were(tally.failed, "order");
        found.add(Kind::Failed, format!("{orders} answered with an error ({kinds})"));
    }
    let of = u64_from(history.orders.len());
    let orders = tally.unknown - tally.abandoned + tally.unknown_changes;
    if orders > of / UNANSWERED_SHARE && !history.interrupted {
        let of = count(of, "order");
        let what = format!("{orders} of {of} got no answer, too many to judge the sale");
        found.add(Kind::Unanswered, what);
    }
}

/// Whether the stock fits itself, and the instances agree on it.
fn check_state(history: &History, url: &str, after: &StockState, found: &mut Found) {
    let before = history.before();
    let is_other = after.sale.zip(before.sale).is_some_and(|(after, before)| after != before);
    if is_other || after.initial != before.initial || after.orders < before.orders {
        let what = "another sale was started during the run; run again without other clients";
        found.add(Kind::Restarted, what);
    }
    let StockState { stock, lucky, initial, .. } = after;
    let sum = i128::from(*stock) + i128::from(*lucky);
    if sum != i128::from(*initial) {
        let what =
            format!("stock {stock} + lucky {lucky} = {sum}, and the sale began with {initial}");
        found.add(Kind::Unbalanced, what);
    }
    if let Some((other_url, other)) = history.after.iter().find(|(_, state)| state != after) {
        let describe = |url: &str, state: &StockState| {
            let StockState { stock, lucky, orders, .. } = state;
            format!("{url} tells stock {stock}, lucky {lucky}, {orders} orders")
        };
        let what = format!("{}, but {}", describe(url, after), describe(other_url, other));
        found.add(Kind::StatesDiffer, what);
    }
}

fn notes(history: &History, tally: &Tally, audit: &Audit) -> Vec<String> {
    let mut notes = Vec::new();
    if audit.no_ledger {
        notes.push("no ledger: only the sums were checked".to_owned());
    }
    if tally.unknown > 0 {
        let (orders, standing) = (were(tally.unknown, "order"), audit.standing.0);
        notes.push(format!(
            "{orders} not answered in the end, and {standing} of them are in the ledger"
        ));
    }
    if audit.foreign.0 > 0 {
        let (orders, units) = (count(audit.foreign.0, "order"), count(audit.foreign.1, "unit"));
        notes.push(format!("other buyers took {units} in {orders} during the run"));
    }
    notes.extend(history.silent.iter().map(|url| format!("{url} does not answer after the run")));
    notes
}

fn pass_message(history: &History, tally: &Tally, audit: &Audit) -> String {
    let refused = match tally.sold_out {
        0 => "none was told sold out".to_owned(),
        n => format!("{n} {} told sold out", if n == 1 { "was" } else { "were" }),
    };
    let balance = history.after.first().map_or_else(String::new, |(_, state)| {
        format!("; stock {} + lucky {} = {}", state.stock, state.lucky, state.initial)
    });
    let (units, once) = if audit.no_ledger {
        (tally.acknowledged_units.cast_signed(), ", as far as the sums can tell")
    } else {
        (audit.units, ", each exactly once")
    };
    let returned = match audit.returned {
        0 => String::new(),
        units => format!("; {units} came back meanwhile"),
    };
    let of = history.before().stock;
    format!("PASS: {units} of {of} units sold{once}{returned}; {refused}{balance}")
}
