//! I6: the ledger agrees with the clients' clock.
//!
//! All times are of one clock, that of the load test. An order takes effect at one moment between its
//! first sending and its answer, and the ledger is said to be the order of those moments.

use std::cmp::Reverse;

use super::history::{History, LedgerEntry, order_id, u64_from};
use super::order::{FinalOutcome, Order};
use super::reason::{Moment, Reason};

/// What in the ledger contradicts the times. It is read once, from its beginning.
pub(super) fn reasons(history: &History) -> Vec<Reason> {
    let mut seen = vec![false; history.orders.len()];
    // the entry so far whose order was sent last
    let mut latest: Option<(&LedgerEntry, &Order)> = None;
    // the same, up to the entry that emptied the stock
    let mut taker: Option<(&LedgerEntry, &Order)> = None;
    let mut out_of_order = OutOfOrder::default();
    let mut left = history.before.stock;
    let enough = |left: i64| left >= i64::try_from(history.quantity).unwrap_or(i64::MAX);
    let mut available = enough(left);
    for entry in &history.ledger {
        left = left.saturating_sub_unsigned(entry.quantity);
        // of other buyers the times are not known; an order that is there twice is reported elsewhere
        if let Some(order) = first_entry(history, entry, &mut seen) {
            if let Some((before, later)) = latest
                && order.acknowledged().is_some_and(|answered| answered < later.sent)
            {
                out_of_order.note(entry, order, before, later);
            }
            if latest.is_none_or(|(_, latest)| latest.sent < order.sent) {
                latest = Some((entry, order));
            }
        }
        if available {
            taker = latest;
            available = enough(left);
        }
    }
    let mut reasons: Vec<_> = out_of_order.reason().into_iter().collect();
    // what is left in the end is looked at beside the stock
    if let Some((entry, order)) = taker.filter(|_| !available) {
        reasons.extend(refused_too_early(history, entry, order));
    }
    reasons
}

/// The order of an entry, if it is one of this run's and was not seen before.
fn first_entry<'h>(
    history: &'h History,
    entry: &LedgerEntry,
    seen: &mut [bool],
) -> Option<&'h Order> {
    let number = history.number(&entry.order)?;
    let order = history.orders.get(number)?;
    let again = std::mem::replace(seen.get_mut(number)?, true);
    (!again && order.attempts > 0).then_some(order)
}

/// The stock never rises in one sale, so *sold out* was true before its answer if all orders that
/// emptied the stock were sent by then. The one of them that was sent last is given.
fn refused_too_early(history: &History, entry: &LedgerEntry, taker: &Order) -> Option<Reason> {
    let refused = history.orders.iter().enumerate().filter(|(_, order)| {
        order.outcome == FinalOutcome::SoldOut && order.attempts > 0 && order.ended < taker.sent
    });
    let orders = u64_from(refused.clone().count());
    let (number, first) = refused.min_by_key(|(_, order)| order.ended)?;
    Some(Reason::SoldOutBeforeSent {
        orders,
        example: order_id(&history.run, number),
        answered: first.ended,
        taker: entry.order.clone(),
        sent: taker.sent,
    })
}

/// Orders that stand behind others that were sent only after their answer; the clearest as an
/// example.
#[derive(Default)]
struct OutOfOrder {
    orders: u64,
    example: Option<(Reverse<u64>, Moment, Moment)>,
}

impl OutOfOrder {
    fn note(&mut self, entry: &LedgerEntry, order: &Order, before: &LedgerEntry, later: &Order) {
        self.orders += 1;
        let moment = |entry: &LedgerEntry, at| {
            let (order, position) = (entry.order.clone(), entry.position);
            Moment { order, position, at }
        };
        let gap = Reverse(later.sent - order.ended);
        if self.example.as_ref().is_none_or(|(found, ..)| gap < *found) {
            self.example = Some((gap, moment(entry, order.ended), moment(before, later.sent)));
        }
    }

    fn reason(self) -> Option<Reason> {
        let (_, answered, sent) = self.example?;
        Some(Reason::OutOfOrder { orders: self.orders, answered, sent })
    }
}
