//! Compares the ledger with the buyers' answers, entry by entry: I2, I3, I4, and the sums of I1.

use std::collections::{BTreeMap, HashMap};

use super::history::{History, LedgerEntry, order_id, u64_from};
use super::order::{Acknowledgement, FinalOutcome};
use super::reason::{Kind, Reason, are, count, were};

/// The comparison.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// Units in the ledger.
    pub(crate) units: u64,
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
        let mut audit = Self::default();
        let (mut position, mut remaining) = (history.before.orders, history.before.stock);
        let mut token = None;
        // how often each order is in the ledger
        let mut own = vec![0; history.orders.len()];
        let mut foreign = HashMap::new();
        let is_guarded = history.is_guarded();
        for entry in &history.ledger {
            audit.units = audit.units.saturating_add(entry.quantity);
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
            let number = history.number(&entry.order);
            let times = match number.and_then(|number| own.get_mut(number)) {
                Some(times) => times,
                None => foreign.entry(&entry.order).or_insert(0),
            };
            *times += 1;
            let is_first = *times == 1;
            if *times == 2 {
                audit.note(Kind::Duplicates, &entry.order);
            }
            match number {
                Some(number) if is_first => audit.check_order(history, entry, number),
                Some(_) => {}
                None => audit.check_foreign(history, entry, is_first),
            }
        }
        for (number, order) in history.orders.iter().enumerate() {
            if let (FinalOutcome::Acknowledged(_), 0) = (&order.outcome, own[number]) {
                audit.lost += 1;
                audit.note(Kind::Lost, &order_id(&history.run, number));
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
            (position + 1, remaining.saturating_sub_unsigned(entry.quantity));
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
        let known = history.before.orders + u64_from(history.ledger.len());
        let taken = history.before.stock.saturating_sub(after.stock);
        if after.orders != known {
            let what = format!("{url} counts {} orders, and it has {known}", after.orders);
            self.note(Kind::LedgerDoesNotAddUp, &what);
        } else if i64::try_from(self.units) != Ok(taken) {
            let units = count(self.units, "unit");
            let what = format!("it has {units} sold, and the stock went down by {taken}");
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
        let (orders, units) = self.foreign;
        self.foreign = (orders + 1, units.saturating_add(entry.quantity));
    }

    fn check_order(&mut self, history: &History, entry: &LedgerEntry, number: usize) {
        let order = history.orders.get(number).filter(|order| !order.must_not_stand());
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
            let orders = *times;
            kind.because(match kind {
                Kind::Duplicates => {
                    let orders = are(orders, "order");
                    format!("{orders} more than once in the ledger, such as {example}")
                }
                Kind::Lost => {
                    let lost = are(orders, "acknowledged order");
                    format!("{lost} not in the ledger, such as {example}")
                }
                Kind::Unacknowledged => format!(
                    "{} in the ledger without an answer to a buyer, such as {example}",
                    are(orders, "order")
                ),
                Kind::Foreign => format!(
                    "{} in the ledger and not of this run, such as {example}, and there must be no \
                     other buyers",
                    are(orders, "order")
                ),
                Kind::Misreported => format!(
                    "the ledger contradicts the answer to {}, such as {example}",
                    count(orders, "order")
                ),
                Kind::TokenWentDown => {
                    let times = count(*times, "time");
                    format!("the tokens in the ledger go down {times}, {example}")
                }
                Kind::WithoutToken => without_token(orders, example),
                _ => example.clone(),
            })
        })
    }
}

/// Says that orders were accepted without a token.
pub(super) fn without_token(orders: u64, example: &str) -> String {
    let orders = were(orders, "order");
    format!("{orders} accepted without one, such as {example}, and each must have one")
}

fn differs(answer: &Acknowledgement, quantity: u64, entry: &LedgerEntry) -> bool {
    (quantity, answer.remaining, answer.token) != (entry.quantity, entry.remaining, entry.token)
        || answer.position.is_some_and(|position| position != entry.position)
        || entry.instance.as_ref().is_some_and(|instance| *instance != answer.instance)
}
