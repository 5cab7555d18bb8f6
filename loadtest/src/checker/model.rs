//! The reference model: a sale, stepped through its ledger, entry by entry.
//!
//! It knows what a ledger may hold next, and neither buyers nor clocks. Its terms are state: an entry that changes a running
//! sale, or that gives units of a confirmed order back, is one more arm in [`Sale::apply`].
//!
//! A token belongs to one writer. The model relies on `instance` being the instance that wrote the entry under its own
//! claim, also where another one took the order from its buyer. It sees nothing where two instances have one name.

use std::collections::HashMap;

use super::finding::{Found, Kind};
use super::history::{LedgerEntry, StockState};
use super::order::Event;

/// The entries of one order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing<'h> {
    pub(crate) reserved: Option<&'h LedgerEntry>,
    /// How often it was reserved.
    pub(crate) times: u64,
    /// The first entry that ends its hold.
    pub(crate) end: Option<&'h LedgerEntry>,
    /// Whether it ended one: of this ledger, or one that was open before it.
    pub(crate) was_held: bool,
}

/// A sale after some entries.
#[derive(Debug, Default)]
pub(crate) struct Sale<'h> {
    /// The units that the sale began with.
    pub(crate) initial: i64,
    /// The units on sale before the first entry.
    pub(crate) offered: i64,
    /// Units that one user may have.
    per_user: Option<i64>,
    pub(crate) has_holds: bool,
    /// Whether each entry must have a token.
    is_guarded: bool,
    /// Units that are held or sold, and what there was of both at the moment with the most too many.
    pub(crate) taken: i64,
    pub(crate) worst: (i64, i64),
    /// Units that came back.
    pub(crate) returned: u64,
    /// The units that each user holds or has bought.
    users: HashMap<&'h str, i64>,
    entries: u64,
    pub(crate) orders: u64,
    /// The open holds.
    pub(crate) held: i64,
    /// The open holds that began before the first entry.
    earlier: i64,
    /// The place of the last entry, and the stock that this entry names.
    last: (u64, i64),
    /// The last token and who wrote under it first.
    token: Option<(i64, Option<&'h str>)>,
    /// By user and order id.
    standings: HashMap<(&'h str, &'h str), Standing<'h>>,
}

impl<'h> Sale<'h> {
    pub(crate) fn new(before: &StockState, is_guarded: bool) -> Self {
        // where it is not known, any number is possible
        let earlier = before.held.map_or(i64::MAX / 2, |it| i64::try_from(it).unwrap_or(i64::MAX));
        Self {
            initial: before.initial,
            offered: before.stock,
            per_user: before.per_user.map(|most| i64::try_from(most).unwrap_or(i64::MAX)),
            has_holds: before.hold_seconds.is_some(),
            is_guarded,
            worst: (0, before.stock),
            entries: before.entries(),
            orders: before.orders,
            held: earlier,
            earlier,
            last: (before.entries(), before.stock),
            ..Self::default()
        }
    }

    /// Units that are on sale.
    pub(crate) fn available(&self) -> i64 {
        self.offered.saturating_sub(self.taken)
    }

    /// Units that a user may still take, if that is limited.
    pub(crate) fn room(&self, user: &str) -> Option<i64> {
        let has = self.users.get(user).copied().unwrap_or(0);
        self.per_user.map(|most| most.saturating_sub(has))
    }

    /// Whether there can be more on sale later than now: then an attempt without an answer may still take units after
    /// another attempt of its order was refused.
    pub(crate) fn can_gain(&self) -> bool {
        self.has_holds
    }

    /// The entries of an order so far.
    pub(crate) fn standing<'a>(
        &'a self,
        user: &'a str,
        order: &'a str,
    ) -> Option<&'a Standing<'a>> {
        let standings: &HashMap<(&'a str, &'a str), Standing<'a>> = &self.standings;
        standings.get(&(user, order))
    }

    /// Takes the next entry, and finds what a sale in this state cannot have written.
    pub(crate) fn apply(&mut self, entry: &'h LedgerEntry, found: &mut Found) {
        let LedgerEntry { position, event, order, user, quantity, .. } = entry;
        let to_stock = event.to_stock(*quantity);
        self.check_place(entry, to_stock, found);
        self.check_token(entry, found);
        self.entries += 1;
        self.taken = self.taken.saturating_sub(to_stock);
        self.returned = self.returned.saturating_add_signed(to_stock.max(0));
        if self.taken.saturating_sub(self.offered) > self.worst.0.saturating_sub(self.worst.1) {
            self.worst = (self.taken, self.offered);
        }
        let has = self.users.entry(user).or_default();
        *has = has.saturating_sub(to_stock);
        if to_stock < 0 && self.per_user.is_some_and(|most| *has > most) {
            found.add(Kind::OverLimit, format!("{order} of {user}"));
        }
        let standing = self.standings.entry((user, order)).or_default();
        match (event, standing.end) {
            (Event::Reserved, _) => {
                self.orders += 1;
                self.held += i64::from(self.has_holds);
                standing.times += 1;
                if standing.times == 2 {
                    found.add(Kind::Duplicates, order);
                }
                standing.reserved.get_or_insert(entry);
            }
            (Event::Confirmed | Event::Cancelled | Event::Expired, end) => {
                if end.is_some() {
                    found.add(Kind::EndedTwice, format!("{order}, {event:?} at {position}"));
                    return;
                }
                standing.end = Some(entry);
                let is_earlier = standing.reserved.is_none() && self.earlier > 0;
                self.earlier -= i64::from(is_earlier);
                standing.was_held = self.has_holds && (standing.reserved.is_some() || is_earlier);
                self.held -= 1;
                if standing.reserved.is_some_and(|first| first.quantity != *quantity) {
                    found.add(Kind::WrongQuantity, order);
                }
            }
        }
    }

    /// Checks place and sum against what the entry before says, so that a failure is reported once.
    fn check_place(&mut self, entry: &LedgerEntry, to_stock: i64, found: &mut Found) {
        let (position, remaining) = (self.last.0 + 1, self.last.1.saturating_add(to_stock));
        self.last = (entry.position, entry.remaining);
        if entry.position != position {
            let what = format!("position {} follows where {position} belongs", entry.position);
            found.add(Kind::LedgerDoesNotAddUp, what);
        } else if entry.remaining != remaining {
            let what = format!(
                "after position {position} it says {} units are left, and {remaining} must be",
                entry.remaining
            );
            found.add(Kind::LedgerDoesNotAddUp, what);
        }
    }

    fn check_token(&mut self, entry: &'h LedgerEntry, found: &mut Found) {
        let LedgerEntry { position, order, .. } = entry;
        let Some(token) = entry.token else {
            if self.is_guarded {
                found.add(Kind::WithoutToken, order);
            }
            return;
        };
        let instance = entry.instance.as_deref();
        match self.token {
            Some((same, writer)) if same == token => {
                if let Some((writer, other)) = writer.zip(instance).filter(|(a, b)| a != b) {
                    let example = format!(
                        "{order}: {other} at position {position}, under {token} of {writer}"
                    );
                    found.add(Kind::TokenShared, example);
                }
                return;
            }
            Some((last, _)) if token < last => {
                let example = format!("first at position {position}, from {last} to {token}");
                found.add(Kind::TokenWentDown, example);
            }
            _ => {}
        }
        self.token = Some((token, instance));
    }

    /// How the state after the last entry, which `url` tells, contradicts the ledger.
    pub(crate) fn contradicted_by(&self, url: &str, after: &StockState) -> Option<String> {
        let counts = |counted: i128, what, known: i128| {
            let is_wrong = counted != known;
            is_wrong.then(|| format!("{url} counts {counted} {what}, and it has {known}"))
        };
        let stock = (self.available() != after.stock).then(|| {
            let (units, taken) = (self.taken, self.offered.saturating_sub(after.stock));
            format!("it has {units} units sold, and the stock went down by {taken}")
        });
        let held = after.held.filter(|_| self.held < i64::MAX / 4);
        counts(after.entries().into(), "entries", self.entries.into())
            .or(stock)
            .or_else(|| counts(after.orders.into(), "orders", self.orders.into()))
            .or_else(|| counts(held?.into(), "holds", self.held.into()))
    }
}
