//! Judges a recorded run.

use std::collections::BTreeMap;
use std::time::Duration;

use super::audit::Audit;
use super::history::{History, StockState, Tally, order_id, u64_from};
use super::message::{count, were};
use super::order::{FinalOutcome, Order};
use super::pause::{self, Pause, Slowest};
use super::real_time;
use super::reason::Reason;

/// The judgement of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Faults, the most important first; empty for a run that passes.
    pub(crate) reasons: Vec<Reason>,
    /// Remarks for the reader.
    pub(crate) notes: Vec<String>,
    /// `PASS: ` or `FAIL: ` and the reasons, in one line.
    pub(crate) message: String,
    /// The longest time in which orders were tried and none was decided.
    pub(crate) longest_pause: Pause,
    /// The order that took longest.
    pub(crate) slowest: Slowest,
}

impl Verdict {
    /// How many orders were accepted and are not in the ledger.
    pub(crate) fn lost(&self) -> u64 {
        let lost = |reason: &Reason| match reason {
            Reason::Lost { orders, .. } => *orders,
            _ => 0,
        };
        self.reasons.iter().map(lost).sum()
    }
}

/// The limits of I5; without one, the time is reported and not judged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// The longest time in which orders are tried and none is decided.
    pub(crate) pause: Option<Duration>,
    /// The longest time of one order.
    pub(crate) order: Option<Duration>,
}

/// Judges a run.
pub(crate) fn judge(history: &History, limits: Limits) -> Verdict {
    let tally = history.tally();
    let audit = Audit::of(history);
    let mut reasons = Vec::new();
    // without a ledger, only the sums can be checked
    let no_ledger = keeps_no_ledger(history);
    if no_ledger {
        reasons.extend(unaccounted(history, &tally));
        reasons.extend(without_token(history, &tally));
    } else {
        reasons.extend(audit.reasons(history));
        reasons.extend(real_time::reasons(history));
    }
    let pause = pause::longest(&history.orders);
    if let Some(limit) = limits.pause.filter(|limit| pause.length() > *limit) {
        reasons.push(Reason::Paused { pause, limit });
    }
    let slowest = pause::slowest(&history.orders);
    reasons.extend(limits.order.and_then(|limit| slow_order(history, slowest, limit)));
    reasons.extend(history.gone.first().map(|url| Reason::Gone { url: url.clone() }));
    reasons.extend(oversold(history, &tally, &audit));
    reasons.extend(settled(history, &tally));
    reasons.extend(state(history, &tally, &audit, no_ledger));
    reasons.sort();

    let notes = notes(&tally, &audit, no_ledger);
    let message = if reasons.is_empty() {
        pass_message(history, &tally, &audit, no_ledger)
    } else {
        let all: Vec<_> = reasons.iter().map(Reason::to_string).collect();
        format!("FAIL: {}", all.join("; "))
    };
    Verdict { reasons, notes, message, longest_pause: pause, slowest }
}

/// A sale without a ledger records and counts no orders, and its answers have no token.
fn keeps_no_ledger(history: &History) -> bool {
    let mut answers = history.orders.iter().filter_map(|order| match &order.outcome {
        FinalOutcome::Acknowledged(answer) => Some(answer),
        _ => None,
    });
    let counts_no_orders =
        history.after.iter().all(|(_, after)| after.orders == history.before.orders);
    history.ledger.is_empty()
        && history.gone.is_empty()
        && counts_no_orders
        && answers.clone().next().is_some()
        && answers.all(|answer| answer.token.is_none())
}

/// Without a ledger: whether the units that left the stock are the acknowledged ones. An order without an
/// answer may have taken its units.
fn unaccounted(history: &History, tally: &Tally) -> Option<Reason> {
    let (_, after) = history.after.first()?;
    let taken = history.before.stock.saturating_sub(after.stock);
    let acknowledged = tally.acknowledged_units;
    let most = acknowledged.saturating_add(tally.unknown.saturating_mul(history.quantity));
    let fits = u64::try_from(taken).is_ok_and(|taken| (acknowledged..=most).contains(&taken));
    (!fits).then_some(Reason::Unaccounted { acknowledged, taken })
}

fn slow_order(history: &History, slowest: Slowest, limit: Duration) -> Option<Reason> {
    let too_long = |order: &&Order| Duration::from_micros(order.ended - order.sent) > limit;
    let orders = u64_from(history.orders.iter().filter(too_long).count());
    let (example, took) = (order_id(&history.run, slowest.number), slowest.pause.length());
    (orders > 0).then_some(Reason::SlowOrder { example, took, orders, limit })
}

/// Without a ledger: no answer has a token.
fn without_token(history: &History, tally: &Tally) -> Option<Reason> {
    let is_acknowledged = |order: &Order| order.acknowledged().is_some();
    let first = history.orders.iter().position(is_acknowledged).filter(|_| history.tokens)?;
    let example = order_id(&history.run, first);
    Some(Reason::WithoutToken { orders: tally.acknowledged, example })
}

fn oversold(history: &History, tally: &Tally, audit: &Audit) -> Option<Reason> {
    let available = history.before.stock.max(0).unsigned_abs();
    let known_units = tally.acknowledged_units + audit.foreign_units + audit.standing_units;
    let known_orders = tally.acknowledged + audit.foreign + audit.standing;
    let recorded = (audit.units, u64_from(history.ledger.len()));
    let (units, orders) = (known_units, known_orders).max(recorded);
    (units > available).then_some(Reason::Oversold { orders, units, available })
}

/// A run with a larger share of unanswered orders than one in this many cannot pass.
const UNANSWERED_SHARE: u64 = 100;

/// Whether enough orders were decided.
fn settled(history: &History, tally: &Tally) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if tally.failed > 0 {
        let mut kinds = BTreeMap::<&str, u64>::new();
        for order in &history.orders {
            if let FinalOutcome::Failed { kind, .. } = &order.outcome {
                *kinds.entry(kind).or_default() += 1;
            }
        }
        let kinds: Vec<_> = kinds.iter().map(|(kind, n)| format!("{n} x {kind}")).collect();
        reasons.push(Reason::Failed { orders: tally.failed, kinds: kinds.join(", ") });
    }
    let of = u64_from(history.orders.len());
    let orders = tally.unknown - tally.abandoned;
    if orders > of / UNANSWERED_SHARE {
        reasons.push(Reason::Unanswered { orders, of });
    }
    reasons
}

/// Whether the stock fits the answers.
fn state(history: &History, tally: &Tally, audit: &Audit, no_ledger: bool) -> Vec<Reason> {
    let Some((url, after)) = history.after.first() else { return Vec::new() };
    let before = &history.before;
    let mut reasons = Vec::new();
    let is_other = after.sale.zip(before.sale).is_some_and(|(after, before)| after != before);
    if is_other || after.initial != before.initial || after.orders < before.orders {
        reasons.push(Reason::Restarted);
    }
    if after.stock.checked_add(after.lucky) != Some(after.initial) {
        let (stock, lucky, initial) = (after.stock, after.lucky, after.initial);
        reasons.push(Reason::Unbalanced { stock, lucky, initial });
    }
    // the stock never rises, so what is left now was there when they were refused
    if tally.sold_out > 0 && after.stock >= i64::try_from(history.quantity).unwrap_or(i64::MAX) {
        reasons.push(Reason::SoldOutTooEarly { orders: tally.sold_out, left: after.stock });
    }
    let recorded = u64_from(history.ledger.len());
    if !no_ledger && audit.contradiction.is_none() {
        let taken = before.stock.saturating_sub(after.stock);
        let what = if after.orders.saturating_sub(before.orders) != recorded {
            Some(format!(
                "{url} counts {} orders, and it has {}",
                after.orders,
                before.orders + recorded
            ))
        } else if i64::try_from(audit.units) != Ok(taken) {
            Some(format!(
                "it has {} sold, and the stock went down by {taken}",
                count(audit.units, "unit")
            ))
        } else {
            None
        };
        reasons.extend(what.map(|what| Reason::LedgerDoesNotAddUp { what }));
    }
    if let Some((other, differing)) = history.after.iter().find(|(_, state)| state != after) {
        let describe = |url: &str, state: &StockState| {
            format!(
                "{url} tells stock {}, lucky {}, {} orders",
                state.stock, state.lucky, state.orders
            )
        };
        reasons.push(Reason::StatesDiffer {
            first: describe(url, after),
            second: describe(other, differing),
        });
    }
    reasons
}

fn notes(tally: &Tally, audit: &Audit, no_ledger: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if no_ledger {
        notes.push("no ledger: only the sums were checked".to_owned());
        if tally.unknown > 0 {
            notes.push(format!("{} not answered in the end", were(tally.unknown, "order")));
        }
    } else if tally.unknown > 0 {
        notes.push(format!(
            "{} not answered in the end; the ledger says that {} of them stand",
            were(tally.unknown, "order"),
            audit.standing
        ));
    }
    if audit.foreign > 0 {
        notes.push(format!(
            "other buyers took {} in {} during the run",
            count(audit.foreign_units, "unit"),
            count(audit.foreign, "order")
        ));
    }
    notes
}

fn pass_message(history: &History, tally: &Tally, audit: &Audit, no_ledger: bool) -> String {
    let (before, after) = (&history.before, history.after.first().map(|(_, state)| state));
    let refused = match tally.sold_out {
        0 => "none was told sold out".to_owned(),
        1 => "1 was told sold out".to_owned(),
        n => format!("{n} were told sold out"),
    };
    let balance = after.map_or_else(String::new, |state| {
        format!("; stock {} + lucky {} = {}", state.stock, state.lucky, state.initial)
    });
    let (units, once) = if no_ledger {
        (tally.acknowledged_units, ", as far as the sums can tell")
    } else {
        (audit.units, ", each exactly once")
    };
    format!("PASS: {units} of {} units sold{once}; {refused}{balance}", before.stock)
}
