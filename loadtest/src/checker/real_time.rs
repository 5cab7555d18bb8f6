//! I6: the ledger agrees with the clients' clock.
//!
//! All times are of one clock, that of the load test. An entry takes effect at one moment between its
//! first sending and its answer, and the ledger is said to be the order of those moments. A hold ends by Redis'
//! clock, which is compared with some tolerance.

use std::collections::HashMap;

use super::history::{History, LedgerEntry};
use super::order::{Event, FinalOutcome, Order};
use super::reason::{Found, Kind, at};
use crate::record::Setup;

/// By how much the clocks may differ: this part of a hold.
const CLOCK_TOLERANCE: u64 = 50;

/// The earliest and the latest time, in microseconds, at which an entry took effect. Of other buyers' entries it is unknown.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: u64,
    to: u64,
}

/// The times in which too few units were left for an order, in the stock or of what a user may have.
#[derive(Debug)]
struct Shortage {
    left: i64,
    needed: i64,
    /// The earliest time at which the present one began.
    since: Option<u64>,
    /// The earliest beginnings and the latest ends of the earlier ones, in order.
    past: Vec<Span>,
}

impl Shortage {
    fn of(left: i64, quantity: u64) -> Self {
        let needed = i64::try_from(quantity).unwrap_or(i64::MAX);
        Self { left, needed, since: (left < needed).then_some(0), past: Vec::new() }
    }

    /// Adds an entry, which comes not before `from` and not after `to`.
    fn add(&mut self, units: i64, Span { from, to }: Span) {
        self.left = self.left.saturating_add(units);
        if self.left < self.needed {
            self.since.get_or_insert(from);
        } else if let Some(from) = self.since.take() {
            self.past.push(Span { from, to });
        }
    }

    /// Whether there may have been a shortage while the order was under way.
    fn explains(&self, order: &Order) -> bool {
        let next = self.past.partition_point(|past| past.to < order.sent);
        let from = self.past.get(next).map(|past| past.from).or(self.since);
        from.is_some_and(|from| from <= order.ended)
    }
}

/// Finds what in the ledger contradicts the times. Where accepted orders are lost, refusals cannot be judged.
pub(super) fn check(history: &History, is_whole: bool, found: &mut Found) {
    let spans = spans(history);
    out_of_order(history, &spans, found);
    hold_not_kept(history, &spans, found);
    // an entry took effect after all earlier ones, and before all later ones
    let mut bounds = spans;
    for place in 1..bounds.len() {
        bounds[place].from = bounds[place].from.max(bounds[place - 1].from);
    }
    for place in (1..bounds.len()).rev() {
        bounds[place - 1].to = bounds[place - 1].to.min(bounds[place].to);
    }
    let (before, Setup { quantity, .. }) = (history.before(), &history.setup);
    let mut of_stock = Shortage::of(before.stock, *quantity);
    let mut of_users = HashMap::new();
    let limit = before.per_user.map(|limit| i64::try_from(limit).unwrap_or(i64::MAX));
    let new_user = || Shortage::of(limit.unwrap_or(i64::MAX), *quantity);
    for (entry, bounds) in history.ledger.iter().zip(bounds) {
        let units = entry.event.to_stock(entry.quantity);
        of_stock.add(units, bounds);
        if limit.is_some() {
            let of_user = of_users.entry(entry.user.clone()).or_insert_with(new_user);
            of_user.add(units, bounds);
            if of_user.left < 0 && units < 0 {
                found.add(Kind::OverLimit, format!("{} of {}", entry.order, entry.user));
            }
        }
    }
    // without a limit for each user, it is that of an order
    let is_by_user = limit.is_some() && before.per_order.is_none_or(|most| *quantity <= most);
    let has_nothing = new_user();
    for (number, order) in history.orders.iter().enumerate().filter(|_| is_whole) {
        let (kind, shortage) = match order.outcome {
            FinalOutcome::SoldOut => (Kind::SoldOutTooEarly, &of_stock),
            FinalOutcome::LimitReached if is_by_user => {
                let of_user = of_users.get(&history.setup.user(number));
                (Kind::LimitedTooEarly, of_user.unwrap_or(&has_nothing))
            }
            _ => continue,
        };
        if !shortage.explains(order) {
            let (id, sent, ended) = (history.setup.id(number), at(order.sent), at(order.ended));
            found.add(kind, format!("{id}, first sent at {sent} and answered at {ended}"));
        }
    }
}

/// When each entry took effect, as far as this run's clients know.
fn spans(history: &History) -> Vec<Span> {
    let mut seen = vec![[false; 2]; history.orders.len()];
    let hold = hold(history);
    let spans = history.ledger.iter().map(|entry| {
        let any = Span { from: 0, to: u64::MAX };
        let Some((number, order)) = order(history, entry) else { return any };
        // an order that is there twice is reported elsewhere
        if std::mem::replace(&mut seen[number][usize::from(entry.event != Event::Reserved)], true) {
            return any;
        }
        let told = order.told().filter(|(told, _)| *told == entry.event).map(|(_, at)| at);
        let asked = order.asked().filter(|(event, _)| *event == entry.event);
        let from = match entry.event {
            Event::Reserved => order.sent,
            Event::Expired => order.sent.saturating_add(hold - hold / CLOCK_TOLERANCE),
            _ => asked.map(|(_, asked)| asked.sent).min().unwrap_or(0),
        };
        Span {
            from,
            to: order
                .acknowledged()
                .filter(|_| entry.event == Event::Reserved)
                .or(told.min())
                .unwrap_or(u64::MAX),
        }
    });
    spans.collect()
}

/// The order of an entry, if it is one of this run's and was sent.
fn order<'h>(history: &'h History, entry: &LedgerEntry) -> Option<(usize, &'h Order)> {
    let number = history.own(entry)?;
    let order = history.orders.get(number).filter(|order| order.attempts > 0)?;
    Some((number, order))
}

/// How long a hold lasts, in microseconds.
fn hold(history: &History) -> u64 {
    history.before().hold_seconds.unwrap_or(0).saturating_mul(1_000_000)
}

fn out_of_order(history: &History, spans: &[Span], found: &mut Found) {
    // the entry so far that was sent last
    let mut latest = 0;
    for (place, span) in spans.iter().enumerate() {
        let sent = spans[latest].from;
        if span.to < sent && place > latest {
            let [behind, before] = [place, latest].map(|place| &history.ledger[place].order);
            let (answered, sent) = (at(span.to), at(sent));
            let example =
                format!("{behind}, answered at {answered}: {before} was first sent at {sent}");
            found.add(Kind::OutOfOrder, example);
        }
        if sent < span.from {
            latest = place;
        }
    }
}

/// Holds that ended before their time, or were confirmed or cancelled after it, by the clients' clock.
fn hold_not_kept(history: &History, spans: &[Span], found: &mut Found) {
    let hold = hold(history);
    for (entry, span) in history.ledger.iter().zip(spans).filter(|_| hold > 0) {
        let accepted = order(history, entry).and_then(|(_, order)| order.acknowledged());
        let latest = accepted.map(|at| at.saturating_add(hold + hold / CLOCK_TOLERANCE));
        let is_wrong = match entry.event {
            Event::Reserved => false,
            Event::Expired => span.to < span.from,
            _ => span.to < u64::MAX && latest.is_some_and(|latest| span.from > latest),
        };
        if is_wrong {
            let (order, event, told) = (&entry.order, entry.event, at(span.to));
            found.add(Kind::HoldNotKept, format!("{order}, {event:?}, told at {told}"));
        }
    }
}
