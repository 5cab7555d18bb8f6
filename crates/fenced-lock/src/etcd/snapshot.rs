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
