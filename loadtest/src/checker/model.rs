//! The reference model: a sale, stepped through its ledger and through its buyers' records.
//!
//! It works in memory, without files and clocks, so that a simulator can step it as well:
//!
//! ```
//! use loadtest::model::{LedgerEntry, Order, Sale, StockState};
//!
//! /// `orders` are the ids and the records of buyers who wanted one unit each.
//! fn judge(before: &StockState, ledger: &[LedgerEntry], orders: &[(&str, Order)], after: StockState) {
//!     let mut sale = Sale::new(before, true);
//!     for entry in ledger {
//!         sale.apply(entry);
//!         assert_eq!(sale.state.stock + sale.state.lucky, sale.state.initial);
//!     }
//!     for (id, order) in orders {
//!         sale.compare("", id, 1, order);
//!     }
//!     sale.check_end("redis", &after);
//!     assert!(sale.findings().is_empty(), "{:?}", sale.findings());
//! }
//! ```
//!
//! An [`Order`] is built attempt by attempt with [`Order::add`], and what its buyer asks for later with [`Order::change`].
//! Times are in microseconds, of any clock that all buyers share.
//!
//! The terms are state, which entries change.
//!
//! A token belongs to one writer: the `holder` of an entry, or its `instance` if it has none. The model sees nothing where two
//! instances have one name.

use std::collections::HashMap;

pub use super::finding::Finding;
use super::finding::{Found, Kind};
pub use super::history::{Change, LedgerEntry, StockState, Units};
use super::order::FinalOutcome;
pub use super::order::{Acknowledgement, Effect, Event, Failure, Order, Outcome};

/// The largest limit, which is none.
const NO_LIMIT: u64 = 1_000_000;

/// The entries of one order.
#[derive(Clone, Debug, Default)]
struct Standing {
    reserved: Option<LedgerEntry>,
    /// How often it was reserved.
    times: u64,
    /// The first entry that ends its hold.
    end: Option<LedgerEntry>,
    /// Whether `end` ended a hold: one of this ledger, or one that was open before it.
    was_held: bool,
    /// The entry with which it came back after it was final.
    returned: Option<LedgerEntry>,
}

/// A sale after some entries, and the faults so far.
#[derive(Debug, Default)]
pub struct Sale {
    /// The state that the instances must report now.
    pub state: StockState,
    pub(crate) found: Found,
    /// Whether each entry must have a token.
    is_guarded: bool,
    /// The units on sale before the first entry, and those that were added, less those that were withdrawn.
    pub(crate) offered: i64,
    /// The smallest stock at any moment.
    lowest: i64,
    /// Units that came back.
    pub(crate) returned: u64,
    /// The units that each user holds or has bought.
    users: HashMap<String, i64>,
    /// The units that are held, if that is known.
    held_units: Option<i64>,
    /// The open holds that began before the first entry; where they are not known, any number is possible.
    earlier: u64,
    /// Whether there were orders before the first entry.
    has_earlier_orders: bool,
    /// Whether an order can be accepted that was refused before: an order that was final came back, or a change added units, raised a
    /// limit, or ended a pause or moved the end.
    has_gained: bool,
    /// The end that a change gave the sale: a time, or `now`.
    ends_at: Option<String>,
    /// The place of the last entry, and the stock that this entry names.
    last: (u64, i64),
    /// The last token and who wrote under it first.
    token: Option<(i64, Option<String>)>,
    /// By user and order id.
    standings: HashMap<(String, String), Standing>,
    /// Orders that were accepted and have no entry.
    pub(crate) lost: u64,
    /// Orders that have an entry, and whose buyers got no answer; and their units.
    pub(crate) unanswered: (u64, u64),
}

impl Sale {
    /// A sale in the state `before`. Where it `is_guarded`, each entry must have a token.
    pub fn new(before: &StockState, is_guarded: bool) -> Self {
        Self {
            state: StockState { entries: Some(before.entries()), ..before.clone() },
            is_guarded,
            offered: before.stock,
            lowest: before.stock,
            held_units: match before.units.and_then(|units| units.held) {
                Some(units) => Some(signed(units)),
                None => (before.hold_seconds.is_none() || before.held == Some(0)).then_some(0),
            },
            earlier: before.held.unwrap_or(u64::MAX),
            has_earlier_orders: before.orders > 0,
            last: (before.entries(), before.stock),
            ..Self::default()
        }
    }

    /// The faults so far, the most important first.
    pub fn findings(&self) -> Vec<Finding> {
        self.found.findings()
    }

    /// Units that are held or were sold since the first entry.
    pub(crate) fn taken(&self) -> i64 {
        self.offered.saturating_sub(self.state.stock)
    }

    /// The most units at any moment that were sold and that the sale did not have.
    pub(crate) fn oversold(&self) -> i64 {
        self.lowest.saturating_neg().max(0)
    }

    /// Whether too few units are left for this quantity: even with the held units, or only without them. If the number of held
    /// units is unknown, both may be true.
    pub(crate) fn is_short_of(&self, quantity: u64) -> [bool; 2] {
        let missing = signed(quantity).saturating_sub(self.state.stock);
        let is_enough = |held: i64| missing <= held;
        [
            missing > 0 && self.held_units.is_none_or(|held| !is_enough(held)),
            missing > 0 && self.held_units.is_none_or(is_enough),
        ]
    }

    /// Units that a user may still take, if that is limited.
    pub(crate) fn room(&self, user: &str) -> Option<i64> {
        let has = self.users.get(user).copied().unwrap_or(0);
        self.state.per_user.map(|most| signed(most).saturating_sub(has))
    }

    /// Whether there can be more on sale later than now: then an attempt without an answer may still take units after
    /// another attempt of its order was refused.
    pub(crate) fn can_gain(&self) -> bool {
        self.state.hold_seconds.is_some() || self.has_gained
    }

    /// Takes the next entry, and finds what a sale in this state cannot have written. Returns whether it is the first one of
    /// its order.
    pub fn apply(&mut self, entry: &LedgerEntry) -> bool {
        let LedgerEntry { position, event, order, user, quantity, .. } = entry;
        if *event == Event::Changed {
            self.change(entry);
            return false;
        }
        let (to_stock, has_holds) = (event.to_stock(*quantity), self.state.hold_seconds.is_some());
        self.check_place(entry, to_stock);
        self.check_token(entry);
        let Self { state, found, .. } = self;
        state.entries = state.entries.map(|entries| entries + 1);
        state.stock = state.stock.saturating_add(to_stock);
        state.lucky = state.lucky.saturating_sub(to_stock);
        self.lowest = self.lowest.min(state.stock);
        self.returned = self.returned.saturating_add_signed(to_stock.max(0));
        if *event == Event::Reserved && (state.paused || self.ends_at.as_deref() == Some("now")) {
            found.add(Kind::AcceptedWhileClosed, order);
        }
        let has = self.users.entry(user.clone()).or_default();
        *has = has.saturating_sub(to_stock);
        let is_over = state.per_user.is_some_and(|most| *has > signed(most))
            || state.per_order.is_some_and(|most| *quantity > most);
        if to_stock < 0 && is_over {
            found.add(Kind::OverLimit, format!("{order} of {user}"));
        }
        let standing = self.standings.entry((user.clone(), order.clone())).or_default();
        let is_first = standing.times == 0 && standing.end.is_none() && standing.returned.is_none();
        if *event == Event::Reserved {
            state.orders += 1;
            let held = if has_holds { signed(*quantity) } else { 0 };
            self.held_units = self.held_units.map(|units| units.saturating_add(held));
            state.held = state.held.map(|held| held.wrapping_add(has_holds.into()));
            standing.times += 1;
            if standing.times == 2 {
                found.add(Kind::Duplicates, order);
            }
            standing.reserved.get_or_insert_with(|| entry.clone());
        } else if *event == Event::Returned {
            self.has_gained = true;
            let is_final = match (&standing.end, &standing.reserved) {
                (Some(end), _) => end.event == Event::Confirmed,
                (None, Some(_)) => !has_holds,
                (None, None) => self.has_earlier_orders,
            };
            if standing.returned.is_some() {
                found.add(Kind::EndedTwice, format!("{order}, {event:?} at {position}"));
            } else if !is_final || state.lucky < 0 {
                found.add(Kind::NotConfirmed, order);
            }
            if standing.reserved.as_ref().is_some_and(|first| first.quantity != *quantity) {
                found.add(Kind::WrongQuantity, order);
            }
            standing.returned.get_or_insert_with(|| entry.clone());
        } else if standing.end.is_some() {
            found.add(Kind::EndedTwice, format!("{order}, {event:?} at {position}"));
        } else {
            let is_earlier = standing.reserved.is_none() && self.earlier > 0;
            self.earlier -= u64::from(is_earlier);
            standing.was_held = has_holds && (standing.reserved.is_some() || is_earlier);
            standing.end = Some(entry.clone());
            let ended = signed(*quantity);
            self.held_units = self.held_units.map(|units| units.saturating_sub(ended));
            // below zero it fits no state
            state.held = state.held.map(|held| held.wrapping_sub(1));
            if !standing.was_held || state.lucky < 0 {
                found.add(Kind::NotHeld, order);
            }
            if standing.reserved.as_ref().is_some_and(|first| first.quantity != *quantity) {
                found.add(Kind::WrongQuantity, order);
            }
        }
        is_first
    }

    /// Takes an entry that changes the sale.
    fn change(&mut self, entry: &LedgerEntry) {
        let change = entry.change.clone().unwrap_or_default();
        let add = change.add.unwrap_or(0);
        self.check_place(entry, add);
        self.check_token(entry);
        let Self { state, .. } = self;
        let is_raised = |to: Option<u64>, from: Option<u64>| {
            to.is_some_and(|to| from.is_some_and(|from| to > from))
        };
        self.has_gained |= add > 0
            || change.paused == Some(false)
            || is_raised(change.per_order, state.per_order)
            || is_raised(change.per_user, state.per_user)
            || change.ends_at.as_ref().is_some_and(|end| end != "now");
        state.entries = state.entries.map(|entries| entries + 1);
        self.offered = self.offered.saturating_add(add);
        state.initial = state.initial.saturating_add(add);
        state.stock = state.stock.saturating_add(add);
        self.lowest = self.lowest.min(state.stock);
        state.paused = change.paused.unwrap_or(state.paused);
        state.per_order = change.per_order.or(state.per_order).filter(|most| *most < NO_LIMIT);
        state.per_user = change.per_user.or(state.per_user);
        state.hold_seconds = change.hold_seconds.or(state.hold_seconds);
        self.ends_at = change.ends_at.or(self.ends_at.take());
    }

    /// Checks place and sum against what the entry before says, so that a failure is reported once.
    fn check_place(&mut self, entry: &LedgerEntry, to_stock: i64) {
        let (position, remaining) = (self.last.0 + 1, self.last.1.saturating_add(to_stock));
        self.last = (entry.position, entry.remaining);
        if entry.position != position {
            let what = format!("position {} follows where {position} belongs", entry.position);
            self.found.add(Kind::LedgerDoesNotAddUp, what);
        } else if entry.remaining != remaining {
            let left = format!("{} units are left, and {remaining} must be", entry.remaining);
            let what = format!("after position {position} it says {left}");
            self.found.add(Kind::LedgerDoesNotAddUp, what);
        }
    }

    fn check_token(&mut self, entry: &LedgerEntry) {
        let (LedgerEntry { position, order, .. }, writer) = (entry, entry.writer());
        let Some(token) = entry.token else {
            if self.is_guarded {
                self.found.add(Kind::WithoutToken, order);
            }
            return;
        };
        match &self.token {
            Some((last, first)) if *last == token => {
                let writers = first.as_deref().zip(writer);
                if let Some((first, other)) = writers.filter(|(first, other)| first != other) {
                    let what = format!("{other} at position {position}, under {token} of {first}");
                    self.found.add(Kind::TokenShared, format!("{order}: {what}"));
                }
                return;
            }
            Some((last, _)) if token < *last => {
                let what = format!("first at position {position}, from {last} to {token}");
                self.found.add(Kind::TokenWentDown, what);
            }
            _ => {}
        }
        self.token = Some((token, writer.map(str::to_owned)));
    }

    /// Compares what the buyer of an order of so many units asked for and was told with the entries so far.
    pub fn compare(&mut self, user: &str, id: &str, quantity: u64, order: &Order) {
        let (can_gain, has_holds) = (self.can_gain(), self.state.hold_seconds.is_some());
        let found = &mut self.found;
        let standing = self.standings.get(&(user.to_owned(), id.to_owned()));
        let Standing { reserved, end, was_held, returned, .. } =
            standing.cloned().unwrap_or_default();
        let Some(entry) = reserved else {
            if order.is_accepted() {
                self.lost += 1;
                found.add(Kind::Lost, id);
            } else if was_held {
                // by another order's hold
                found.add(Kind::NotHeld, id);
            }
            return;
        };
        if entry.quantity != quantity {
            found.add(Kind::WrongQuantity, id);
        }
        match order.answer() {
            Some(answer) if differs(answer, &entry) => found.add(Kind::Misreported, id),
            Some(answer) if answer.replayed && !order.in_doubt => found.add(Kind::Mismarked, id),
            Some(_) => {}
            None if order.must_not_stand(can_gain) => found.add(Kind::Untold, id),
            None => {
                let (orders, units) = self.unanswered;
                self.unanswered = (orders + 1, units.saturating_add(entry.quantity));
            }
        }
        // a hold expires without being asked
        let changes = end.iter().chain(&returned);
        for end in changes.clone().filter(|end| end.event != Event::Expired) {
            let asked = order.asked().filter(|(event, _)| *event == end.event);
            let mut answers = asked.clone().filter_map(|(_, asked)| asked.answer()).peekable();
            if answers.peek().is_none() && !asked.clone().any(|(_, asked)| asked.in_doubt) {
                found.add(Kind::Untold, id);
            } else if answers.any(|answer| differs(answer, end)) {
                found.add(Kind::Misreported, id);
            }
        }
        // without holds, an order is final from the start
        let is_final = |told: Event| told == Event::Confirmed && !has_holds;
        let is_so = |told| is_final(told) || changes.clone().any(|change| change.event == told);
        for (told, _) in order.told().filter(|(told, _)| !is_so(*told)) {
            let last = changes.clone().last();
            let there = last.map_or("not there".to_owned(), |last| format!("{:?}", last.event));
            found.add(Kind::ChangeLost, format!("{id}, {told:?} and {there}"));
        }
        let kept = FinalOutcome::Over(Event::Confirmed);
        let is_kept =
            |(event, asked): (Event, &Order)| event == Event::Returned && asked.outcome == kept;
        if has_holds && order.asked().any(is_kept) {
            found.add(Kind::ChangeLost, format!("{id}, not returned"));
        }
        let Some(first) = order.answer() else { return };
        for (event, asked) in order.asked() {
            match &asked.outcome {
                FinalOutcome::Acknowledged(again) if event == Event::Reserved => {
                    if (Acknowledgement { replayed: first.replayed, ..again.clone() }) != *first {
                        found.add(Kind::AnsweredAnew, id);
                    } else if !again.replayed {
                        found.add(Kind::Mismarked, id);
                    }
                }
                FinalOutcome::SoldOut | FinalOutcome::HeldOut | FinalOutcome::LimitReached => {
                    found.add(Kind::AnsweredAnew, format!("{id}: {:?}", asked.outcome));
                }
                FinalOutcome::UnknownOrder => {
                    found.add(Kind::ChangeLost, format!("{id}, told that it is unknown"));
                }
                _ => {}
            }
        }
    }

    /// Whether the hold of an order is open.
    pub(crate) fn is_held(&self, user: &str, id: &str) -> bool {
        let standing = self.standings.get(&(user.to_owned(), id.to_owned()));
        standing.is_some_and(|it| it.reserved.is_some() && it.end.is_none())
    }

    /// Compares the final state that `url` reports with the model's state after the last entry.
    pub fn check_end(&mut self, url: &str, after: &StockState) {
        let counts = |counted: u64, what, known: u64| {
            let [counted, known] = [counted, known].map(u64::cast_signed);
            let is_wrong = counted != known;
            is_wrong.then(|| format!("{url} counts {counted} {what}, and it has {known}"))
        };
        let state = &self.state;
        let stock = (state.stock != after.stock).then(|| {
            let (units, taken) = (self.taken(), self.offered.saturating_sub(after.stock));
            format!("it has {units} units sold, and the stock went down by {taken}")
        });
        let what = counts(after.entries(), "entries", state.entries()).or(stock);
        let what = what.or_else(|| counts(after.orders, "orders", state.orders));
        let what = what.or_else(|| {
            let is_paused = after.paused != state.paused;
            let told = if after.paused { "paused" } else { "not paused" };
            is_paused.then(|| format!("{url} tells that the sale is {told}"))
        });
        let what = what.or_else(|| counts(after.held?, "holds", state.held?));
        let held = || after.units?.held.zip(self.held_units);
        let what = what.or_else(|| {
            held().and_then(|(after, held)| counts(after, "held units", held.cast_unsigned()))
        });
        let confirmed = || after.units?.confirmed.zip(self.held_units);
        let what = what.or_else(|| {
            let (after, held) = confirmed()?;
            counts(after, "sold units", state.lucky.saturating_sub(held).cast_unsigned())
        });
        let terms = [
            ("units of an order", after.per_order, state.per_order),
            ("units of a user", after.per_user, state.per_user),
            ("seconds of a hold", after.hold_seconds, state.hold_seconds),
        ];
        let mut terms = terms.into_iter().filter_map(|(what, after, known)| {
            after.zip(known).and_then(|(after, known)| counts(after, what, known))
        });
        let what = what.or_else(|| terms.next());
        if let Some(what) = what {
            self.found.add(Kind::LedgerDoesNotAddUp, what);
        }
    }
}

fn signed(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}

fn differs(answer: &Acknowledgement, entry: &LedgerEntry) -> bool {
    (answer.remaining, answer.token) != (entry.remaining, entry.token)
        || answer.position.is_some_and(|position| position != entry.position)
        || entry.instance.as_ref().is_some_and(|instance| *instance != answer.instance)
}
