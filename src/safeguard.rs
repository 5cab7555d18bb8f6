//! Safeguards of the server and of the inventory that a fault suite switches off, to show what they are for. Without `--cfg
//! fenced_lock_chaos` each is a constant. **Never build a service for a real sale with it.** Other safeguards are not here: for
//! those, the package `lab` plugs in another writer or guard.

use std::sync::atomic::{AtomicBool, Ordering};

/// The limits on the size of a request, on the time that it takes to arrive, and on event feeds.
pub static LIMITS: Safeguard = Safeguard(AtomicBool::new(true));

/// A read of a queue runs to its end, and only a few run at once.
pub static SEE_THROUGH: Safeguard = Safeguard(AtomicBool::new(true));

/// The inventory follows redirections of a Redis Cluster, and asks again for the map of the slots.
pub static REDIRECTS: Safeguard = Safeguard(AtomicBool::new(true));

/// An instance gives the lock up if the store does not answer it, and takes part again only after an answer.
pub static GIVE_WAY: Safeguard = Safeguard(AtomicBool::new(true));

/// A switch that is on, unless the program was built with `--cfg fenced_lock_chaos` and has switched it off.
#[derive(Debug)]
pub struct Safeguard(AtomicBool);

impl Safeguard {
    pub(crate) fn is_on(&self) -> bool {
        !cfg!(fenced_lock_chaos) || self.0.load(Ordering::Relaxed)
    }

    /// Switches it off for the rest of the process.
    #[cfg(fenced_lock_chaos)]
    pub fn switch_off(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
