//! The sessions and claims of this process, and the messages for them.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Token;
use crate::waiters::Waiters;

/// What the name of each lease's channel begins with.
const CHANNEL: &str = "fenced_lock_";

pub(super) struct Registry {
    pub(super) waiters: Waiters<Token>,
    leases: Mutex<BTreeSet<i64>>,
}

impl Registry {
    pub(super) fn new() -> Self {
        Self { waiters: Waiters::new(), leases: Mutex::default() }
    }

    pub(super) fn leases(&self) -> MutexGuard<'_, BTreeSet<i64>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The statements that listen for messages to all leases.
    pub(super) fn listen(&self) -> String {
        let channels: Vec<_> =
            self.leases().iter().map(|lease| format!("LISTEN {CHANNEL}{lease}")).collect();
        channels.join(";")
    }

    /// A message came: the queue of a claim that is its first has changed. Any user of the database can send it, so
    /// it only says that it is time to ask.
    pub(super) fn hear(&self, channel: &str, payload: &str) {
        let lease = channel.strip_prefix(CHANNEL).and_then(|lease| lease.parse().ok());
        let mut words = payload.split(' ');
        let number = words.next().and_then(|number| number.parse().ok());
        let (Some(lease), Some(number)) = (lease, number) else { return };
        let Some(claim) = self.waiters.find(lease, number) else { return };
        if let (Some(as_of), Some(contended)) = (words.next(), words.next())
            && let Ok(as_of) = as_of.parse()
        {
            self.waiters.note_contended_as_of(&claim, as_of, contended == "t");
        }
        self.waiters.wake(|waiter| *waiter == claim);
    }
}
