//! The errors of orders and of questions about the sale.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::inventory::{InventoryError, Item, Order, OrderId};

/// The reason for which an order, or a question about the sale, got no answer.
///
/// The text of an error is for the client, and says what to do. Its source is for the log alone.
#[derive(Debug, thiserror::Error)]
pub enum SaleError {
    /// The queue is full.
    #[error("the queue of this instance is full ({limit} orders): nothing was taken, retry later")]
    QueueFull {
        /// The ordered item.
        item: Item,
        /// How many orders may wait.
        limit: usize,
    },
    /// The lock was not granted in time.
    #[error(
        "the lock was not granted within {}: nothing was taken, retry later",
        humantime::format_duration(*.waited)
    )]
    WaitTooLong {
        /// How long the order waited.
        waited: Duration,
    },
    /// The lock service does not answer, or the lock was lost.
    #[error("the lock service does not answer or is out of space: nothing was taken, retry later")]
    LockUnavailable {
        /// The cause.
        source: BoxError,
    },
    /// The lock service refuses this item's lock for good: a missing permission, a wrong password.
    #[error(
        "the lock service refuses this item's lock: nothing was taken. An operator must act; the log of this \
         instance has the cause"
    )]
    LockRefused {
        /// The cause.
        source: BoxError,
    },
    /// A key without a lease is first in the queue for the lock: it never ends by itself.
    #[error(
        "the key {key}, which has no lease, holds the lock of {item}: nothing is sold until an operator \
         deletes it"
    )]
    LockBlocked {
        /// The item of the lock.
        item: Item,
        /// The key.
        key: String,
    },
    /// The store failed or refused, and did nothing.
    #[error("{}", of_the_store(.source, .item))]
    Store {
        /// The item of the call.
        item: Item,
        /// The cause.
        source: Arc<InventoryError>,
    },
    /// The order was sent to the store and not confirmed, or too few replicas have it.
    #[error(
        "the store did not answer for order {order} in time, so it may have been accepted, or confirmed or cancelled if \
         that was asked: send the same call again, with this id as the Idempotency-Key, which takes nothing twice",
        order = .order.as_str()
    )]
    OutcomeUnknown {
        /// The order.
        order: OrderId,
        /// The cause.
        source: BoxError,
    },
    /// The start, the change or the deletion of a sale was sent to the store and not confirmed.
    #[error(
        "the store did not answer in time, so this call for the sale of {item} may have been carried out: send the same call \
         with the same id or Idempotency-Key again, which does nothing twice, or see GET /sales"
    )]
    CallUnknown {
        /// The item.
        item: Item,
        /// The error in a word: `start-unknown` or `change-unknown`.
        word: &'static str,
        /// The cause.
        source: BoxError,
    },
    /// Too many clients read ledgers or queues of locks.
    #[error("too many clients read ledgers or queues at this instance: retry later")]
    TooManyReads,
    /// The instance is stopping.
    #[error("this instance is stopping: nothing was taken, use another instance")]
    Stopping,
}

/// Any error, as a source.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl SaleError {
    /// The error in a word: the `type` of its problem, and the outcome of its order in the metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Self::QueueFull { .. } => "queue-full",
            Self::WaitTooLong { .. } => "wait-too-long",
            Self::LockUnavailable { .. } => "lock-unavailable",
            Self::LockRefused { .. } => "lock-refused",
            Self::LockBlocked { .. } => "not-ready",
            Self::OutcomeUnknown { .. } => "outcome-unknown",
            Self::CallUnknown { word, .. } => word,
            Self::TooManyReads => "too-many-watchers",
            Self::Stopping => "stopping",
            Self::Store { source, .. } => match &**source {
                InventoryError::UnknownItem => "unknown-item",
                InventoryError::SaleRefused { why, .. } => why,
                InventoryError::TooFewUnits { .. } => "too-few-units",
                InventoryError::ItemRequired => "item-required",
                InventoryError::Damaged { .. } => "damaged",
                InventoryError::RolledBack { .. } => "store-rolled-back",
                InventoryError::StaleToken { .. } => "stale-token",
                InventoryError::ForeignFence { .. } => "foreign-fence",
                error if error.is_wrong_server() => "store-misconfigured",
                _ => "store-unavailable",
            },
        }
    }

    /// The item of the error, if it has one.
    pub fn item(&self) -> Option<&Item> {
        match self {
            Self::QueueFull { item, .. }
            | Self::LockBlocked { item, .. }
            | Self::CallUnknown { item, .. }
            | Self::Store { item, .. } => Some(item),
            _ => None,
        }
    }

    /// The error of `order` after this failure of the store.
    pub fn of_order(error: impl Into<Arc<InventoryError>>, order: &Order) -> Self {
        let error = error.into();
        if error.nothing_written() {
            return Self::of_read(error, &order.item);
        }
        Self::OutcomeUnknown { order: order.id.clone(), source: error.into() }
    }

    /// The error of starting a sale of `item`, or of deleting one, after this failure of the store.
    pub fn of_start(error: impl Into<Arc<InventoryError>>, item: &Item) -> Self {
        Self::of_call(error.into(), item, "start-unknown")
    }

    /// The error of changing the sale of `item` after this failure of the store.
    pub fn of_change(error: impl Into<Arc<InventoryError>>, item: &Item) -> Self {
        Self::of_call(error.into(), item, "change-unknown")
    }

    fn of_call(error: Arc<InventoryError>, item: &Item, word: &'static str) -> Self {
        if error.nothing_written() {
            return Self::of_read(error, item);
        }
        Self::CallUnknown { item: item.clone(), word, source: error.into() }
    }

    /// The error of an order whose sale was [replaced](crate::inventory::Outcome::SaleReplaced).
    pub fn sale_replaced(item: &Item) -> Self {
        Self::of_read(InventoryError::SaleRefused { why: "sale-replaced", running: None }, item)
    }

    /// The error of a peer's order that was not carried out, since the tenure that it was sent for is over.
    pub(super) fn tenure_over() -> Self {
        Self::LockUnavailable { source: "the tenure is over".into() }
    }

    /// The error of a question about `item` after this failure of the store.
    pub fn of_read(error: impl Into<Arc<InventoryError>>, item: &Item) -> Self {
        Self::Store { item: item.clone(), source: error.into() }
    }
}

/// The text that the client gets for an error of the store.
fn of_the_store(error: &InventoryError, item: &Item) -> Cow<'static, str> {
    match error {
        InventoryError::UnknownItem => {
            format!("there is no sale of {item}: PUT /stock starts one").into()
        }
        InventoryError::TooFewUnits { left } => {
            format!("{left} units of {item} are left: nothing was withdrawn").into()
        }
        InventoryError::Damaged { .. } => {
            format!("the data of {item} in the store is damaged: the log of this instance has the cause").into()
        }
        // the type and the title of the problem have the reason
        InventoryError::SaleRefused { running, .. } => {
            let running = running.as_deref().unwrap_or("none");
            format!("the running sale of {item} is {running}; GET /sales lists those that were kept").into()
        }
        InventoryError::ForeignFence { fence, token } => format!(
            "etcd cluster {} guarded the stock of {item}, and this instance uses cluster {}: nothing is sold until an \
             operator makes sure that no instance uses the other cluster, and runs `flash-sale recover cluster`",
            fence.cluster(),
            token.cluster()
        )
        .into(),
        InventoryError::ItemRequired => {
            "this sale has named items only: give the name of one with ?item=".into()
        }
        InventoryError::RolledBack { .. } => {
            "the store lost data that it acknowledged to this instance, or runs on an older copy: nothing is sold \
             until an operator restores the data, starts a new sale with an id and `If-Match: *`, or accepts the loss with `flash-sale recover \
             store`"
                .into()
        }
        InventoryError::StaleToken { .. } => {
            "this instance lost the lock to a later holder: nothing was taken, retry".into()
        }
        error if error.is_wrong_server() => {
            "the store refuses this instance: nothing was taken. An operator must act; the log of this instance \
             has the cause"
                .into()
        }
        InventoryError::Refused { .. } => {
            "the store refuses for now (a failover, a slot that moves, no memory or disk): nothing was taken, \
             retry later"
                .into()
        }
        _ => "the store does not answer: nothing was taken, retry later".into(),
    }
}
