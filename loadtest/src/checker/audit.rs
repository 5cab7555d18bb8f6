//! Compares the ledger with the buyers' answers, entry by entry: I2, I3, I4, and the sums of I1.

use std::collections::{BTreeMap, HashMap};

use super::history::{History, LedgerEntry, order_id, u64_from};
use super::order::{Acknowledgement, Event, FinalOutcome, Order};
use super::reason::{Kind, Reason, are, count, were};

/// What the ledger has of an order so far.
#[derive(Clone, Debug, Default)]
struct Found {
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
    /// How often each failure was found, and the first example.
    found: BTreeMap<Kind, (u64, String)>,
}

impl Audit {
    /// Reads the ledger of `history`.
    pub(crate) fn of(history: &History) -> Self {
        let mut audit = Self { no_ledger: keeps_no_ledger(history), ..Self::default() };
        if audit.no_ledger {
            return audit;
        }
        let (mut position, mut remaining) = (history.before.entries(), history.before.stock);
        let mut token = None;
        let mut own = vec![Found::default(); history.orders.len()];
        let mut foreign = HashMap::new();
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
                audit.note(Kind::TokenWentDown, &example);
            }
            token = entry.token.or(token);
            if is_guarded && entry.token.is_none() {
                audit.note(Kind::WithoutToken, &entry.order);
            }
            let number = history.own(entry);
            let found = match number.and_then(|number| own.get_mut(number)) {
                Some(found) => found,
                None => foreign.entry((&entry.user, &entry.order)).or_insert(Found::default()),
            };
            let is_first = if entry.event == Event::Reserved {
                audit.orders += 1;
                found.times += 1;
                if found.times == 2 {
                    audit.note(Kind::Duplicates, &entry.order);
                }
                found.times == 1
            } else if found.end.is_some() {
                let example = format!("{}, {:?} at {position}", entry.order, entry.event);
                audit.note(Kind::EndedTwice, &example);
                false
            } else {
                found.end = Some(entry.event);
                true
            };
            match number {
                Some(number) if is_first => audit.check_order(history, entry, number),
                Some(_) => {}
                None => audit.check_foreign(history, entry, is_first),
            }
        }
        let is_awaited = history.awaited_hold().is_some();
        for (number, (order, Found { times, end })) in history.orders.iter().zip(own).enumerate() {
            let id = || order_id(&history.run, number);
            if times == 0 && order.is_accepted() {
                audit.lost += 1;
                audit.note(Kind::Lost, &id());
            } else if times > 0 && end.is_none() && is_awaited {
                audit.note(Kind::StillHeld, &id());
            }
            for (told, _) in order.told().filter(|(told, _)| times > 0 && Some(*told) != end) {
                let found = end.map_or("not there".to_owned(), |end| format!("{end:?}"));
                let example = format!("{}, {told:?} and {found}", id());
                audit.note(Kind::ChangeLost, &example);
            }
        }
        audit.check_state(history);
        audit
    }

    fn note(&mut self, kind: Kind, example: &str) {
        self.found.entry(kind).or_insert_with(|| (0, example.to_owned())).0 += 1;
    }

    fn check_sums(&mut self, entry: &LedgerEntry, position: u64, remaining: i64) {
        let (position, remaining) =
            (position + 1, remaining.saturating_add(entry.event.to_stock(entry.quantity)));
        if entry.position != position {
            let what = format!("position {} follows where {position} belongs", entry.position);
            self.note(Kind::LedgerDoesNotAddUp, &what);
        } else if entry.remaining != remaining {
            let what = format!(
                "after position {position} it says {} units are left, and {remaining} must be",
                entry.remaining
            );
            self.note(Kind::LedgerDoesNotAddUp, &what);
        }
    }

    /// Checks that the stock fits the ledger.
    fn check_state(&mut self, history: &History) {
        let Some((url, after)) = history.after.first() else { return };
        if self.found.contains_key(&Kind::LedgerDoesNotAddUp) {
            return;
        }
        let known = history.before.entries() + u64_from(history.ledger.len());
        let taken = history.before.stock.saturating_sub(after.stock);
        if after.entries() != known {
            let what = format!("{url} counts {} entries, and it has {known}", after.entries());
            self.note(Kind::LedgerDoesNotAddUp, &what);
        } else if self.units != taken {
            let units = self.units;
            let what = format!("it has {units} units sold, and the stock went down by {taken}");
            self.note(Kind::LedgerDoesNotAddUp, &what);
        }
    }

    /// Checks an order of another item or client.
    fn check_foreign(&mut self, history: &History, entry: &LedgerEntry, is_first: bool) {
        // no other client's ids begin like this: a service that changes ids has sold twice
        if entry.order.starts_with(&history.family) {
            self.note(Kind::Unacknowledged, &entry.order);
            return;
        }
        if history.alone && is_first {
            self.note(Kind::Foreign, &entry.order);
        }
        if entry.event == Event::Reserved {
            let (orders, units) = self.foreign;
            self.foreign = (orders + 1, units.saturating_add(entry.quantity));
        }
    }

    fn check_order(&mut self, history: &History, entry: &LedgerEntry, number: usize) {
        let order = history.orders.get(number).filter(|order| !order.must_not_stand());
        if entry.event == Event::Expired && history.before.hold_seconds.is_some() {
            return;
        }
        if entry.event != Event::Reserved {
            let asked = order.into_iter().flat_map(Order::asked);
            let mut asked = asked.filter(|(event, _)| *event == entry.event);
            let answers = asked.clone().filter_map(|(_, asked)| asked.answer());
            if answers.clone().any(|answer| differs(answer, history.quantity, entry)) {
                self.note(Kind::Misreported, &entry.order);
            } else if answers.count() == 0 && !asked.any(|(_, asked)| asked.in_doubt) {
                self.note(Kind::Unacknowledged, &entry.order);
            }
            return;
        }
        match order.map(|order| &order.outcome) {
            None => self.note(Kind::Unacknowledged, &entry.order),
            Some(FinalOutcome::Acknowledged(answer)) => {
                if differs(answer, history.quantity, entry) {
                    self.note(Kind::Misreported, &entry.order);
                }
            }
            Some(_) => {
                let (orders, units) = self.standing;
                self.standing = (orders + 1, units.saturating_add(entry.quantity));
            }
        }
    }

    /// The failures of the ledger.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = Reason> {
        self.found.iter().map(|(kind, (times, example))| {
            let (orders, holds) = (are(*times, "order"), are(*times, "hold"));
            let what = match kind {
                Kind::Duplicates => format!("{orders} more than once in the ledger"),
                Kind::Lost => {
                    format!("{} not in the ledger", are(*times, "acknowledged order"))
                }
                Kind::ChangeLost => {
                    format!("the ledger contradicts what {} told", were(*times, "buyer"))
                }
                Kind::EndedTwice => format!("{holds} ended more than once in the ledger"),
                Kind::StillHeld => format!("{holds} open after the end"),
                Kind::Unacknowledged => {
                    format!("{orders} in the ledger without an answer to a buyer")
                }
                Kind::Foreign => {
                    format!("{orders} in the ledger and not of this run, which must be alone")
                }
                Kind::Misreported => {
                    format!("the ledger contradicts the answer to {}", count(*times, "order"))
                }
                Kind::WithoutToken => return without_token(*times, example),
                Kind::TokenWentDown => {
                    let times = count(*times, "time");
                    return kind
                        .because(format!("the tokens in the ledger go down {times}, {example}"));
                }
                _ => return kind.because(example),
            };
            kind.because(format!("{what}, such as {example}"))
        })
    }
}

/// A sale without a ledger records and counts no orders, and its answers have no token.
fn keeps_no_ledger(history: &History) -> bool {
    history.ledger.is_empty()
        && history.gone.is_empty()
        && history.after.iter().all(|(_, after)| after.orders == history.before.orders)
        && history.answers().next().is_some()
        && history.answers().all(|answer| answer.token.is_none())
}

/// Orders were accepted without a token.
pub(super) fn without_token(orders: u64, example: &str) -> Reason {
    let orders = were(orders, "order");
    let what = format!("{orders} accepted without one, such as {example}, and each must have one");
    Kind::WithoutToken.because(what)
}

fn differs(answer: &Acknowledgement, quantity: u64, entry: &LedgerEntry) -> bool {
    (quantity, answer.remaining, answer.token) != (entry.quantity, entry.remaining, entry.token)
        || answer.position.is_some_and(|position| position != entry.position)
        || entry.instance.as_ref().is_some_and(|instance| *instance != answer.instance)
}
