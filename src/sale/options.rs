//! How one instance sells.

use std::time::Duration;

/// What one hold of the lock covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum HoldMode {
    /// All waiting orders of this instance: as fast as without a lock.
    #[default]
    Combined,
    /// One order: shows the cost of a lock for each request.
    Request,
}

/// How one instance sells.
#[derive(Clone, Debug)]
pub struct SaleOptions {
    /// The name of the default item's lock; a named item's lock is this name, `:` and the item.
    pub lock_name: String,
    /// The name of this instance, recorded with each order.
    pub instance: String,
    /// The most orders of one item that may wait at this instance.
    pub queue_length: usize,
    /// What one hold of the lock covers.
    pub hold: HoldMode,
    /// The most orders in a batch; at most [`MAX_BATCH`](crate::inventory::Inventory::MAX_BATCH).
    pub batch_size: usize,
    /// How long a tenure lasts while another instance waits for the lock.
    pub tenure: Duration,
    /// How long an order may wait for the lock, and for an answer of the store once it was sent.
    pub wait_timeout: Duration,
}
