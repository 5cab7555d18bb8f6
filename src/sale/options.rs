//! How one instance sells.

use std::time::Duration;

/// For how much the distributed lock is taken at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum HoldMode {
    /// For all orders that wait at this instance: as fast as without a lock.
    #[default]
    Combined,
    /// For one order: what a lock costs that is taken for each request.
    Request,
}

/// How one instance sells.
#[derive(Clone, Debug)]
pub struct SaleOptions {
    /// The name of the default item's lock; a named item's lock is this name, `:` and the item.
    pub lock_name: String,
    /// The name of this instance, recorded with each order.
    pub instance: String,
    /// How many orders of one item may wait at this instance.
    pub queue_length: usize,
    /// For how much the distributed lock is taken at once.
    pub hold: HoldMode,
    /// How many orders one batch may have; at most [`MAX_BATCH`](crate::inventory::Inventory::MAX_BATCH).
    pub batch_size: usize,
    /// How long a tenure lasts when somebody else waits for the lock.
    pub tenure: Duration,
    /// How long an order may wait for the lock, and for an answer of the store once it was sent.
    pub wait_timeout: Duration,
}
