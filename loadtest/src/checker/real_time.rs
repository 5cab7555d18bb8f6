//! I6: the ledger agrees with the clients' clock.
//!
//! All times are of one clock, that of the load test. An order takes effect at one moment between its
//! first sending and its answer, and the ledger is said to be the order of those moments.

use super::history::{History, LedgerEntry, order_id, u64_from};
use super::order::{FinalOutcome, Order};
use super::reason::{Kind, Reason, are, at, were};

/// What in the ledger contradicts the times. It is read once, from its beginning.
pub(super) fn reasons(history: &History) -> Vec<Reason> {
    let mut seen = vec![false; history.orders.len()];
    // the entry so far whose order was sent last
    let mut latest: Option<(&LedgerEntry, &Order)> = None;
    // the same, up to the entry that left too little for another order
    let mut taker: Option<(&LedgerEntry, &Order)> = None;
    let mut out_of_order = 0;
    // of those, the one that was answered longest before the order in front of it was sent
    let mut clearest: Option<(u64, String)> = None;
    let enough = |left: i64| left >= i64::try_from(history.quantity).unwrap_or(i64::MAX);
    let mut left = history.before.stock;
    for entry in &history.ledger {
        let is_available = enough(left);
        left = left.saturating_sub_unsigned(entry.quantity);
        // of other buyers the times are not known; an order that is there twice is reported elsewhere
        if let Some(order) = first_entry(history, entry, &mut seen) {
            if let Some((before, later)) = latest
                && order.acknowledged().is_some_and(|answered| answered < later.sent)
            {
                out_of_order += 1;
                let gap = later.sent - order.ended;
                if clearest.as_ref().is_none_or(|(found, _)| gap > *found) {
                    clearest = Some((gap, contradiction(entry, order, before, later)));
                }
            }
            if latest.is_none_or(|(_, latest)| latest.sent < order.sent) {
                latest = Some((entry, order));
            }
        }
        if is_available {
            taker = latest;
        }
    }
    let mut reasons = Vec::new();
    if let Some((_, example)) = clearest {
        reasons.push(Kind::OutOfOrder.because(format!(
            "{} in the ledger behind an order that was sent only after the answer, such as {example}",
            are(out_of_order, "order")
        )));
    }
    // if enough is left for an order, no refusal was right, and the stock at the end tells it
    if let Some((entry, order)) = taker.filter(|_| !enough(left)) {
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

fn contradiction(
    entry: &LedgerEntry,
    order: &Order,
    before: &LedgerEntry,
    later: &Order,
) -> String {
    let (answered, sent) = (at(order.ended), at(later.sent));
    format!(
        "{} at position {}, answered at {answered}: {} at position {} was first sent at {sent}",
        entry.order, entry.position, before.order, before.position
    )
}

/// The stock never rises in one sale, so *sold out* was true before its answer if all orders that
/// emptied the stock were sent by then. The one of them that was sent last is given.
fn refused_too_early(history: &History, entry: &LedgerEntry, taker: &Order) -> Option<Reason> {
    let refused = history.orders.iter().enumerate().filter(|(_, order)| {
        order.outcome == FinalOutcome::SoldOut && order.attempts > 0 && order.ended < taker.sent
    });
    let orders = were(u64_from(refused.clone().count()), "order");
    let (number, first) = refused.min_by_key(|(_, order)| order.ended)?;
    let (example, answered) = (order_id(&history.run, number), at(first.ended));
    Some(Kind::SoldOutTooEarly.because(format!(
        "{orders} told sold out, such as {example} at {answered}, while units were left: {}, which \
         took one later, was first sent at {}",
        entry.order,
        at(taker.sent)
    )))
}
