//! The owner of a hold.

use std::sync::atomic::{AtomicU64, Ordering};

/// The owner of a hold, for re-entry: a call with the same `Owner` enters again.
///
/// An owner is explicit, never the thread or the task: otherwise two branches of one task would both be let in. Methods take it
/// as `&mut`: nested calls pass it on, and two futures that run at the same time cannot both use it:
///
/// ```compile_fail,E0499
/// # async fn example(mutex: fenced_lock::Mutex) {
/// let mut owner = fenced_lock::Owner::new();
/// let (a, b) = tokio::join!(mutex.lock_as(&mut owner), mutex.lock_as(&mut owner));
/// # }
/// ```
///
/// An owner is not `Clone` for the same reason. It belongs to no session, but each session counts its own holds: through another
/// session the same owner waits like any other, even for itself.
#[derive(Debug)]
pub struct Owner {
    pub(super) id: OwnerId,
}

impl Owner {
    /// A new owner, different from all others in this process.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { id: OwnerId(NEXT.fetch_add(1, Ordering::Relaxed)) }
    }
}

impl Default for Owner {
    fn default() -> Self {
        Self::new()
    }
}

/// The identity of an owner. Never reused: a process would need centuries to run out of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OwnerId(u64);
