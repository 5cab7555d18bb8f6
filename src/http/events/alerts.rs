//! The present problems of a sale.

use fenced_lock::QueueSnapshot;
use tokio::time::Instant;

use super::event_log::STUCK;
use super::view::{Alert, ClaimView};
use crate::http::reply::grouped;
use crate::inventory::{InventoryError, Stock};
use crate::sale::{GuardStatus, LockHealth};

/// The alert for a failed read of the store. `has_numbers`: whether an earlier read succeeded.
pub(super) fn of_store(error: Option<&InventoryError>, has_numbers: bool) -> Alert {
    let (kind, text) = match error {
        Some(InventoryError::UnknownItem) => {
            ("no-sale", "No sale was started: there is no stock.".to_owned())
        }
        Some(InventoryError::Refused { .. }) => {
            ("redis-refuses", "Redis answers that it will not serve.".to_owned())
        }
        Some(InventoryError::RolledBack { .. }) => (
            "rolled-back",
            "Redis lacks what it has acknowledged: it was put back to an earlier state. Nothing is sold \
             until an operator has looked, or a sale is started afresh."
                .to_owned(),
        ),
        Some(InventoryError::Damaged { .. }) => (
            "damaged",
            "What is in Redis under this item's keys is not what the service writes there."
                .to_owned(),
        ),
        _ => {
            let numbers = if has_numbers { ", and the numbers are the last known ones" } else { "" };
            let text = format!("Redis does not answer: nothing can be sold until it does{numbers}.");
            ("redis-away", text)
        }
    };
    Alert { kind, text }
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
            "This instance did not renew its lease in time: it slept, was cut off from etcd, or etcd is away. \
             It has lost its place in the queue, and sells on once it has a new one.",
        ),
        LockHealth::Silent | LockHealth::NoSession => {
            (AWAY, "etcd does not answer: nobody is granted the lock until it does.")
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
            "{stock} in stock and {lucky} sold are not the {initial} that there were: updates were lost."
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
    let name = holder.and_then(|holder| holder.instance.as_deref()).unwrap_or("Somebody");
    let text = format!(
        "{name} holds the lock and does not give it back: it is paused or cut off, or has died. The next in \
         the queue gets it when its lease has ended."
    );
    Some(Alert { kind: "holder-silent", text })
}
