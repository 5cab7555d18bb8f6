//! All queues of one backend, shared by its requests and its watch.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use super::queue::NameQueue;

/// The queues that are watched, and the leases whose keys are ours.
#[derive(Debug, Default)]
pub(super) struct Queues {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    by_name: HashMap<Arc<str>, NameQueue>,
    /// In hexadecimal, as in the keys.
    leases: HashSet<String>,
}

impl Queues {
    /// Works with the queue of `name`, making it if there is none; the second part of the answer
    /// tells whether it is new, and so has to be watched from now on.
    pub(super) fn with_or_new<T>(
        &self,
        name: &Arc<str>,
        work: impl FnOnce(&mut NameQueue) -> T,
    ) -> (T, bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_new = false;
        let queue = state.by_name.entry(Arc::clone(name)).or_insert_with(|| {
            is_new = true;
            NameQueue::new(name)
        });
        (work(queue), is_new)
    }

    /// Works with the queue of `name` if there is one.
    pub(super) fn with<T>(&self, name: &str, work: impl FnOnce(&mut NameQueue) -> T) -> Option<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.by_name.get_mut(name).map(work)
    }

    pub(super) fn names(&self) -> Vec<Arc<str>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.by_name.keys().cloned().collect()
    }

    /// How many claims of this process are known.
    pub(super) fn count_own(&self) -> usize {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.by_name.values().map(NameQueue::count_own).sum()
    }

    /// Removes the queue if nobody needs it; `true` if it did.
    pub(super) fn remove_if_idle(&self, name: &str) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = state.by_name.get(name).is_some_and(NameQueue::is_idle);
        is_idle && state.by_name.remove(name).is_some()
    }

    pub(super) fn add_lease(&self, id: i64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.leases.insert(format!("{id:x}"));
    }

    /// Forgets a lease and all claims on it, which are gone or will be.
    pub(super) fn remove_lease(&self, id: i64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let lease = format!("{id:x}");
        state.leases.remove(&lease);
        for queue in state.by_name.values_mut() {
            queue.remove_lease(&lease);
        }
    }

    /// Keys of ours in the queue of `name` that nobody knows of: see [`NameQueue::orphans`].
    pub(super) fn orphans(&self, name: &str) -> Vec<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(queue) = state.by_name.get(name) else { return Vec::new() };
        queue.orphans(|lease| state.leases.contains(lease))
    }
}
