//! The present problems of a sale.

use std::time::Duration;

use fenced_lock::ObservedClaim;
use serde::Serialize;

use crate::http::reply::grouped;
use crate::inventory::{InventoryError, Item, Stock};
use crate::sale::{GuardStatus, LockHealth, SaleError};

/// The kind of the alert for an instance without a session while the lock service answers.
const LOCK_LOST: &str = "lock-lost";

/// A holder that keeps the lock this long while others wait is paused, cut off or dead.
const STUCK: Duration = Duration::from_millis(1500);

/// A present problem.
#[derive(Clone, Serialize)]
pub(super) struct Alert {
    kind: &'static str,
    text: String,
}

fn alert(kind: &'static str, text: impl Into<String>) -> Alert {
    Alert { kind, text: text.into() }
}

/// The alert for a failed read of the stock. `has_numbers`: whether an earlier read succeeded.
pub(super) fn of_store(error: InventoryError, item: &Item, has_numbers: bool) -> Alert {
    match error {
        InventoryError::UnknownItem => alert("no-sale", "No sale was started."),
        error if error.is_retryable() => {
            let numbers =
                if has_numbers { ", and the numbers are the last known ones" } else { "" };
            let text =
                format!("Redis does not answer: nothing can be sold until it does{numbers}.");
            alert("redis-away", text)
        }
        error => {
            let error = SaleError::of_read(error, item);
            alert(error.word(), format!("Nothing can be sold: {error}."))
        }
    }
}

/// The alert for the state of the lock service. `before`: the alert until then.
pub(super) fn of_lock(health: Option<LockHealth>, before: Option<&Alert>) -> Option<Alert> {
    match health? {
        LockHealth::Answers => None,
        // not if the lock service was away before: then the session ended because of that, and the alert stays
        LockHealth::NoSession if before.is_none_or(|before| before.kind == LOCK_LOST) => {
            Some(alert(
                LOCK_LOST,
                "This instance did not renew its lease in time: it was paused, or the lock service does not \
             answer it. It lost its place in the queue, and sells again once it has a new one.",
            ))
        }
        LockHealth::Silent | LockHealth::NoSession => Some(alert(
            "etcd-away",
            "The lock service does not answer: no instance gets the lock until it does.",
        )),
    }
}

/// The alerts for wrong numbers.
pub(super) fn of_stock(stock: &Stock) -> Vec<Alert> {
    let mut alerts = Vec::new();
    let excess = stock.lucky.saturating_sub(stock.initial);
    let [left, lucky, initial, too_many] =
        [stock.stock, stock.lucky, stock.initial, excess].map(grouped);
    if excess > 0 {
        let text = format!("{lucky} of {initial} units are sold: {too_many} too many.");
        alerts.push(alert("oversold", text));
    }
    if !stock.is_balanced() {
        let text = format!(
            "{left} in stock and {lucky} sold do not add up to the initial {initial}: updates were lost."
        );
        alerts.push(alert("unbalanced", text));
    }
    alerts
}

pub(super) fn of_guard(guard: &GuardStatus) -> impl Iterator<Item = Alert> {
    guard.warnings.iter().map(|(kind, text)| alert(kind, *text))
}

/// The alert for a holder that seems to be gone.
pub(super) fn of_holder(queue: &[ObservedClaim]) -> Option<Alert> {
    let [holder, next, ..] = queue else { return None };
    if holder.since.max(next.since).elapsed() < STUCK {
        return None;
    }
    let name = holder.label.as_deref().unwrap_or("An instance");
    let text = format!(
        "{name} holds the lock and does not release it: it is paused, cut off or dead. The next instance in \
         the queue gets the lock when the lease of the holder ends."
    );
    Some(alert("holder-silent", text))
}
