//! What a queue's watch has shown.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;

/// A queue as its watch has shown it so far. A snapshot costs no request, and is as late as the watch is.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSnapshot {
    /// Whether the watch is up. If not, the rest is from before it broke.
    pub is_current: bool,
    /// The claims in the queue, the holder first.
    pub queue: Vec<ObservedClaim>,
    /// The last tenures that have ended, at most 256, in their order.
    pub tenures: Vec<ObservedTenure>,
}

/// A claim in a [`QueueSnapshot`].
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedClaim {
    /// Its key.
    pub key: Arc<[u8]>,
    /// Its place: the revision of its token, once granted.
    pub revision: i64,
    /// The lease that it hangs on.
    pub lease: i64,
    /// Who made it, if this library did.
    pub label: Option<Arc<str>>,
    /// When it was made, if this library made it, by the wall clock of its maker; not later than now.
    pub made_at: Option<SystemTime>,
    /// When it was first seen in the queue. For the holder: when it was first seen to be the first.
    pub since: Instant,
}

/// A tenure in a [`QueueSnapshot`]: one stretch of holding that has ended.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedTenure {
    /// The revision of its token.
    pub revision: i64,
    /// Who held, if this library made the claim.
    pub label: Option<Arc<str>>,
    /// When its claim was seen to be the first.
    pub began_at: Instant,
    /// When its claim was seen to be gone.
    pub ended_at: Instant,
    /// Since when another claim had waited behind it when it ended, if one had.
    pub contended_since: Option<Instant>,
}
