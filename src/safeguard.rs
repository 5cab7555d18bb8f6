//! Safeguards of the server and of the inventory that a fault suite switches off, to show what they are for.
//! Without `--cfg fenced_lock_chaos` each is a constant. **Never build a service for a real sale with it.** The other
//! safeguards are not here: the package `lab` plugs in another writer or guard.

use std::sync::atomic::{AtomicBool, Ordering};

/// The bounds on the size of a request, the time that it takes to arrive, and the event feeds.
pub static LIMITS: Safeguard = Safeguard(AtomicBool::new(true));

/// A read of a queue runs to its end, and only so many run at once.
pub static SEE_THROUGH: Safeguard = Safeguard(AtomicBool::new(true));

/// The inventory goes where a node of a Redis Cluster sends it, and asks for the map of the slots anew.
pub static REDIRECTS: Safeguard = Safeguard(AtomicBool::new(true));

/// An instance that the store does not answer gives the lock up, and does not ask for it before it has an answer.
pub static GIVE_WAY: Safeguard = Safeguard(AtomicBool::new(true));

/// On, unless the program was built with `--cfg fenced_lock_chaos` and it was switched off.
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
