//! Judges a recorded run.

use std::time::Duration;

use super::audit::{Audit, without_token};
use super::history::{History, StockState, Tally, order_id, u64_from};
use super::order::Order;
use super::pause::{self, Pause};
use super::real_time;
use super::reason::{Kind, Reason, at, count, were};
use crate::cli::Limits;

/// The judgement of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The most important first; empty for a run that passes.
    pub(crate) reasons: Vec<Reason>,
    /// Remarks for the reader.
    pub(crate) notes: Vec<String>,
    /// What there is to say if there is no reason.
    pub(crate) pass: String,
    /// How many orders were accepted and are not in the ledger.
    pub(crate) lost: u64,
    /// The longest time in which orders were tried and none was decided.
    pub(crate) longest_pause: Pause,
    /// The time of the order that took longest.
    pub(crate) slowest: Pause,
}

/// Judges a run.
pub(crate) fn judge(history: &History, limits: Limits) -> Verdict {
    let tally = Tally::of(&history.orders, history.quantity);
    let audit = Audit::of(history);
    let mut reasons = Vec::new();
    if audit.no_ledger {
        reasons.extend(by_sums(history, &tally));
    } else {
        reasons.extend(audit.reasons());
        reasons.extend(real_time::reasons(history, audit.lost == 0));
    }
    let longest_pause = pause::longest(&history.orders);
    if let Some(limit) = limits.longest_pause.filter(|limit| longest_pause.length() > *limit) {
        reasons.push(Kind::Paused.because(format!(
            "for {:.3} s, from {} on, orders were sent and none was decided; {} are allowed",
            longest_pause.length().as_secs_f64(),
            at(longest_pause.from),
            humantime::format_duration(limit)
        )));
    }
    let (slowest_number, slowest) = pause::slowest(&history.orders);
    if let Some(limit) = limits.longest_order.filter(|limit| slowest.length() > *limit) {
        let too_long = |order: &&Order| Duration::from_micros(order.ended - order.sent) > limit;
        let orders = u64_from(history.orders.iter().filter(too_long).count());
        reasons.push(Kind::SlowOrder.because(format!(
            "{} tried for longer than {}, the longest time {}: for {:.3} s",
            were(orders, "order"),
            humantime::format_duration(limit),
            order_id(&history.run, slowest_number),
            slowest.length().as_secs_f64()
        )));
    }
    if let Some(url) = history.gone.first() {
        reasons.push(Kind::Gone.because(format!("{url} no longer has the sale")));
    }
    reasons.extend(oversold(history, &tally, &audit));
    reasons.extend(unsettled(history, &tally));
    if let Some((url, after)) = history.after.first() {
        reasons.extend(state(history, url, after));
    }
    reasons.sort_by_key(|reason| reason.kind);

    Verdict {
        reasons,
        notes: notes(history, &tally, &audit),
        pass: pass_message(history, &tally, &audit),
        lost: audit.lost,
        longest_pause,
        slowest,
    }
}

/// What the sums contradict, without a ledger. An order without an answer may have taken its units.
fn by_sums(history: &History, tally: &Tally) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if let Some((_, StockState { stock, .. })) = history.after.first() {
        let taken = history.before.stock.saturating_sub(*stock);
        let least = tally.acknowledged_units;
        let most = least.saturating_add(tally.unknown.saturating_mul(history.quantity));
        if !u64::try_from(taken).is_ok_and(|taken| (least..=most).contains(&taken)) {
            let units = count(least, "unit");
            let detail = format!("buyers got {units}, and the stock went down by {taken}");
            reasons.push(Kind::Unaccounted.because(detail));
        }
        // there are no holds, so what is left now was there when they were refused
        let is_enough = u64::try_from(*stock).is_ok_and(|stock| stock >= history.quantity);
        if tally.sold_out > 0 && is_enough {
            let orders = were(tally.sold_out, "order");
            let detail = format!("{orders} told sold out, and {stock} units are left");
            reasons.push(Kind::SoldOutTooEarly.because(detail));
        }
    }
    let first = history.orders.iter().position(|order| order.answer().is_some());
    if let Some(first) = first.filter(|_| history.tokens) {
        reasons.push(without_token(tally.acknowledged, &order_id(&history.run, first)));
    }
    reasons
}

fn oversold(history: &History, tally: &Tally, audit: &Audit) -> Option<Reason> {
    let available = history.before.stock.max(0).unsigned_abs();
    // where units come back, only the ledger tells how many were sold at one moment
    let known_units = match history.before.hold_seconds {
        None => tally.acknowledged_units + audit.foreign.1 + audit.standing.1,
        Some(_) => 0,
    };
    let known_orders = tally.acknowledged + audit.foreign.0 + audit.standing.0;
    let recorded = (u64::try_from(audit.most).unwrap_or(0), audit.orders);
    let (units, orders) = (known_units, known_orders).max(recorded);
    let excess = units.checked_sub(available).filter(|excess| *excess > 0)?;
    Some(Kind::Oversold.because(if orders == units {
        let (orders, units) = (were(orders, "order"), count(available, "unit"));
        format!("{orders} acknowledged for {units}, {excess} too many")
    } else {
        let (units, orders) = (were(units, "unit"), count(orders, "order"));
        format!("{units} sold in {orders}, and there were {available}: {excess} too many")
    }))
}

/// A run with a larger share of unanswered orders than one in this many cannot pass.
const UNANSWERED_SHARE: u64 = 100;

/// Orders that were answered with an error, and too many without an answer.
fn unsettled(history: &History, tally: &Tally) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if tally.failed > 0 {
        let kinds = tally.failures.iter().map(|(kind, n)| format!("{n} x {kind}"));
        let kinds: Vec<_> = kinds.collect();
        let (orders, kinds) = (were(tally.failed, "order"), kinds.join(", "));
        reasons.push(Kind::Failed.because(format!("{orders} answered with an error ({kinds})")));
    }
    let of = u64_from(history.orders.len());
    let orders = tally.unknown - tally.abandoned + tally.unknown_changes;
    if orders > of / UNANSWERED_SHARE && !history.interrupted {
        let of = count(of, "order");
        reasons.push(
            Kind::Unanswered
                .because(format!("{orders} of {of} got no answer, too many to judge the sale")),
        );
    }
    reasons
}

/// Whether the stock fits itself, and the instances agree on it.
fn state(history: &History, url: &str, after: &StockState) -> Vec<Reason> {
    let before = &history.before;
    let mut reasons = Vec::new();
    let is_other = after.sale.zip(before.sale).is_some_and(|(after, before)| after != before);
    if is_other || after.initial != before.initial || after.orders < before.orders {
        let what = "another sale was started during the run; run again without other clients";
        reasons.push(Kind::Restarted.because(what));
    }
    let StockState { stock, lucky, initial, .. } = after;
    let sum = i128::from(*stock) + i128::from(*lucky);
    if sum != i128::from(*initial) {
        reasons.push(Kind::Unbalanced.because(format!(
            "stock {stock} + lucky {lucky} = {sum}, and the sale began with {initial}"
        )));
    }
    if let Some((other_url, other)) = history.after.iter().find(|(_, state)| state != after) {
        let describe = |url: &str, state: &StockState| {
            let StockState { stock, lucky, orders, .. } = state;
            format!("{url} tells stock {stock}, lucky {lucky}, {orders} orders")
        };
        let detail = format!("{}, but {}", describe(url, after), describe(other_url, other));
        reasons.push(Kind::StatesDiffer.because(detail));
    }
    reasons
}

fn notes(history: &History, tally: &Tally, audit: &Audit) -> Vec<String> {
    let mut notes = Vec::new();
    if audit.no_ledger {
        notes.push("no ledger: only the sums were checked".to_owned());
    }
    if tally.unknown > 0 {
        let unanswered = format!("{} not answered in the end", were(tally.unknown, "order"));
        let standing = audit.standing.0;
        notes.push(if audit.no_ledger {
            unanswered
        } else {
            format!("{unanswered}; the ledger says that {standing} of them stand")
        });
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
    let of = history.before.stock;
    format!("PASS: {units} of {of} units sold{once}{returned}; {refused}{balance}")
}
