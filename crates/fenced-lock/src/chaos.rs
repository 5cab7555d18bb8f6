//! Switches by which a fault suite removes the lock's safeguards.
//!
//! Without `RUSTFLAGS="--cfg fenced_lock_chaos"` nothing can be switched: [`Safeguard::is_on`] is a constant. This is no cargo
//! feature, since any dependency of a program could turn a feature on.

use std::sync::atomic::{AtomicU32, Ordering};

/// A safeguard of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safeguard {
    /// A claim whose waiter has gone is withdrawn.
    ClaimCleanup,
    /// The local clock ends a session, without a message from the service.
    LocalExpiry,
    /// A watch that broke is opened again.
    ReWatch,
    /// A queue is read again after its watch was opened again, and once a second.
    Relist,
    /// A request for which the service has no room fails, and does not wait.
    Refusals,
    /// Leases are renewed on a thread of their own.
    OwnThread,
    /// Each claim has its own key.
    OwnerByClaim,
    /// A queue contains the claims on exactly one name.
    ExactPrefix,
    /// A token is replaced if it is older than a change of users or roles, or if a watcher was refused with it.
    Reauthentication,
    /// A denied claim is not withdrawn, and a denied withdrawal ends no session.
    Denials,
    /// A claim counts as released if another member may have released it before.
    UnknownRelease,
    /// A queue is read in pages.
    Pages,
    /// One request releases a claim and makes the next one.
    Handover,
}

/// A bit for each safeguard that is off, in the whole process.
static OFF: AtomicU32 = AtomicU32::new(0);

impl Safeguard {
    /// Whether it is on: always, in a program that was built without `--cfg fenced_lock_chaos`.
    pub fn is_on(self) -> bool {
        !cfg!(fenced_lock_chaos) || OFF.load(Ordering::Relaxed) & (1 << self as u32) == 0
    }

    /// Switches it on or off, in this whole process.
    #[cfg(fenced_lock_chaos)]
    pub fn set(self, is_on: bool) {
        let bit = 1 << self as u32;
        if is_on {
            OFF.fetch_and(!bit, Ordering::Relaxed);
        } else {
            OFF.fetch_or(bit, Ordering::Relaxed);
        }
    }
}
