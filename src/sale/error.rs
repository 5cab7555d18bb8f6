//! Why an order, or a question about the sale, got no answer.

use std::sync::Arc;
use std::time::Duration;

use crate::inventory::{InventoryError, Item, Order, OrderId};

/// Why an order, or a question about the sale, got no answer.
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
    /// The store does not answer.
    #[error("the store does not answer: nothing was taken, retry later")]
    StoreUnavailable {
        /// The cause.
        source: BoxError,
    },
    /// The store refuses for now.
    #[error(
        "the store refuses for now (a failover, a slot that moves, no memory or disk): nothing was taken, retry \
         later"
    )]
    StoreRefused {
        /// The cause.
        source: BoxError,
    },
    /// The store refuses for good: a wrong password, a missing permission, a Redis Cluster.
    #[error(
        "the store refuses this instance: nothing was taken. An operator must act; the log of this instance \
         has the cause"
    )]
    StoreMisconfigured {
        /// The cause.
        source: BoxError,
    },
    /// The store lost data that it acknowledged to this instance, or an older copy was brought back. Nothing
    /// is sold until the data is restored, a new sale starts, or an operator
    /// [accepts](crate::inventory::Inventory::recover_store) the loss.
    #[error(
        "the store lost data that it acknowledged to this instance, or runs on an older copy: nothing is sold \
         until an operator restores the data, starts a new sale, or accepts the loss with `flash-sale recover \
         store`"
    )]
    StoreRolledBack {
        /// The item.
        item: Item,
        /// The cause.
        source: BoxError,
    },
    /// The order was sent to the store and not confirmed, or too few replicas have it.
    #[error(
        "the store did not confirm order {order} in time, so it may have been accepted: retry with this id as \
         the Idempotency-Key, which takes nothing twice",
        order = .order.as_str()
    )]
    OutcomeUnknown {
        /// The order.
        order: OrderId,
        /// The cause.
        source: BoxError,
    },
    /// The start of a sale was sent to the store and not confirmed.
    #[error(
        "the store did not answer in time, so the sale of {item} may have been started: see GET /stock"
    )]
    StartUnknown {
        /// The item.
        item: Item,
        /// The cause.
        source: BoxError,
    },
    /// The store has accepted a later token: this instance lost the lock without knowing.
    #[error("this instance lost the lock to a later holder: nothing was taken, retry")]
    StaleToken,
    /// The fence comes from another etcd cluster. Either this instance has the wrong etcd, or etcd was set up
    /// anew and an operator has to [accept](crate::inventory::Inventory::recover_cluster) it.
    #[error(
        "etcd cluster {theirs} guarded the stock of {item}, and this instance uses cluster {ours}: nothing is \
         sold until an operator makes sure that no instance uses the other cluster, and runs `flash-sale \
         recover cluster`"
    )]
    ForeignFence {
        /// The item.
        item: Item,
        /// The cluster of this instance.
        ours: fenced_lock::ClusterId,
        /// The cluster of the fence.
        theirs: fenced_lock::ClusterId,
    },
    /// The item has no stock.
    #[error("there is no sale of {item}: PUT /stock starts one")]
    UnknownItem {
        /// The item.
        item: Item,
    },
    /// The store is a Redis Cluster, where the default item cannot be.
    #[error("this sale has named items only: give the name of one with ?item=")]
    ItemRequired,
    /// The item's keys hold what the service does not write.
    #[error("the data of {item} in the store is damaged: the log of this instance has the cause")]
    Damaged {
        /// The item.
        item: Item,
        /// The cause.
        source: BoxError,
    },
    /// The instance is stopping.
    #[error("this instance is stopping: nothing was taken, use another instance")]
    Stopping,
}

/// Any error, as a source.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl SaleError {
    /// The outcome of the order in the metrics: one of [`OUTCOMES`](super::metrics::OUTCOMES).
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::QueueFull { .. } => "queue-full",
            Self::WaitTooLong { .. } | Self::LockBlocked { .. } => "wait-too-long",
            Self::LockUnavailable { .. } => "lock-unavailable",
            Self::LockRefused { .. } => "lock-refused",
            Self::StoreUnavailable { .. } => "store-unavailable",
            Self::StoreRefused { .. } => "store-refused",
            Self::StoreMisconfigured { .. } => "store-misconfigured",
            Self::StoreRolledBack { .. } => "store-rolled-back",
            Self::OutcomeUnknown { .. } | Self::StartUnknown { .. } => "unknown",
            Self::StaleToken => "stale-token",
            Self::ForeignFence { .. } => "foreign-fence",
            Self::UnknownItem { .. } | Self::ItemRequired => "unknown-item",
            Self::Damaged { .. } => "damaged",
            Self::Stopping => "stopping",
        }
    }

    /// What a failure of the store to take `order` means.
    pub fn of_order(error: impl Into<Arc<InventoryError>>, order: &Order) -> Self {
        let error = error.into();
        if error.nothing_written() {
            return Self::of_read(error, &order.item);
        }
        Self::OutcomeUnknown { order: order.id.clone(), source: error.into() }
    }

    /// What a failure of the store to start a sale of `item` means.
    pub fn of_start(error: impl Into<Arc<InventoryError>>, item: &Item) -> Self {
        let error = error.into();
        if error.nothing_written() {
            return Self::of_read(error, item);
        }
        Self::StartUnknown { item: item.clone(), source: error.into() }
    }

    /// What a failure of the store to answer a question about `item` means.
    pub fn of_read(error: impl Into<Arc<InventoryError>>, item: &Item) -> Self {
        let error = error.into();
        let item = item.clone();
        match &*error {
            InventoryError::UnknownItem => Self::UnknownItem { item },
            InventoryError::ItemRequired => Self::ItemRequired,
            InventoryError::Damaged { .. } => Self::Damaged { item, source: error.into() },
            InventoryError::RolledBack { .. } => {
                Self::StoreRolledBack { item, source: error.into() }
            }
            InventoryError::StaleToken { .. } => Self::StaleToken,
            InventoryError::ForeignFence { fence, token } => {
                Self::ForeignFence { item, ours: token.cluster(), theirs: fence.cluster() }
            }
            wrong if wrong.is_wrong_server() => Self::StoreMisconfigured { source: error.into() },
            InventoryError::Refused { .. } => Self::StoreRefused { source: error.into() },
            _ => Self::StoreUnavailable { source: error.into() },
        }
    }
}
