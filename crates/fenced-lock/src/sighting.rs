//! What a process sees of a queue without asking.

use tokio::time::Instant;

/// What the watch of a queue has told so far. It costs no request, and is as late as the watch is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sighting {
    /// Whether the watch is up: if not, the rest is what was seen before it broke.
    pub is_current: bool,
    /// The claims in the queue, the holder first.
    pub queue: Vec<SeenClaim>,
    /// The last tenures that have ended, in their order; a bounded number of them.
    pub tenures: Vec<SeenTenure>,
}

/// A claim in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenClaim {
    /// Its place: the revision of its token, once granted.
    pub revision: i64,
    /// The lease that it hangs on.
    pub lease: i64,
    /// When it was first seen to queue; of the holder: when it was seen to be the first.
    pub since: Instant,
}

/// One stretch of holding that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenTenure {
    /// The revision of its token.
    pub revision: i64,
    /// The lease of its claim.
    pub lease: i64,
    /// When its claim was seen to be the first.
    pub began_at: Instant,
    /// When its claim was seen to be gone.
    pub ended_at: Instant,
    /// Since when somebody waited behind it at its end, if somebody did.
    pub contended_since: Option<Instant>,
}
