//! Errors of the sale, for the client and for the log.

use std::time::Duration;

use super::problem::{Problem, ProblemType};
use crate::error_chain::ErrorChain;
use crate::sale::SaleError;
use crate::throttle::Throttle;

/// The client gets the type and what to do; the log gets the whole chain of sources.
impl From<SaleError> for Problem {
    fn from(error: SaleError) -> Self {
        log(&error);
        match error {
            SaleError::QueueFull { item, limit } => {
                let detail = format!(
                    "the queue of this instance is full ({limit} orders): nothing was taken, retry later"
                );
                Self::new(ProblemType::QueueFull, detail).with_item(item)
            }
            SaleError::WaitTooLong { waited } => {
                let waited = humantime::format_duration(waited);
                let detail = format!(
                    "the lock was not granted within {waited}: nothing was taken, retry later"
                );
                Self::new(ProblemType::WaitTooLong, detail)
            }
            SaleError::LockUnavailable { .. } => Self::new(
                ProblemType::LockUnavailable,
                "the lock service does not answer or is out of space: nothing was taken, retry later",
            ),
            SaleError::LockRefused { .. } => Self::new(
                ProblemType::LockRefused,
                "the lock service refuses this item's lock: nothing was taken. An operator must act; the log \
                 of this instance has the cause",
            ),
            SaleError::LockBlocked { item, key } => {
                let detail = format!(
                    "the key {key}, which has no lease, holds the lock of {item}: nothing is sold until an \
                     operator deletes it"
                );
                Self::new(ProblemType::NotReady, detail).with_item(item)
            }
            SaleError::StoreUnavailable { .. } => Self::new(
                ProblemType::StoreUnavailable,
                "the store does not answer: nothing was taken, retry later",
            ),
            SaleError::StoreRolledBack { item, .. } => Self::new(
                ProblemType::StoreRolledBack,
                "the store lost data that it acknowledged to this instance, or runs on an older copy: \
                 nothing is sold until an operator restores the data, starts a new sale, or accepts \
                 the loss with `flash-sale recover store`",
            )
            .with_item(item),
            SaleError::OutcomeUnknown { order, .. } => Self::new(
                ProblemType::OutcomeUnknown,
                "the store did not confirm the order in time, so it may have been accepted: retry with this \
                 order id as the Idempotency-Key, which takes nothing twice",
            )
            .with_order(order),
            SaleError::StoreRefused { .. } => Self::new(
                ProblemType::StoreUnavailable,
                "the store refuses to write, possibly out of memory or disk: nothing was taken, retry later",
            ),
            SaleError::StoreMisconfigured { .. } => Self::new(
                ProblemType::StoreMisconfigured,
                "the store refuses this instance: nothing was taken. An operator must act; the log of this \
                 instance has the cause",
            ),
            SaleError::StartUnknown { item, .. } => Self::new(
                ProblemType::StartUnknown,
                "the store did not answer in time, so the sale may have been started: see GET /stock",
            )
            .with_item(item),
            SaleError::StaleToken => Self::new(
                ProblemType::StaleToken,
                "this instance lost the lock to a later holder: nothing was taken, retry",
            ),
            SaleError::ForeignFence { item, ours, theirs } => {
                let detail = format!(
                    "etcd cluster {theirs} guarded the stock, and this instance uses cluster {ours}: nothing \
                     is sold until an operator makes sure that no instance uses the other cluster, and \
                     runs `flash-sale recover cluster`"
                );
                Self::new(ProblemType::ForeignFence, detail).with_item(item)
            }
            SaleError::UnknownItem { item } => {
                let detail = format!("there is no sale of {item}: PUT /stock starts one");
                Self::new(ProblemType::UnknownItem, detail).with_item(item)
            }
            SaleError::Damaged { item, .. } => Self::new(
                ProblemType::Damaged,
                "the item's data in the store is damaged: the log of this instance has the cause",
            )
            .with_item(item),
            SaleError::Stopping => Self::new(
                ProblemType::Stopping,
                "this instance is stopping: nothing was taken, use another instance",
            ),
        }
    }
}

/// One line a second for each group of errors: an outage answers every request with the same error.
fn log(error: &SaleError) {
    static OVERLOAD: Throttle = Throttle::new(Duration::from_secs(1));
    static LOCK: Throttle = Throttle::new(Duration::from_secs(1));
    static STORE: Throttle = Throttle::new(Duration::from_secs(1));
    static DATA: Throttle = Throttle::new(Duration::from_secs(1));
    let (throttle, is_fault) = match error {
        SaleError::QueueFull { .. } | SaleError::WaitTooLong { .. } => (&OVERLOAD, false),
        SaleError::LockUnavailable { .. } | SaleError::StaleToken => (&LOCK, false),
        SaleError::StoreUnavailable { .. }
        | SaleError::StoreRefused { .. }
        | SaleError::OutcomeUnknown { .. }
        | SaleError::StartUnknown { .. } => (&STORE, false),
        SaleError::LockBlocked { .. }
        | SaleError::LockRefused { .. }
        | SaleError::ForeignFence { .. }
        | SaleError::StoreMisconfigured { .. }
        | SaleError::Damaged { .. } => (&DATA, true),
        // the inventory has told the log of a roll-back, once
        SaleError::UnknownItem { .. } | SaleError::StoreRolledBack { .. } | SaleError::Stopping => {
            return;
        }
    };
    let Some(suppressed) = throttle.pass() else { return };
    let error = ErrorChain(error);
    if is_fault {
        tracing::error!(suppressed, "{error}");
    } else {
        tracing::warn!(suppressed, "{error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Item, OrderId};
    use crate::sale::BoxError;
    use fenced_lock::ClusterId;

    fn cause() -> BoxError {
        "redis://:pw@10.0.0.1 refused".into()
    }

    /// Every error of the sale has a type, a status that says whether something was taken, and no
    /// word of its source in what the client reads.
    #[test]
    fn every_sale_error_has_its_problem() {
        let order = OrderId::new("a-1").expect("visible ASCII");
        let item = Item::DEFAULT;
        let cases = [
            (SaleError::QueueFull { item: item.clone(), limit: 3 }, "queue-full", 429),
            (SaleError::WaitTooLong { waited: Duration::from_secs(10) }, "wait-too-long", 503),
            (SaleError::LockUnavailable { source: cause() }, "lock-unavailable", 503),
            (SaleError::LockRefused { source: cause() }, "lock-refused", 503),
            (SaleError::LockBlocked { item: item.clone(), key: "a/b".into() }, "not-ready", 503),
            (SaleError::StoreUnavailable { source: cause() }, "store-unavailable", 503),
            (SaleError::OutcomeUnknown { order, source: cause() }, "outcome-unknown", 504),
            (SaleError::StoreRefused { source: cause() }, "store-unavailable", 503),
            (SaleError::StoreMisconfigured { source: cause() }, "store-misconfigured", 503),
            (SaleError::StartUnknown { item: item.clone(), source: cause() }, "start-unknown", 504),
            (SaleError::StaleToken, "stale-token", 503),
            (
                SaleError::ForeignFence {
                    item: item.clone(),
                    ours: ClusterId(1),
                    theirs: ClusterId(2),
                },
                "foreign-fence",
                503,
            ),
            (SaleError::UnknownItem { item: item.clone() }, "unknown-item", 404),
            (
                SaleError::StoreRolledBack { item: item.clone(), what: "pw".into() },
                "store-rolled-back",
                503,
            ),
            (SaleError::Damaged { item, what: "pw".into() }, "damaged", 500),
            (SaleError::Stopping, "stopping", 503),
        ];
        for (error, word, status) in cases {
            let retryable = error.is_retryable();
            let problem = Problem::from(error);
            assert_eq!(problem.kind().word(), word);
            assert_eq!(problem.kind().status().as_u16(), status, "{word}");
            assert_eq!(problem.kind().retry_after_seconds().is_some(), retryable, "{word}");
            assert!(!format!("{problem:?}").contains("pw"), "{problem:?}");
        }
    }
}
