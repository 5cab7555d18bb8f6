//! The present problems of a sale.

use fenced_lock::QueueSnapshot;
use tokio::time::Instant;

use super::event_log::STUCK;
use super::view::{Alert, ClaimView};
use crate::http::reply::grouped;
use crate::inventory::{InventoryError, Item, Stock};
use crate::sale::{GuardStatus, LockHealth, SaleError};

/// The alert for a failed read of the stock of `item`; without an error, the store did not answer in time.
/// `has_numbers`: whether an earlier read succeeded.
pub(super) fn of_store(error: Option<InventoryError>, item: &Item, has_numbers: bool) -> Alert {
    let (kind, error) = match error {
        Some(InventoryError::UnknownItem) => {
            return Alert { kind: "no-sale", text: "No sale was started.".to_owned() };
        }
        Some(error @ InventoryError::RolledBack { .. }) => ("rolled-back", error),
        Some(error @ InventoryError::Damaged { .. }) => ("damaged", error),
        Some(InventoryError::Refused { .. }) => {
            let text = "Redis refuses to serve this instance.".to_owned();
            return Alert { kind: "redis-refuses", text };
        }
        _ => {
            let numbers =
                if has_numbers { ", and the numbers are the last known ones" } else { "" };
            let text =
                format!("Redis does not answer: nothing can be sold until it does{numbers}.");
            return Alert { kind: "redis-away", text };
        }
    };
    Alert { kind, text: sentence(&SaleError::of_read(error, item).to_string()) }
}

/// The message of an error as a sentence.
fn sentence(message: &str) -> String {
    let (first, rest) = message.split_at(message.chars().next().map_or(0, char::len_utf8));
    format!("{}{rest}.", first.to_uppercase())
}

/// The alert for the state of the lock service, after the alert `before`.
pub(super) fn of_lock(health: Option<LockHealth>, before: Option<&Alert>) -> Option<Alert> {
    const AWAY: &str = "etcd-away";
    let was_away = before.is_some_and(|before| before.kind == AWAY);
    let (kind, text) = match health? {
        LockHealth::Answers => return None,
        // a session that ends while etcd is away ends because of that
        LockHealth::NoSession if !was_away => (
            "lock-lost",
            "This instance did not renew its lease in time: it was paused, or the lock service does not \
             answer it. It lost its place in the queue, and sells again once it has a new one.",
        ),
        LockHealth::Silent | LockHealth::NoSession => {
            (AWAY, "The lock service does not answer: no instance gets the lock until it does.")
        }
    };
    Some(Alert { kind, text: text.to_owned() })
}

/// The alerts for wrong numbers.
pub(super) fn of_stock(stock: &Stock) -> Vec<Alert> {
    let mut alerts = Vec::new();
    let excess = stock.lucky.saturating_sub(stock.initial);
    if excess > 0 {
        let [lucky, initial, excess] = [stock.lucky, stock.initial, excess].map(grouped);
        let text = format!("{lucky} of {initial} units are sold: {excess} too many.");
        alerts.push(Alert { kind: "oversold", text });
    }
    if !stock.is_balanced() {
        let [stock, lucky, initial] = [stock.stock, stock.lucky, stock.initial].map(grouped);
        let text = format!(
            "{stock} in stock and {lucky} sold do not add up to the initial {initial}: updates were lost."
        );
        alerts.push(Alert { kind: "unbalanced", text });
    }
    alerts
}

/// The warnings about this guard.
pub(super) fn of_guard(guard: &GuardStatus) -> impl Iterator<Item = Alert> {
    guard.warnings.iter().map(|(kind, text)| Alert { kind, text: (*text).to_owned() })
}

/// The alert for a holder that seems to be gone.
pub(super) fn of_holder(
    queue_snapshot: &QueueSnapshot,
    holder: Option<&ClaimView>,
) -> Option<Alert> {
    let [first, next, ..] = queue_snapshot.queue.as_slice() else { return None };
    let waited = Instant::now() - first.since.max(next.since);
    if waited < STUCK {
        return None;
    }
    let name = holder.and_then(|holder| holder.instance.as_deref()).unwrap_or("An instance");
    let text = format!(
        "{name} holds the lock and does not release it: it is paused, cut off or dead. The next instance in \
         the queue gets the lock when the lease of the holder ends."
    );
    Some(Alert { kind: "holder-silent", text })
}
