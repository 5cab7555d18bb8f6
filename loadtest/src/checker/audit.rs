//! Compares the ledger with the buyers' answers, entry by entry: I2, I3, I4, and the sums of I1.

use std::collections::HashMap;

use super::history::{History, LedgerEntry, Tally, u64_from};
use super::order::{Acknowledgement, Event, FinalOutcome, Order};
use super::reason::{Found, Kind, count};

/// What the ledger has of an order so far.
#[derive(Clone, Debug, Default)]
struct Entries {
    /// How often it was accepted.
    times: u32,
    /// What became of its hold.
    end: Option<Event>,
}

/// The comparison.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// There is none, so that only the sums can be checked.
    pub(crate) no_ledger: bool,
    /// Units that are held or sold after the last entry, and the most that were at any moment.
    pub(crate) units: i64,
    pub(crate) most: i64,
    /// Units that came back.
    pub(crate) returned: u64,
    /// Orders in the ledger.
    pub(crate) orders: u64,
    /// Orders and units of other clients.
    pub(crate) foreign: (u64, u64),
    /// Unanswered orders that are in the ledger, and their units.
    pub(crate) standing: (u64, u64),
    /// Accepted orders that are not in the ledger.
    pub(crate) lost: u64,
    pub(crate) found: Found,
}

impl Audit {
    /// Reads the ledger of `history`; without one, only the sums are checked.
    pub(crate) fn of(history: &History, tally: &Tally) -> Self {
        let mut audit = Self { no_ledger: keeps_no_ledger(history), ..Self::default() };
        if audit.no_ledger {
            audit.check_sums_alone(history, tally);
            return audit;
        }
        let (mut position, mut remaining) = (history.before().entries(), history.before().stock);
        let mut token = None;
        let mut own = vec![Entries::default(); history.orders.len()];
        let mut foreign: HashMap<_, Entries> = HashMap::new();
        let is_guarded = history.is_guarded();
        for entry in &history.ledger {
            let to_stock = entry.event.to_stock(entry.quantity);
            audit.units = audit.units.saturating_sub(to_stock);
            audit.most = audit.most.max(audit.units);
            audit.returned = audit.returned.saturating_add_signed(to_stock.max(0));
            audit.check_sums(entry, position, remaining);
            // a failure is reported once, not for all entries after it
            (position, remaining) = (entry.position, entry.remaining);
            if let (Some(from), Some(to)) = (token, entry.token)
                && to < from
            {
                let example = format!("first at position {position}, from {from} to {to}");
                audit.found.add(Kind::TokenWentDown, example);
            }
            token = entry.token.or(token);
            if is_guarded && entry.token.is_none() {
                audit.found.add(Kind::WithoutToken, &entry.order);
            }
            let number = history.own(entry);
            let entries = match number.and_then(|number| own.get_mut(number)) {
                Some(entries) => entries,
                None => foreign.entry((&entry.user, &entry.order)).or_default(),
            };
            let is_first = if entry.event == Event::Reserved {
                audit.orders += 1;
                entries.times += 1;
                if entries.times == 2 {
                    audit.found.add(Kind::Duplicates, &entry.order);
                }
                entries.times == 1
            } else if entries.end.is_some() {
                let example = format!("{}, {:?} at {position}", entry.order, entry.event);
                audit.found.add(Kind::EndedTwice, example);
                false
            } else {
                entries.end = Some(entry.event);
                true
            };
            match number {
                Some(number) if is_first => audit.check_order(history, entry, number),
                Some(_) => {}
                None => audit.check_foreign(history, entry, is_first),
            }
        }
        let is_awaited = history.awaited_hold().is_some();
        for (number, (order, Entries { times, end })) in history.orders.iter().zip(own).enumerate()
        {
            let id = || history.setup.id(number);
            if times == 0 && order.is_accepted() {
                audit.lost += 1;
                audit.found.add(Kind::Lost, id());
            } else if times > 0 && end.is_none() && is_awaited {
                audit.found.add(Kind::StillHeld, id());
            }
            for (told, _) in order.told().filter(|(told, _)| times > 0 && Some(*told) != end) {
                let found = end.map_or("not there".to_owned(), |end| format!("{end:?}"));
                let example = format!("{}, {told:?} and {found}", id());
                audit.found.add(Kind::ChangeLost, example);
            }
        }
        audit.check_state(history);
        audit
    }

    fn check_sums(&mut self, entry: &LedgerEntry, position: u64, remaining: i64) {
        let (position, remaining) =
            (position + 1, remaining.saturating_add(entry.event.to_stock(entry.quantity)));
        if entry.position != position {
            let what = format!("position {} follows where {position} belongs", entry.position);
            self.found.add(Kind::LedgerDoesNotAddUp, what);
        } else if entry.remaining != remaining {
            let what = format!(
                "after position {position} it says {} units are left, and {remaining} must be",
                entry.remaining
            );
            self.found.add(Kind::LedgerDoesNotAddUp, what);
        }
    }

    /// Checks that the stock fits the ledger.
    fn check_state(&mut self, history: &History) {
        let Some((url, after)) = history.after.first() else { return };
        if self.found.has(Kind::LedgerDoesNotAddUp) {
            return;
        }
        let known = history.before().entries() + u64_from(history.ledger.len());
        let taken = history.before().stock.saturating_sub(after.stock);
        if after.entries() != known {
            let what = format!("{url} counts {} entries, and it has {known}", after.entries());
            self.found.add(Kind::LedgerDoesNotAddUp, what);
        } else if self.units != taken {
            let units = self.units;
            let what = format!("it has {units} units sold, and the stock went down by {taken}");
            self.found.add(Kind::LedgerDoesNotAddUp, what);
        }
    }

    /// Checks an order of another item or client.
    fn check_foreign(&mut self, history: &History, entry: &LedgerEntry, is_first: bool) {
        // no other client's ids begin like this: a service that changes ids has sold twice
        if entry.order.starts_with(&history.setup.run) {
            self.found.add(Kind::Untold, &entry.order);
            return;
        }
        if history.setup.alone && is_first {
            self.found.add(Kind::Strangers, &entry.order);
        }
        if entry.event == Event::Reserved {
            let (orders, units) = self.foreign;
            self.foreign = (orders + 1, units.saturating_add(entry.quantity));
        }
    }

    fn check_order(&mut self, history: &History, entry: &LedgerEntry, number: usize) {
        let order = history.orders.get(number).filter(|order| !order.must_not_stand());
        if entry.event == Event::Expired && history.before().hold_seconds.is_some() {
            return;
        }
        if entry.event != Event::Reserved {
            let asked = order.into_iter().flat_map(Order::asked);
            let mut asked = asked.filter(|(event, _)| *event == entry.event);
            let answers = asked.clone().filter_map(|(_, asked)| asked.answer());
            if answers.clone().any(|answer| differs(answer, history.setup.quantity, entry)) {
                self.found.add(Kind::Misreported, &entry.order);
            } else if answers.count() == 0 && !asked.any(|(_, asked)| asked.in_doubt) {
                self.found.add(Kind::Untold, &entry.order);
            }
            return;
        }
        match order.map(|order| &order.outcome) {
            None => self.found.add(Kind::Untold, &entry.order),
            Some(FinalOutcome::Acknowledged(answer)) => {
                if differs(answer, history.setup.quantity, entry) {
                    self.found.add(Kind::Misreported, &entry.order);
                }
            }
            Some(_) => {
                let (orders, units) = self.standing;
                self.standing = (orders + 1, units.saturating_add(entry.quantity));
            }
        }
    }

    /// What the sums contradict, without a ledger. An order without an answer may have taken its units.
    fn check_sums_alone(&mut self, history: &History, tally: &Tally) {
        let stock = history.after.first().map(|(_, after)| after.stock);
        let taken = stock.map(|stock| history.before().stock.saturating_sub(stock));
        let least = tally.acknowledged_units;
        let most = least.saturating_add(tally.unknown.saturating_mul(history.setup.quantity));
        let is_possible =
            |taken: i64| u64::try_from(taken).is_ok_and(|it| (least..=most).contains(&it));
        if let Some(taken) = taken.filter(|taken| !is_possible(*taken)) {
            let units = count(least, "unit");
            let what = format!("buyers got {units}, and the stock went down by {taken}");
            self.found.add(Kind::Unaccounted, what);
        }
        // there are no holds, so what is left now was there when they were refused
        let order = Event::Reserved.to_stock(history.setup.quantity);
        let is_enough = stock.is_some_and(|stock| stock.saturating_add(order) >= 0);
        for (number, order) in history.orders.iter().enumerate() {
            if is_enough && order.is_sold_out() {
                self.found.add(Kind::SoldOutTooEarly, history.setup.id(number));
            }
            if history.setup.tokens && order.answer().is_some() {
                self.found.add(Kind::WithoutToken, history.setup.id(number));
            }
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

fn differs(answer: &Acknowledgement, quantity: u64, entry: &LedgerEntry) -> bool {
    (quantity, answer.remaining, answer.token) != (entry.quantity, entry.remaining, entry.token)
        || answer.position.is_some_and(|position| position != entry.position)
        || entry.instance.as_ref().is_some_and(|instance| *instance != answer.instance)
}
