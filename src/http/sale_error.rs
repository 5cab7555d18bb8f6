//! Errors of the sale, for the client and for the log.

use std::time::Duration;

use super::problem::{Problem, ProblemType};
use crate::error_chain::ErrorChain;
use crate::sale::SaleError;
use crate::throttle::Throttle;

/// The client gets the type and the error's own text; the log gets its sources as well.
impl From<SaleError> for Problem {
    fn from(error: SaleError) -> Self {
        use SaleError as E;
        let (kind, log) = match &error {
            E::QueueFull { .. } => (ProblemType::QUEUE_FULL, Some(&OVERLOAD)),
            E::WaitTooLong { .. } => (ProblemType::WAIT_TOO_LONG, Some(&OVERLOAD)),
            E::LockUnavailable { .. } => (ProblemType::LOCK_UNAVAILABLE, Some(&LOCK)),
            E::LockRefused { .. } => (ProblemType::LOCK_REFUSED, Some(&FAULT)),
            E::LockBlocked { .. } => (ProblemType::NOT_READY, Some(&FAULT)),
            E::StoreUnavailable { .. } | E::StoreRefused { .. } => {
                (ProblemType::STORE_UNAVAILABLE, Some(&STORE))
            }
            E::StoreMisconfigured { .. } => (ProblemType::STORE_MISCONFIGURED, Some(&FAULT)),
            // the inventory logs a roll-back, once
            E::StoreRolledBack { .. } => (ProblemType::STORE_ROLLED_BACK, None),
            E::OutcomeUnknown { .. } => (ProblemType::OUTCOME_UNKNOWN, Some(&STORE)),
            E::StartUnknown { .. } => (ProblemType::START_UNKNOWN, Some(&STORE)),
            E::StaleToken => (ProblemType::STALE_TOKEN, Some(&LOCK)),
            E::ForeignFence { .. } => (ProblemType::FOREIGN_FENCE, Some(&FAULT)),
            E::UnknownItem { .. } => (ProblemType::UNKNOWN_ITEM, None),
            E::ItemRequired => (ProblemType::ITEM_REQUIRED, None),
            E::Damaged { .. } => (ProblemType::DAMAGED, Some(&FAULT)),
            E::Stopping => (ProblemType::STOPPING, None),
        };
        if let Some(log) = log {
            log.write(&error);
        }
        let problem = Self::new(kind, error.to_string());
        match error {
            E::OutcomeUnknown { order, .. } => problem.with_order(order),
            E::QueueFull { item, .. }
            | E::LockBlocked { item, .. }
            | E::StoreRolledBack { item, .. }
            | E::StartUnknown { item, .. }
            | E::ForeignFence { item, .. }
            | E::UnknownItem { item }
            | E::Damaged { item, .. } => problem.with_item(item),
            _ => problem,
        }
    }
}

static OVERLOAD: Log = Log::new(false);
static LOCK: Log = Log::new(false);
static STORE: Log = Log::new(false);
/// An operator must act.
static FAULT: Log = Log::new(true);

/// One line a second for each group of errors: an outage answers every request with the same error.
struct Log {
    throttle: Throttle,
    is_fault: bool,
}

impl Log {
    const fn new(is_fault: bool) -> Self {
        Self { throttle: Throttle::new(Duration::from_secs(1)), is_fault }
    }

    fn write(&self, error: &SaleError) {
        let Some(suppressed) = self.throttle.pass() else { return };
        let error = ErrorChain(error);
        if self.is_fault {
            tracing::error!(suppressed, "{error}");
        } else {
            tracing::warn!(suppressed, "{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Item, OrderId};
    use crate::sale::BoxError;
    use crate::sale::metrics::OUTCOMES;
    use fenced_lock::ClusterId;

    fn cause() -> BoxError {
        "redis://:pw@10.0.0.1 refused".into()
    }

    /// Goal: every error of the sale has a type, a status that says whether something was taken, a metric, and
    /// no word of its source in what the client reads.
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
            (SaleError::ItemRequired, "item-required", 400),
            (
                SaleError::StoreRolledBack { item: item.clone(), source: cause() },
                "store-rolled-back",
                503,
            ),
            (SaleError::Damaged { item, source: cause() }, "damaged", 500),
            (SaleError::Stopping, "stopping", 503),
        ];
        for (error, word, status) in cases {
            assert!(OUTCOMES.contains(&error.outcome()), "{word}");
            let problem = Problem::from(error);
            assert_eq!(problem.kind().word, word);
            assert_eq!(problem.kind().status.as_u16(), status, "{word}");
            assert!(!format!("{problem:?}").contains("pw"), "{problem:?}");
        }
    }
}
