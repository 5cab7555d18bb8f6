//! Switches with which a fault suite takes the lock's safeguards away.
//!
//! Without `RUSTFLAGS="--cfg fenced_lock_chaos"` nothing here can be switched: [`Safeguard::is_on`] is a constant.
//! A cargo feature would not do: any dependency of a program could switch it on.

use std::sync::atomic::{AtomicU32, Ordering};

/// A safeguard of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safeguard {
    /// A claim whose waiter has gone is withdrawn.
    ClaimCleanup,
    /// A session is lost by the local clock, without a word from the service.
    LocalExpiry,
    /// A watch that broke is opened again.
    ReWatch,
    /// A queue is read again when its watch was opened again, and once a second.
    Relist,
    /// A request that the service has no room for fails instead of waiting.
    Refusals,
    /// Leases are renewed on a thread of their own.
    OwnThread,
    /// A claim has a key of its own.
    OwnerByClaim,
    /// A queue is the claims on one name exactly.
    ExactPrefix,
    /// A token that is older than a change of users or roles, or is refused a watcher, is replaced.
    Reauthentication,
    /// A claim that was denied is not withdrawn, and one that may not be withdrawn ends no session.
    Denials,
    /// A claim that another member may have released before counts as released.
    UnknownRelease,
    /// A request runs to its end when its caller has stopped waiting for the answer.
    SeeThrough,
    /// A queue is read in pages.
    Pages,
}

/// The bit of each safeguard that is off, for the whole process.
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
