//! I6: the ledger agrees with the clients' clock.
//!
//! All times come from the load test's clock. An entry takes effect at one moment between its first sending and its answer, and
//! the ledger must have the order of those moments. Holds end by Redis' clock, which is compared with some tolerance.

use std::collections::HashMap;

use super::finding::{Found, Kind, at};
use super::history::{History, LedgerEntry, StockState};
use super::model::Sale;
use super::order::{Event, FinalOutcome, Held, Order};

/// By how much the clocks may differ: a hold's length divided by this.
const CLOCK_TOLERANCE: u64 = 50;

/// The earliest and the latest time, in microseconds, at which an entry took effect. Both are unknown for other buyers'
/// entries.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: u64,
    to: u64,
}

/// The times at which a condition may have been true.
#[derive(Clone, Debug)]
struct Times {
    /// Since when, at the earliest, it is true; `None` if it is not true now.
    since: Option<u64>,
    /// The earlier times, in order, each from its earliest beginning to its latest end.
    past: Vec<Span>,
}

impl Times {
    fn new(is_so: bool) -> Self {
        Self { since: is_so.then_some(0), past: Vec::new() }
    }

    /// The condition is (or is not) true after an entry that took effect between `from` and `to`.
    fn set(&mut self, is_so: bool, Span { from, to }: Span) {
        if is_so {
            self.since.get_or_insert(from);
        } else if let Some(from) = self.since.take() {
            self.past.push(Span { from, to });
        }
    }

    /// Whether the condition may have been true at some moment from `sent` to `ended`.
    fn meet(&self, sent: u64, ended: u64) -> bool {
        let next = self.past.partition_point(|past| past.to < sent);
        let from = self.past.get(next).map(|past| past.from).or(self.since);
        from.is_some_and(|from| from <= ended)
    }
}

/// When the entries took effect, and at which times refusals were true.
#[derive(Debug)]
pub(super) struct Clock<'h> {
    history: &'h History,
    /// When each entry took effect: after all earlier ones, and before all later ones.
    bounds: Vec<Span>,
    sold_out: Times,
    all_held: Times,
    paused: Times,
    /// When an order exceeded the limit of each user, and of a user who has nothing.
    of_users: HashMap<&'h str, Times>,
    of_new_user: Times,
    /// When an order was for more than any may have.
    of_order: Times,
}

impl<'h> Clock<'h> {
    /// Finds entries whose order contradicts the times.
    pub(super) fn of(history: &'h History, found: &mut Found) -> Self {
        let mut bounds = spans(history);
        hold_not_kept(history, &bounds, found);
        returned_unasked(history, &bounds, found);
        // the latest sending of any entry so far
        let mut latest = 0;
        for place in 1..bounds.len() {
            let (Span { from, to }, sent) = (bounds[place], bounds[latest].from);
            if to < sent {
                let [behind, before] = [place, latest].map(|place| &history.ledger[place].order);
                let (answered, sent) = (at(to), at(sent));
                let what =
                    format!("{behind}, answered at {answered}: {before} was first sent at {sent}");
                found.add(Kind::OutOfOrder, what);
            }
            latest = if sent < from { place } else { latest };
            bounds[place].from = from.max(sent);
        }
        for place in (1..bounds.len()).rev() {
            bounds[place - 1].to = bounds[place - 1].to.min(bounds[place].to);
        }
        let before = Sale::new(history.before(), true);
        let quantity = history.setup.plan.quantity;
        let [sold_out, all_held] = before.is_short_of(quantity).map(Times::new);
        let paused = Times::new(before.state.paused);
        let (of_users, of_new_user) =
            (HashMap::new(), Times::new(is_too_much_for("", &before, quantity)));
        let of_order = Times::new(is_too_large(&before, quantity));
        Self { history, bounds, sold_out, all_held, paused, of_users, of_new_user, of_order }
    }

    /// Records the state after the entry at this place.
    pub(super) fn note(&mut self, place: usize, entry: &'h LedgerEntry, sale: &Sale) {
        let (bounds, quantity) = (self.bounds[place], self.history.setup.plan.quantity);
        let [is_sold_out, is_all_held] = sale.is_short_of(quantity);
        self.sold_out.set(is_sold_out, bounds);
        self.all_held.set(is_all_held, bounds);
        if entry.event == Event::Changed {
            self.paused.set(sale.state.paused, bounds);
            self.of_order.set(is_too_large(sale, quantity), bounds);
            self.of_new_user.set(is_too_much_for("", sale, quantity), bounds);
            for (user, times) in &mut self.of_users {
                times.set(is_too_much_for(user, sale, quantity), bounds);
            }
        } else if sale.room(&entry.user).is_some() {
            let of_user = self.of_users.entry(&entry.user);
            let of_user = of_user.or_insert_with(|| self.of_new_user.clone());
            of_user.set(is_too_much_for(&entry.user, sale, quantity), bounds);
        }
    }

    /// Finds refusals that were not true at any moment between question and answer.
    pub(super) fn check_refusals(&self, found: &mut Found) {
        let before = self.history.before();
        // where instances of earlier builds sell, the count of what is held can be missing: all that is sold may seem to be held
        let is_counted = |state: &StockState| state.units.is_some_and(|it| it.held.is_some());
        let mut states = self.history.after.iter().map(|(_, state)| state).chain([before]);
        let is_all_counted = states.all(is_counted);
        for (number, order) in self.history.orders.iter().enumerate() {
            let id = || self.history.setup.id(number);
            for held in &order.held {
                let was_so = |times: &Times| times.meet(held.sent, held.ended);
                let is_true = if held.is_paused {
                    was_so(&self.paused)
                } else {
                    was_so(&self.all_held) || !is_all_counted && was_so(&self.sold_out)
                };
                if !is_true {
                    found.add(Kind::NotAllHeld, told(&id(), held.sent, held.ended));
                }
            }
            let (kind, times) = match order.outcome {
                FinalOutcome::SoldOut => (Kind::SoldOutTooEarly, &self.sold_out),
                FinalOutcome::LimitReached if !self.of_order.meet(order.last_sent, order.ended) => {
                    let of_user = self.of_users.get(&*self.history.setup.user(number));
                    (Kind::LimitedTooEarly, of_user.unwrap_or(&self.of_new_user))
                }
                _ => continue,
            };
            if !times.meet(order.last_sent, order.ended) {
                found.add(kind, told(&id(), order.last_sent, order.ended));
            }
        }
    }

    /// Finds requests that were sent after an entry, and whose answers ignore the entry. An order whose attempts all had an
    /// answer must not be in the ledger if it was refused.
    pub(super) fn check_retries(&self, found: &mut Found) {
        for (entry, bounds) in self.history.ledger.iter().zip(&self.bounds) {
            let Some((_, order)) = order(self.history, entry) else { continue };
            let mut late = order.questions().filter(|(_, asked)| asked.last_sent > bounds.to);
            let id = &entry.order;
            match entry.event {
                Event::Confirmed => {}
                Event::Reserved if !order.in_doubt => {}
                Event::Reserved => {
                    let is_late = |held: &Held| held.sent > bounds.to;
                    let is_refused = order.is_refused() && order.last_sent > bounds.to;
                    if is_refused || order.held.iter().any(is_late) {
                        found.add(Kind::Untold, id);
                    }
                    let is_told = order.answer().is_some();
                    if !is_told
                        && late.any(|(_, asked)| asked.outcome == FinalOutcome::UnknownOrder)
                    {
                        found.add(Kind::ChangeLost, format!("{id}, told that it is unknown"));
                    }
                }
                end => {
                    let stands = |(event, asked): &(Event, &Order)| {
                        let may_stand = match end {
                            Event::Returned => *event != Event::Returned,
                            _ => *event == Event::Reserved,
                        };
                        may_stand && asked.answer().is_some()
                    };
                    if let Some((event, _)) = late.find(stands) {
                        let told = format!("{event:?}").to_lowercase();
                        let what = format!("{id}, told that it is {told} after it was {end:?}");
                        found.add(Kind::ChangeLost, what);
                    }
                }
            }
        }
    }
}

/// A request in a finding's text.
fn told(id: &str, sent: u64, ended: u64) -> String {
    format!("{id}, sent at {} and answered at {}", at(sent), at(ended))
}

/// Whether an order of this quantity exceeds what this user may still take. The empty name stands for a user who has nothing.
fn is_too_much_for(user: &str, sale: &Sale, quantity: u64) -> bool {
    let room = sale.room(user);
    room.is_some_and(|room| Event::Reserved.to_stock(quantity).saturating_add(room) < 0)
}

fn is_too_large(sale: &Sale, quantity: u64) -> bool {
    sale.state.per_order.is_some_and(|most| quantity > most)
}

/// The time at which each entry took effect, as far as this run's clients know it.
fn spans(history: &History) -> Vec<Span> {
    let mut seen = vec![[false; 3]; history.orders.len()];
    let (hold, _) = hold(history);
    let spans = history.ledger.iter().map(|entry| {
        let any = Span { from: 0, to: u64::MAX };
        let Some((number, order)) = order(history, entry) else { return any };
        // an order with two entries is reported elsewhere
        let kind = match entry.event {
            Event::Reserved => 0,
            Event::Confirmed | Event::Cancelled | Event::Expired => 1,
            Event::Returned | Event::Changed => 2,
        };
        if std::mem::replace(&mut seen[number][kind], true) {
            return any;
        }
        let told = order.told().filter(|(told, _)| *told == entry.event).map(|(_, at)| at);
        let asked = order.asked().filter(|(event, _)| *event == entry.event);
        let from = match entry.event {
            Event::Reserved => order.done_from(),
            Event::Expired => order.done_from().saturating_add(hold - hold / CLOCK_TOLERANCE),
            _ => asked.map(|(_, asked)| asked.done_from()).min().unwrap_or(0),
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

/// The order of an entry, if it belongs to this run and was sent.
fn order<'h>(history: &'h History, entry: &LedgerEntry) -> Option<(usize, &'h Order)> {
    let number = history.own(entry)?;
    let order = history.orders.get(number).filter(|order| order.attempts > 0)?;
    Some((number, order))
}

/// How long holds last at least and at most, in microseconds.
fn hold(history: &History) -> (u64, u64) {
    let micros = |seconds: Option<u64>| seconds.unwrap_or(0).saturating_mul(1_000_000);
    (micros(history.holds().min()), micros(history.holds().max()))
}

/// Holds that ended before their time or before their buyers asked for it, or were confirmed or cancelled after it, by the
/// clients' clock.
fn hold_not_kept(history: &History, spans: &[Span], found: &mut Found) {
    let (_, hold) = hold(history);
    let ends =
        history.ledger.iter().zip(spans).filter(|(it, _)| {
            matches!(it.event, Event::Confirmed | Event::Cancelled | Event::Expired)
        });
    for (entry, Span { from, to }) in ends.filter(|_| hold > 0) {
        let accepted = order(history, entry).and_then(|(_, order)| order.acknowledged());
        let latest = accepted.map(|at| at.saturating_add(hold + hold / CLOCK_TOLERANCE));
        let latest = latest.filter(|latest| entry.event != Event::Expired && from > latest);
        let when = match latest {
            Some(latest) => format!("after {}, held until {}", at(*from), at(latest)),
            None if to < from => format!("before {}, told at {}", at(*from), at(*to)),
            None => continue,
        };
        found.add(Kind::HoldNotKept, format!("{}, {:?} {when}", entry.order, entry.event));
    }
}

/// Returns that were told of before their buyers asked for them.
fn returned_unasked(history: &History, spans: &[Span], found: &mut Found) {
    let entries = history.ledger.iter().zip(spans);
    let returns = entries.filter(|(entry, _)| entry.event == Event::Returned);
    for (entry, Span { from, to }) in returns.filter(|(_, span)| span.to < span.from) {
        let (from, to) = (at(*from), at(*to));
        let what = format!("{}, Returned before {from}, told at {to}", entry.order);
        found.add(Kind::ChangeLost, what);
    }
}
