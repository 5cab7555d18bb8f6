//! Why an order, or a question about the sale, got no answer.

use std::sync::Arc;
use std::time::Duration;

use crate::inventory::{InventoryError, Item, Order, OrderId};

/// Why an order, or a question about the sale, got no answer. [`SaleError::is_retryable`] says
/// whether asking again, with the same order id, can help.
#[derive(Debug, thiserror::Error)]
pub enum SaleError {
    /// As many orders wait as may; nothing was taken.
    #[error("{limit} orders wait for {item} at this instance, and no more may")]
    QueueFull {
        /// What was ordered.
        item: Item,
        /// How many may wait.
        limit: usize,
    },
    /// The lock was not granted in time; nothing was taken.
    #[error("the lock was not granted within {}", humantime::format_duration(*.waited))]
    WaitTooLong {
        /// How long the order waited.
        waited: Duration,
    },
    /// The lock service does not answer, or the lock was lost; nothing was taken.
    #[error("the lock service does not answer")]
    LockUnavailable {
        /// What went wrong.
        #[source]
        source: BoxError,
    },
    /// The lock service refuses this item's lock, and waiting mends nothing: a missing permission, a
    /// wrong password. Nothing was taken.
    #[error("the lock service refuses this lock")]
    LockRefused {
        /// What it said.
        #[source]
        source: BoxError,
    },
    /// A key that hangs on no lease is in front of everybody who waits for the lock: it never ends by itself.
    #[error(
        "the lock of {item} is held by the key {key:?}, which has no lease: it stays until it is deleted"
    )]
    LockBlocked {
        /// Whose lock.
        item: Item,
        /// The key.
        key: String,
    },
    /// The store does not answer; nothing was taken.
    #[error("the store does not answer")]
    StoreUnavailable {
        /// What went wrong.
        #[source]
        source: BoxError,
    },
    /// The store answers that it will not write; nothing was taken.
    #[error("the store refuses")]
    StoreRefused {
        /// What it said.
        #[source]
        source: BoxError,
    },
    /// The store refuses, and waiting mends nothing: a wrong password, a missing permission, a Redis
    /// Cluster. Nothing was taken.
    #[error("the store refuses this instance")]
    StoreMisconfigured {
        /// What it said.
        #[source]
        source: BoxError,
    },
    /// The store lacks what it once acknowledged to this instance: it lost its last writes, or an older
    /// copy of its data was brought back. Nothing is sold until the right data are back, the sale is
    /// started afresh, or an operator [accepts](crate::inventory::Inventory::recover_store) the loss.
    #[error("the store lacks what it acknowledged of {item}: {what}")]
    StoreRolledBack {
        /// What was asked for.
        item: Item,
        /// What it lacks.
        what: String,
    },
    /// The order was sent to the store and no answer came, or too few replicas have it yet: it may
    /// stand or not. Asking again with the same order id tells, and takes nothing twice.
    #[error("it is not known whether order {order} was accepted: ask again with the same order id", order = .order.as_str())]
    OutcomeUnknown {
        /// The order to ask for.
        order: OrderId,
        /// What went wrong.
        #[source]
        source: BoxError,
    },
    /// A sale was to be started afresh, and the store did not answer: it may have been, or not.
    #[error("it is not known whether the sale of {item} was started: look at the stock")]
    StartUnknown {
        /// What was to be sold.
        item: Item,
        /// What went wrong.
        #[source]
        source: BoxError,
    },
    /// The store has seen a later token: this instance lost the lock without knowing. Nothing was
    /// taken.
    #[error("a later holder of the lock has written already")]
    StaleToken,
    /// The store's fence comes from another etcd cluster. Nothing is sold until an operator has
    /// looked: either this instance was given the wrong etcd, or etcd was set up anew and the fence
    /// has to accept it: [`Inventory::recover_cluster`](crate::inventory::Inventory::recover_cluster).
    #[error(
        "the fence of {item} comes from etcd cluster {theirs}, and this lock is of cluster {ours}"
    )]
    ForeignFence {
        /// What was ordered.
        item: Item,
        /// The cluster that this instance's lock comes from.
        ours: fenced_lock::ClusterId,
        /// The cluster that the fence comes from.
        theirs: fenced_lock::ClusterId,
    },
    /// Nobody has set a stock for this item.
    #[error("there is no sale of {item}")]
    UnknownItem {
        /// What was asked for.
        item: Item,
    },
    /// What the store has under this item's keys is not what this service writes there.
    #[error("the data of {item} in the store is damaged: {what}")]
    Damaged {
        /// What was asked for.
        item: Item,
        /// What is wrong with it.
        what: String,
    },
    /// The service is stopping; nothing was taken.
    #[error("this instance is stopping")]
    Stopping,
}

/// Any error, as a source.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl SaleError {
    /// Whether asking again, with the same order id, is safe and can help.
    pub fn is_retryable(&self) -> bool {
        !matches!(
            self,
            Self::ForeignFence { .. }
                | Self::UnknownItem { .. }
                | Self::Damaged { .. }
                | Self::LockRefused { .. }
                | Self::StoreMisconfigured { .. }
                | Self::StoreRolledBack { .. }
                | Self::StartUnknown { .. }
        )
    }
}

impl SaleError {
    /// What the store's failure to take `order` means for its buyer.
    pub fn of_order(error: impl Into<Arc<InventoryError>>, order: &Order) -> Self {
        let error = error.into();
        match &*error {
            InventoryError::Unanswered { .. } | InventoryError::NotReplicated { .. } => {
                Self::OutcomeUnknown { order: order.id.clone(), source: error.into() }
            }
            _ => Self::of_read(error, &order.item),
        }
    }

    /// What the store's failure to start a sale of `item` afresh means.
    pub fn of_start(error: InventoryError, item: &Item) -> Self {
        match error {
            InventoryError::Unanswered { .. } | InventoryError::NotReplicated { .. } => {
                Self::StartUnknown { item: item.clone(), source: error.into() }
            }
            error => Self::of_read(error, item),
        }
    }

    /// What the store's failure to answer a question about `item` means.
    pub fn of_read(error: impl Into<Arc<InventoryError>>, item: &Item) -> Self {
        let error = error.into();
        let item = item.clone();
        match &*error {
            InventoryError::UnknownItem => Self::UnknownItem { item },
            InventoryError::Damaged { what } => Self::Damaged { item, what: what.clone() },
            InventoryError::RolledBack { what } => {
                Self::StoreRolledBack { item, what: what.clone() }
            }
            InventoryError::StaleToken { .. } => Self::StaleToken,
            InventoryError::ForeignFence { fence, token } => {
                Self::ForeignFence { item, ours: token.cluster(), theirs: fence.cluster }
            }
            error_of if error_of.is_wrong_server() => {
                Self::StoreMisconfigured { source: error.into() }
            }
            InventoryError::Refused { .. } => Self::StoreRefused { source: error.into() },
            _ => Self::StoreUnavailable { source: error.into() },
        }
    }
}
