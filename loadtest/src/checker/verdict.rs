//! Judges a recorded run: steps the model of its sale through the ledger, and compares each buyer's record with it.

use std::ptr;
use std::time::Duration;

use super::finding::{Found, Kind, at, count, were};
use super::history::{History, LedgerEntry, StockState, Tally, u64_from};
use super::model::{Sale, Standing};
use super::order::{Acknowledgement, Event, FinalOutcome, Order};
use super::pause;
use super::real_time::Clock;
use crate::cli::Limits;
use crate::report::Report;

/// A run with a larger share of unanswered orders than one in this many cannot pass.
const UNANSWERED_SHARE: u64 = 100;

/// Judges a run: what it finds goes into the report, which has its figures.
pub(crate) fn judge(history: &History, limits: Limits, report: &mut Report) {
    let mut found = Found::default();
    let mut sale = Sale::new(history.before(), history.is_guarded());
    let mut records = Records { no_ledger: keeps_no_ledger(history), ..Records::default() };
    if records.no_ledger {
        check_sums_alone(history, &report.tally, &mut found);
    } else {
        let mut clock = Clock::of(history, &mut found);
        for (place, entry) in history.ledger.iter().enumerate() {
            sale.apply(entry, &mut found);
            clock.note(place, entry, &sale);
        }
        records.compare(history, &sale, &mut found);
        // where accepted orders are lost, refusals cannot be judged
        if records.lost == 0 {
            clock.check_refusals(&mut found);
            if sale.can_gain() {
                clock.check_retries(&mut found);
            }
        }
        if let Some((url, after)) = history.after.first()
            && let Some(what) = sale.contradicted_by(url, after)
        {
            found.add(Kind::LedgerDoesNotAddUp, what);
        }
    }
    records.check_oversold(history, &report.tally, &sale, &mut found);
    check_answers(history, report, &mut found);
    if let Some((url, after)) = history.after.first() {
        check_state(history, url, after, sale.initial, &mut found);
    }
    if let Some(url) = history.gone.first() {
        found.add(Kind::Gone, format!("{url} no longer has the sale"));
    }
    let longest_pause = pause::longest(&history.orders);
    if longest_pause.length() > limits.longest_pause {
        let (seconds, from) = (longest_pause.length().as_secs_f64(), at(longest_pause.from));
        let limit = humantime::format_duration(limits.longest_pause);
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

    report.notes = records.notes(history, &report.tally, &sale);
    report.verdict = records.pass_message(history, &report.tally, &sale);
    report.lost = records.lost;
    report.longest_pause_seconds = longest_pause.length().as_secs_f64();
    report.longest_pause_at_seconds = Duration::from_micros(longest_pause.from).as_secs_f64();
    let slowest = history.orders.iter().map(Order::length).max();
    report.slowest_order_seconds = slowest.unwrap_or_default().as_secs_f64();
    report.findings = found.findings();
}

/// The counts of a comparison of the buyers' records with the ledger.
#[derive(Debug, Default)]
struct Records {
    /// There is no ledger, so that only the sums can be checked.
    no_ledger: bool,
    /// Orders and units of other clients.
    foreign: (u64, u64),
    /// Unanswered orders that are in the ledger, and their units.
    standing: (u64, u64),
    /// Accepted orders that are not in the ledger.
    lost: u64,
}

impl Records {
    /// Compares all that is in the ledger with the buyers' records: each order of this run, and the orders of others.
    fn compare(&mut self, history: &History, sale: &Sale<'_>, found: &mut Found) {
        let nothing = Standing::default();
        for (number, order) in history.orders.iter().enumerate() {
            let (user, id) = (history.setup.user(number), history.setup.id(number));
            let standing = sale.standing(&user, &id).unwrap_or(&nothing);
            self.compare_order(history, &id, order, standing, sale.can_gain(), found);
        }
        for entry in &history.ledger {
            let is_own = history.own(entry).is_some_and(|number| number < history.orders.len());
            let standing = sale.standing(&entry.user, &entry.order).filter(|_| !is_own);
            let first =
                |it: &&Standing<'_>| it.reserved.or(it.end).is_some_and(|it| ptr::eq(it, entry));
            let Some(standing) = standing.filter(first) else { continue };
            // no other client's ids begin like this: a service that changes ids has sold twice
            if entry.order.starts_with(&history.setup.run) {
                found.add(Kind::Untold, &entry.order);
                continue;
            }
            if history.setup.alone {
                found.add(Kind::Strangers, &entry.order);
            }
            if standing.end.is_some() && !standing.was_held {
                found.add(Kind::NotHeld, &entry.order);
            }
            let units = standing.reserved.map_or(0, |entry| entry.quantity);
            self.foreign.0 += standing.times;
            self.foreign.1 = self.foreign.1.saturating_add(units.saturating_mul(standing.times));
        }
    }

    fn compare_order(
        &mut self,
        history: &History,
        id: &str,
        order: &Order,
        standing: &Standing<'_>,
        can_gain: bool,
        found: &mut Found,
    ) {
        let &Standing { reserved, end, was_held, .. } = standing;
        if reserved.is_none() && order.is_accepted() {
            self.lost += 1;
            found.add(Kind::Lost, id);
            return;
        } else if end.is_some() && (reserved.is_none() || !was_held) {
            found.add(Kind::NotHeld, id);
        }
        let Some(entry) = reserved else { return };
        if entry.quantity != history.setup.quantity {
            found.add(Kind::WrongQuantity, id);
        }
        match order.answer() {
            Some(answer) if differs(answer, entry) => found.add(Kind::Misreported, id),
            Some(_) => {}
            None if order.must_not_stand(can_gain) => found.add(Kind::Untold, id),
            None => {
                let (orders, units) = self.standing;
                self.standing = (orders + 1, units.saturating_add(entry.quantity));
            }
        }
        let ended = end.map(|end| end.event);
        // a hold expires without being asked
        if let Some(end) = end.filter(|end| end.event != Event::Expired) {
            let asked = order.asked().filter(|(event, _)| *event == end.event);
            let answers = asked.clone().filter_map(|(_, asked)| asked.answer());
            if answers.clone().any(|answer| differs(answer, end)) {
                found.add(Kind::Misreported, id);
            } else if answers.count() == 0 && !asked.clone().any(|(_, asked)| asked.in_doubt) {
                found.add(Kind::Untold, id);
            }
        } else if end.is_none() && history.awaited_hold().is_some() {
            found.add(Kind::StillHeld, id);
        }
        for (told, _) in order.told().filter(|(told, _)| Some(*told) != ended) {
            let there = ended.map_or("not there".to_owned(), |end| format!("{end:?}"));
            found.add(Kind::ChangeLost, format!("{id}, {told:?} and {there}"));
        }
        let Some(first) = order.answer() else { return };
        for (event, asked) in order.asked() {
            match &asked.outcome {
                FinalOutcome::Acknowledged(again) if event == Event::Reserved => {
                    if (Acknowledgement { replayed: first.replayed, ..again.clone() }) != *first {
                        found.add(Kind::AnsweredAnew, id);
                    } else if !again.replayed {
                        found.add(Kind::NotMarked, id);
                    }
                }
                FinalOutcome::SoldOut | FinalOutcome::LimitReached => {
                    found.add(Kind::AnsweredAnew, format!("{id}: {:?}", asked.outcome));
                }
                FinalOutcome::UnknownOrder => {
                    found.add(Kind::ChangeLost, format!("{id}, told that it is unknown"));
                }
                _ => {}
            }
        }
    }

    fn check_oversold(&self, history: &History, tally: &Tally, sale: &Sale<'_>, found: &mut Found) {
        // where units come back, only the ledger tells how many were sold at one moment
        let told = tally.acknowledged_units + self.foreign.1 + self.standing.1;
        let told = if sale.can_gain() { 0 } else { told.cast_signed() };
        let excess = |(units, offered): &(i64, i64)| units.saturating_sub(*offered.max(&0));
        let most = [(told, sale.offered), sale.worst].into_iter().max_by_key(excess);
        let (units, offered) = most.unwrap_or_default();
        let excess = excess(&(units, offered));
        if excess > 0 {
            let known = tally.acknowledged + self.foreign.0 + self.standing.0;
            let orders = count(known.max(sale.orders - history.before().orders), "order");
            let units = were(units.unsigned_abs(), "unit");
            let offered = offered.max(0);
            let what =
                format!("{units} sold in {orders}, and there were {offered}: {excess} too many");
            found.add(Kind::Oversold, what);
        }
    }

    fn notes(&self, history: &History, tally: &Tally, sale: &Sale<'_>) -> Vec<String> {
        let mut notes = Vec::new();
        if self.no_ledger {
            notes.push("no ledger: only the sums were checked".to_owned());
        }
        if tally.unknown > 0 {
            let (orders, standing) = (were(tally.unknown, "order"), self.standing.0);
            notes.push(format!(
                "{orders} not answered in the end, and {standing} of them are in the ledger"
            ));
        }
        if self.foreign.0 > 0 {
            let (orders, units) = (count(self.foreign.0, "order"), count(self.foreign.1, "unit"));
            notes.push(format!("other buyers took {units} in {orders} during the run"));
        }
        if sale.has_holds && history.awaited_hold().is_none() {
            let held = history.after.first().and_then(|(_, after)| after.held).unwrap_or(0);
            let orders = were(held, "order");
            notes.push(format!("{orders} still held, and whether that ends was not awaited"));
        }
        let silent = history.silent.iter();
        notes.extend(silent.map(|url| format!("{url} does not answer after the run")));
        notes
    }

    fn pass_message(&self, history: &History, tally: &Tally, sale: &Sale<'_>) -> String {
        let refused = match tally.sold_out {
            0 => "none was told sold out".to_owned(),
            n => format!("{n} {} told sold out", if n == 1 { "was" } else { "were" }),
        };
        let balance = history.after.first().map_or_else(String::new, |(_, state)| {
            format!("; stock {} + lucky {} = {}", state.stock, state.lucky, state.initial)
        });
        let (units, once) = if self.no_ledger {
            (tally.acknowledged_units.cast_signed(), ", as far as the sums can tell")
        } else {
            (sale.taken, ", each exactly once")
        };
        let returned = match sale.returned {
            0 => String::new(),
            units => format!("; {units} came back meanwhile"),
        };
        let of = history.before().stock;
        format!("PASS: {units} of {of} units sold{once}{returned}; {refused}{balance}")
    }
}

/// Orders that were answered with an error, and too many without an answer.
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

/// Whether the stock fits itself, and the instances agree on it.
fn check_state(history: &History, url: &str, after: &StockState, initial: i64, found: &mut Found) {
    let before = history.before();
    let is_other = after.sale.zip(before.sale).is_some_and(|(after, before)| after != before);
    if is_other || after.initial != initial || after.orders < before.orders {
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

/// What the sums contradict, without a ledger. An order without an answer may have taken its units.
fn check_sums_alone(history: &History, tally: &Tally, found: &mut Found) {
    if !history.setup.without_ledger {
        let what = "the service keeps no ledger and gives no tokens, so that only the sums can be checked, which \
                    --without-ledger allows";
        found.add(Kind::NoLedger, what);
    }
    let stock = history.after.first().map(|(_, after)| after.stock);
    let taken = stock.map(|stock| history.before().stock.saturating_sub(stock));
    let least = tally.acknowledged_units;
    let most = least.saturating_add(tally.unknown.saturating_mul(history.setup.quantity));
    let is_possible =
        |taken: i64| u64::try_from(taken).is_ok_and(|it| (least..=most).contains(&it));
    if let Some(taken) = taken.filter(|taken| !is_possible(*taken)) {
        let units = count(least, "unit");
        found.add(
            Kind::Unaccounted,
            format!("buyers got {units}, and the stock went down by {taken}"),
        );
    }
    // there are no holds, so what is left now was there when they were refused
    let order = Event::Reserved.to_stock(history.setup.quantity);
    let is_enough = stock.is_some_and(|stock| stock.saturating_add(order) >= 0);
    for (number, order) in history.orders.iter().enumerate() {
        if is_enough && order.is_sold_out() {
            found.add(Kind::SoldOutTooEarly, history.setup.id(number));
        }
        if history.setup.tokens && order.answer().is_some() {
            found.add(Kind::WithoutToken, history.setup.id(number));
        }
    }
}

/// A sale without a ledger records and counts no orders, and its answers have no token.
fn keeps_no_ledger(history: &History) -> bool {
    history.ledger.is_empty()
        && history.gone.is_empty()
        && history.after.iter().all(|(_, after)| after.orders == history.before().orders)
        && history.answers().next().is_some()
        && history.answers().all(|answer| answer.token.is_none())
}

fn differs(answer: &Acknowledgement, entry: &LedgerEntry) -> bool {
    (answer.remaining, answer.token) != (entry.remaining, entry.token)
        || answer.position.is_some_and(|position| position != entry.position)
        || entry.instance.as_ref().is_some_and(|instance| *instance != answer.instance)
}
