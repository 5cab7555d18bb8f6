//! How a fault suite takes the lock's safeguards away.
//!
//! Without the cargo feature `chaos` nothing here can be switched: [`Defence::is_on`] is a constant.

use std::sync::atomic::{AtomicU32, Ordering};

/// Something that the lock does so that it holds and goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defence {
    /// A claim whose waiter has gone is withdrawn.
    ClaimCleanup,
    /// A session is lost by the local clock, whatever the service says.
    LocalExpiry,
    /// A watch that broke is opened again.
    ReWatch,
    /// A queue is read again when its watch was opened again, and once a second.
    Relist,
    /// What a service has no room for is an error, not a reason to wait.
    Refusals,
    /// Leases are renewed on a thread of their own.
    OwnThread,
    /// A claim has a key of its own.
    OwnerByClaim,
    /// A queue is the claims on one name exactly.
    ExactPrefix,
    /// A token is replaced that is older than a change of users or roles, or gets no watcher.
    Reauthentication,
    /// A claim that was denied is not withdrawn, and one that may not be withdrawn ends no session.
    Denials,
    /// Whether a release was done is not known where another member may have done it before.
    UnknownRelease,
    /// A request runs to its end, also when its answer is not waited for any more.
    SeeThrough,
}

/// The bit of each defence that is off, in this whole process.
static OFF: AtomicU32 = AtomicU32::new(0);

impl Defence {
    /// Whether it is there: always, in a program that was built without the feature `chaos`.
    pub fn is_on(self) -> bool {
        !cfg!(feature = "chaos") || OFF.load(Ordering::Relaxed) & (1 << self as u32) == 0
    }

    /// Takes it away, or brings it back, in this whole process.
    #[cfg(feature = "chaos")]
    pub fn set(self, is_on: bool) {
        let bit = 1 << self as u32;
        if is_on {
            OFF.fetch_and(!bit, Ordering::Relaxed);
        } else {
            OFF.fetch_or(bit, Ordering::Relaxed);
        }
    }
}
