//! Compares the ledger with the buyers' answers.

use std::collections::HashSet;

use super::history::{History, LedgerEntry, order_id, u64_from};
use super::order::{Acknowledgement, FinalOutcome};
use super::reason::Reason;

/// The ledger, entry by entry.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// How often each order of this run is in the ledger, by its number.
    seen: Vec<u64>,
    /// Units in the ledger.
    pub(crate) units: u64,
    /// Units and orders of other clients.
    pub(crate) foreign_units: u64,
    pub(crate) foreign: u64,
    /// Unanswered orders that are in the ledger, and their units.
    pub(crate) standing: u64,
    pub(crate) standing_units: u64,
    /// Repeated orders of other clients: one entry for each repetition.
    foreign_repeats: Vec<String>,
    unacknowledged: Vec<String>,
    /// Orders of other clients where none are allowed.
    unexpected: Vec<String>,
    misreported: Vec<String>,
    /// Position, earlier token, later token.
    token_drops: Vec<(u64, i64, i64)>,
    /// Orders without a token, where each must have one.
    bare: Vec<String>,
    /// The first contradiction.
    pub(crate) contradiction: Option<String>,
}

impl Audit {
    /// Reads the ledger of `history`.
    pub(crate) fn of(history: &History) -> Self {
        let mut audit = Self { seen: vec![0; history.orders.len()], ..Self::default() };
        let mut remaining = history.before.stock;
        let mut position = history.before.orders;
        let mut token = None;
        let mut foreign = HashSet::new();
        let is_guarded = history.is_guarded();
        for entry in &history.ledger {
            audit.units = audit.units.saturating_add(entry.quantity);
            audit.check_sums(entry, &mut position, &mut remaining);
            if let (Some(earlier), Some(later)) = (token, entry.token)
                && later < earlier
            {
                audit.token_drops.push((entry.position, earlier, later));
            }
            token = entry.token.or(token);
            if is_guarded && entry.token.is_none() {
                audit.bare.push(entry.order.clone());
            }
            match history.number(&entry.order) {
                Some(number) => audit.check_order(history, entry, number),
                None => audit.check_foreign(history, entry, foreign.insert(&entry.order)),
            }
        }
        audit
    }

    fn check_sums(&mut self, entry: &LedgerEntry, position: &mut u64, remaining: &mut i64) {
        *position += 1;
        *remaining = remaining.saturating_sub_unsigned(entry.quantity);
        if entry.position != *position {
            let what = format!("position {} follows where {position} belongs", entry.position);
            self.contradiction.get_or_insert(what);
        } else if entry.remaining != *remaining {
            let what = format!(
                "after position {position} it says {} units are left, and {remaining} must be",
                entry.remaining
            );
            self.contradiction.get_or_insert(what);
        }
        // report a failure once, not for all entries after it
        (*position, *remaining) = (entry.position, entry.remaining);
    }

    /// Checks an order of another item or run.
    fn check_foreign(&mut self, history: &History, entry: &LedgerEntry, is_new: bool) {
        if !is_new {
            self.foreign_repeats.push(entry.order.clone());
        }
        // no other client's ids begin like this: a service that changes ids has sold twice
        if entry.order.starts_with(&history.family) {
            self.unacknowledged.push(entry.order.clone());
            return;
        }
        if history.alone && is_new {
            self.unexpected.push(entry.order.clone());
        }
        self.foreign += 1;
        self.foreign_units = self.foreign_units.saturating_add(entry.quantity);
    }

    fn check_order(&mut self, history: &History, entry: &LedgerEntry, number: usize) {
        if let Some(seen) = self.seen.get_mut(number) {
            *seen += 1;
            if *seen > 1 {
                return;
            }
        }
        match history.orders.get(number) {
            Some(order) if !order.must_not_stand() => match &order.outcome {
                FinalOutcome::Acknowledged(answer) if differs(answer, entry) => {
                    self.misreported.push(entry.order.clone());
                }
                FinalOutcome::Acknowledged(_) => {}
                _ => {
                    self.standing += 1;
                    self.standing_units = self.standing_units.saturating_add(entry.quantity);
                }
            },
            _ => self.unacknowledged.push(entry.order.clone()),
        }
    }

    /// The failures of the ledger.
    pub(crate) fn reasons(&self, history: &History) -> Vec<Reason> {
        let mut reasons = Vec::new();
        reasons.extend(self.duplicates(history));
        reasons.extend(self.lost(history));
        if let Some(example) = self.unexpected.first() {
            let (orders, example) = (u64_from(self.unexpected.len()), example.clone());
            reasons.push(Reason::ForeignOrders { orders, example });
        }
        if let Some(example) = self.unacknowledged.first() {
            let (orders, example) = (u64_from(self.unacknowledged.len()), example.clone());
            reasons.push(Reason::Unacknowledged { orders, example });
        }
        if let Some(example) = self.misreported.first() {
            let (orders, example) = (u64_from(self.misreported.len()), example.clone());
            reasons.push(Reason::Misreported { orders, example });
        }
        if let Some(&(position, from, to)) = self.token_drops.first() {
            let times = u64_from(self.token_drops.len());
            reasons.push(Reason::TokenWentDown { times, position, from, to });
        }
        if let Some(example) = self.bare.first() {
            let (orders, example) = (u64_from(self.bare.len()), example.clone());
            reasons.push(Reason::WithoutToken { orders, example });
        }
        if let Some(what) = &self.contradiction {
            reasons.push(Reason::LedgerDoesNotAddUp { what: what.clone() });
        }
        reasons
    }

    fn duplicates(&self, history: &History) -> Option<Reason> {
        let own = self.seen.iter().enumerate().filter(|(_, times)| **times > 1);
        let own = own.map(|(number, _)| order_id(&history.run, number));
        let others: HashSet<_> = self.foreign_repeats.iter().collect();
        let example = own.clone().next().or_else(|| self.foreign_repeats.first().cloned())?;
        Some(Reason::Duplicates { orders: u64_from(own.count() + others.len()), example })
    }

    fn lost(&self, history: &History) -> Option<Reason> {
        let (mut orders, mut without_token, mut first) = (0, 0, None);
        for (number, (order, seen)) in history.orders.iter().zip(&self.seen).enumerate() {
            if let (FinalOutcome::Acknowledged(answer), 0) = (&order.outcome, seen) {
                orders += 1;
                without_token += u64::from(answer.token.is_none());
                first = first.or(Some(number));
            }
        }
        let example = order_id(&history.run, first?);
        Some(Reason::Lost { orders, without_token, example })
    }
}

fn differs(answer: &Acknowledgement, entry: &LedgerEntry) -> bool {
    (answer.quantity, answer.remaining, answer.token)
        != (entry.quantity, entry.remaining, entry.token)
        || answer.position.is_some_and(|position| position != entry.position)
        || entry.instance.as_ref().is_some_and(|instance| *instance != answer.instance)
}
