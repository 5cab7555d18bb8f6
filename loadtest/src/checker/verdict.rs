//! Judges a recorded run: steps the model of its sale through the ledger and the buyers' records.

use std::time::Duration;

use super::finding::{Found, Kind, at, count, were};
use super::history::{History, StockState, Tally, u64_from};
use super::model::Sale;
use super::order::Event;
use super::pause;
use super::real_time::Clock;
use crate::cli::Limits;
use crate::report::Report;

/// A run cannot pass if more than one order in this many got no answer.
const UNANSWERED_SHARE: u64 = 100;

/// Judges a run. Adds the findings to the report, which has the run's figures.
pub(crate) fn judge(history: &History, limits: Limits, report: &mut Report) {
    let mut sale = Sale::new(history.before(), history.is_guarded());
    let no_ledger = keeps_no_ledger(history);
    let mut foreign = (0, 0);
    if no_ledger {
        check_sums_alone(history, &report.tally, &mut sale.found);
    } else {
        foreign = step(history, &mut sale);
    }
    check_oversold(history, &report.tally, foreign, &mut sale);
    check_answers(history, report, &mut sale.found);
    check_states(history, &mut sale);
    let longest_pause = pause::longest(&history.orders);
    if longest_pause.length() > limits.longest_pause {
        let (seconds, from) = (longest_pause.length().as_secs_f64(), at(longest_pause.from));
        let limit = humantime::format_duration(limits.longest_pause);
        let what = format!(
            "for {seconds:.3} s, from {from} on, orders were sent and none was decided; {limit} are allowed"
        );
        sale.found.add(Kind::Paused, what);
    }
    let mut slowest = Duration::ZERO;
    for (number, order) in history.orders.iter().enumerate() {
        let lengths = order.questions().map(|(_, asked)| asked.length());
        let longest = lengths.max().unwrap_or_default();
        if limits.longest_order.is_some_and(|limit| longest > limit) {
            let (id, seconds) = (history.setup.id(number), longest.as_secs_f64());
            sale.found.add(Kind::SlowOrder, format!("{id}: for {seconds:.3} s"));
        }
        slowest = slowest.max(longest);
    }

    report.notes = notes(history, &report.tally, foreign, &sale);
    let (units, once) = if no_ledger {
        report.notes.insert(0, "no ledger: only the sums were checked".to_owned());
        (report.tally.acknowledged_units.cast_signed(), ", as far as the sums can tell")
    } else {
        (sale.taken(), ", each exactly once")
    };
    report.verdict =
        pass_message(history, &report.tally, &sale, &format!("{units} of {}", sale.offered), once);
    report.lost = sale.lost;
    report.longest_pause_seconds = longest_pause.length().as_secs_f64();
    report.longest_pause_at_seconds = Duration::from_micros(longest_pause.from).as_secs_f64();
    report.slowest_order_seconds = slowest.as_secs_f64();
    report.findings = sale.findings();
}

/// Steps the model through the ledger and the buyers' records. Returns the numbers of other clients' orders and of their units.
fn step(history: &History, sale: &mut Sale) -> (u64, u64) {
    let mut foreign = (0, 0_u64);
    let mut clock = Clock::of(history, &mut sale.found);
    for (place, entry) in history.ledger.iter().enumerate() {
        let is_first = sale.apply(entry);
        clock.note(place, entry, sale);
        if history.own(entry).is_some_and(|number| number < history.orders.len()) {
            continue;
        }
        // only this run's ids begin like this: a service that changes ids has sold the order twice
        let is_ours = entry.order.starts_with(&history.setup.run);
        let is_other = !is_ours && entry.event == Event::Reserved;
        if is_first && is_ours {
            sale.found.add(Kind::Untold, &entry.order);
        } else if is_first && is_other && history.setup.plan.alone {
            sale.found.add(Kind::Strangers, &entry.order);
        }
        if is_other {
            foreign = (foreign.0 + 1, foreign.1.saturating_add(entry.quantity));
        }
    }
    for (number, order) in history.orders.iter().enumerate() {
        let (user, id) = (history.setup.user(number), history.setup.id(number));
        sale.compare(&user, &id, history.setup.plan.quantity, order);
        if history.awaited_hold().is_some() && sale.is_held(&user, &id) {
            sale.found.add(Kind::StillHeld, id);
        }
    }
    // if accepted orders are lost, refusals cannot be judged
    if sale.lost == 0 {
        clock.check_refusals(&mut sale.found);
        if sale.can_gain() {
            clock.check_retries(&mut sale.found);
        }
    }
    if let Some((url, after)) = history.after.first() {
        sale.check_end(url, after);
    }
    foreign
}

fn check_oversold(history: &History, tally: &Tally, foreign: (u64, u64), sale: &mut Sale) {
    // if units come back, only the ledger tells how many were sold at one moment
    let told = tally.acknowledged_units + foreign.1 + sale.unanswered.1;
    let told = if sale.can_gain() { 0 } else { told.cast_signed() };
    let offered = sale.offered.max(0);
    let excess = told.saturating_sub(offered).max(sale.oversold());
    let units = offered.saturating_add(excess);
    if excess > 0 {
        let known = tally.acknowledged + foreign.0 + sale.unanswered.0;
        let orders = count(known.max(sale.state.orders - history.before().orders), "order");
        let units = were(units.unsigned_abs(), "unit");
        let what = format!("{units} sold in {orders}, and there were {offered}: {excess} too many");
        sale.found.add(Kind::Oversold, what);
    }
}

fn notes(history: &History, tally: &Tally, foreign: (u64, u64), sale: &Sale) -> Vec<String> {
    let mut notes = Vec::new();
    if tally.unknown > 0 {
        let (orders, standing) = (were(tally.unknown, "order"), sale.unanswered.0);
        let what =
            format!("{orders} not answered in the end, and {standing} of them are in the ledger");
        notes.push(what);
    }
    if foreign.0 > 0 {
        let (orders, units) = (count(foreign.0, "order"), count(foreign.1, "unit"));
        notes.push(format!("other buyers took {units} in {orders} during the run"));
    }
    let changes = history.ledger.iter().filter(|entry| entry.event == Event::Changed);
    let added = changes.clone().filter_map(|entry| entry.change.as_ref()?.add);
    let (times, units) = (u64_from(changes.count()), added.fold(0, i64::saturating_add));
    if times > 0 {
        let times = count(times, "time");
        notes.push(format!("the sale was changed {times} during the run ({units:+} units)"));
    }
    if sale.state.hold_seconds.is_some() && history.awaited_hold().is_none() {
        let held = history.after.first().and_then(|(_, after)| after.held).unwrap_or(0);
        let orders = were(held, "order");
        notes.push(format!("{orders} still held, and whether that ends was not awaited"));
    }
    let silent = history.silent.iter();
    notes.extend(silent.map(|url| format!("{url} does not answer after the run")));
    notes
}

fn pass_message(history: &History, tally: &Tally, sale: &Sale, units: &str, once: &str) -> String {
    let refused = match tally.sold_out {
        0 => "none was told sold out".to_owned(),
        n => format!("{n} {} told sold out", if n == 1 { "was" } else { "were" }),
    };
    let held_out = match tally.held_out {
        0 => String::new(),
        n => format!(", and {n} gave up while all was held or the sale was paused"),
    };
    let balance = history.after.first().map_or_else(String::new, |(_, state)| {
        format!("; stock {} + lucky {} = {}", state.stock, state.lucky, state.initial)
    });
    let returned = match sale.returned {
        0 => String::new(),
        units => format!("; {units} came back meanwhile"),
    };
    format!("PASS: {units} units sold{once}{returned}; {refused}{held_out}{balance}")
}

/// Finds orders that were answered with an error, and too many orders without an answer.
fn check_answers(history: &History, report: &Report, found: &mut Found) {
    let Report { tally, not_sent, .. } = report;
    if tally.failed > 0 {
        let kinds = tally.failures.iter().map(|(kind, n)| format!("{n} x {kind}"));
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        let orders = were(tally.failed, "order");
        found.add(Kind::Failed, format!("{orders} answered with an error ({kinds})"));
    }
    let of = u64_from(history.orders.len());
    let orders = tally.unknown - tally.abandoned + tally.unknown_changes;
    if *not_sent > 0 {
        let (not_sent, due) = (u64_from(*not_sent), count(of + u64_from(*not_sent), "order"));
        found.add(Kind::NotSent, format!("{not_sent} of {due} were due and not sent"));
    }
    if orders > of / UNANSWERED_SHARE && !history.interrupted {
        let of = count(of, "order");
        let what = format!("{orders} of {of} got no answer, too many to judge the sale");
        found.add(Kind::Unanswered, what);
    }
}

/// Whether the states fit themselves and each other, and are of the sale that the run began with.
fn check_states(history: &History, sale: &mut Sale) {
    let (initial_now, found) = (sale.state.initial, &mut sale.found);
    if let Some(url) = history.gone.first() {
        found.add(Kind::Gone, format!("{url} no longer has the sale"));
    }
    let (Some((url, after)), before) = (history.after.first(), history.before()) else { return };
    let is_other = after.sale.zip(before.sale).is_some_and(|(after, before)| after != before);
    if is_other || after.initial != initial_now || after.orders < before.orders {
        let what = "another sale was started during the run; run again without other clients";
        found.add(Kind::Restarted, what);
    }
    let (stock, lucky, initial) = (after.stock, after.lucky, after.initial);
    let sum = i128::from(stock) + i128::from(lucky);
    if sum != initial.into() {
        let what =
            format!("stock {stock} + lucky {lucky} = {sum}, and the sale began with {initial}");
        found.add(Kind::Unbalanced, what);
    }
    if let Some((other_url, other)) = history.after.iter().find(|(_, state)| differ(state, after)) {
        let [this, other] = [(url, after), (other_url, other)].map(|(url, state)| {
            let (stock, lucky, orders) = (state.stock, state.lucky, state.orders);
            format!("{url} tells stock {stock}, lucky {lucky}, {orders} orders")
        });
        found.add(Kind::StatesDiffer, format!("{this}, but {other}"));
    }
}

/// Whether two states contradict each other. An instance of an earlier build does not report `units`, and a number may be
/// unknown.
fn differ(one: &StockState, other: &StockState) -> bool {
    let units = one.units.zip(other.units);
    let pairs =
        units.map(|(one, other)| [(one.held, other.held), (one.confirmed, other.confirmed)]);
    let is_other =
        |(one, other): (Option<u64>, Option<u64>)| one.zip(other).is_some_and(|(a, b)| a != b);
    pairs.into_iter().flatten().any(is_other)
        || StockState { units: None, ..one.clone() } != StockState { units: None, ..other.clone() }
}

/// Judges a run without a ledger by the sums. An order without an answer may have taken its units.
fn check_sums_alone(history: &History, tally: &Tally, found: &mut Found) {
    let plan = &history.setup.plan;
    if !plan.without_ledger {
        let what = "the service keeps no ledger and gives no tokens, so that only the sums can be checked, which \
                    --without-ledger allows";
        found.add(Kind::NoLedger, what);
    }
    let stock = history.after.first().map(|(_, after)| after.stock);
    let taken = stock.map(|stock| history.before().stock.saturating_sub(stock));
    let least = tally.acknowledged_units;
    let most = least.saturating_add(tally.unknown.saturating_mul(plan.quantity));
    let is_possible =
        |taken: i64| u64::try_from(taken).is_ok_and(|it| (least..=most).contains(&it));
    if let Some(taken) = taken.filter(|taken| !is_possible(*taken)) {
        let what =
            format!("buyers got {}, and the stock went down by {taken}", count(least, "unit"));
        found.add(Kind::Unaccounted, what);
    }
    // without holds, the units that are left now were there when the orders were refused
    let order = Event::Reserved.to_stock(plan.quantity);
    let is_enough = stock.is_some_and(|stock| stock.saturating_add(order) >= 0);
    for (number, order) in history.orders.iter().enumerate() {
        if is_enough && order.is_sold_out() {
            found.add(Kind::SoldOutTooEarly, history.setup.id(number));
        }
        if plan.tokens && order.answer().is_some() {
            found.add(Kind::WithoutToken, history.setup.id(number));
        }
    }
}

/// Whether the service keeps no ledger: it records and counts no orders, and its answers have no token.
fn keeps_no_ledger(history: &History) -> bool {
    history.ledger.is_empty()
        && history.gone.is_empty()
        && history.after.iter().all(|(_, after)| after.orders == history.before().orders)
        && history.answers().next().is_some()
        && history.answers().all(|answer| answer.token.is_none())
}
