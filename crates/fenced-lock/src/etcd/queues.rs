//! All queues of one backend, shared by its requests and its watch.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::queue::{NameQueue, Watcher};
use tokio::time::Instant;

use crate::watched::{Key, shrink};

/// The queues that are watched, and the leases whose keys are ours.
#[derive(Debug)]
pub(super) struct Queues {
    state: Mutex<State>,
    linger: Duration,
}

#[derive(Debug, Default)]
struct State {
    by_name: HashMap<Arc<str>, NameQueue>,
    /// When to look whether each of them is still needed.
    look_at: BTreeSet<(Instant, Arc<str>)>,
    /// Of the sessions.
    leases: HashSet<i64>,
}

impl Queues {
    /// A queue is kept for `linger` after its last use.
    pub(super) fn new(linger: Duration) -> Self {
        Self { state: Mutex::default(), linger }
    }

    #[cfg(test)]
    pub(super) fn count(&self, which: impl Fn(&NameQueue) -> bool) -> usize {
        self.state().by_name.values().filter(|queue| which(queue)).count()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works with the queue of `name`, making it if there is none. The second part of the answer is whether it is
    /// new, and so has to be watched from now on.
    pub(super) fn with_or_new<T>(
        &self,
        name: &Arc<str>,
        work: impl FnOnce(&mut NameQueue) -> T,
    ) -> (T, bool) {
        let mut state = self.state();
        let State { by_name, look_at, .. } = &mut *state;
        let mut is_new = false;
        let queue = by_name.entry(Arc::clone(name)).or_insert_with(|| {
            is_new = true;
            look_at.insert((Instant::now() + self.linger, Arc::clone(name)));
            NameQueue::new(name)
        });
        (work(queue), is_new)
    }

    /// Works with the queue of `name` if there is one.
    pub(super) fn with<T>(&self, name: &str, work: impl FnOnce(&mut NameQueue) -> T) -> Option<T> {
        self.state().by_name.get_mut(name).map(work)
    }

    /// How many claims of this process are known.
    pub(super) fn count_own(&self) -> usize {
        self.state().by_name.values().map(|queue| queue.claims.own_keys().count()).sum()
    }

    /// Removes at most `limit` queues that are not needed any more, and returns their watchers.
    pub(super) fn remove_idle(&self, limit: usize) -> Vec<Watcher> {
        let mut state = self.state();
        let State { by_name, look_at, .. } = &mut *state;
        let now = Instant::now();
        let mut watchers = Vec::new();
        while watchers.len() < limit && look_at.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, name)) = look_at.pop_first() else { break };
            let Some(queue) = by_name.get(&name) else { continue };
            let idle_at = queue.idle_at(self.linger);
            if idle_at <= now {
                watchers.push(queue.watcher);
                by_name.remove(&name);
            } else {
                look_at.insert((idle_at, name));
            }
        }
        shrink(by_name);
        watchers
    }

    /// Notes that there are no watchers any more. The names of all queues, which are to be watched.
    pub(super) fn unwatch(&self) -> Vec<Arc<str>> {
        let mut state = self.state();
        state.by_name.values_mut().for_each(|queue| queue.unwatched(Watcher::None));
        state.by_name.keys().cloned().collect()
    }

    /// At most `limit` queues to read again: those that have waited longest for it, half of them among those
    /// in which a claim of this process waits.
    pub(super) fn due(&self, limit: usize) -> Vec<Arc<str>> {
        let mut state = self.state();
        let due = state.by_name.iter().filter_map(|(name, queue)| {
            Some((queue.due_since()?, Arc::clone(name), queue.claims.is_waited_for()))
        });
        let mut due: Vec<_> = due.collect();
        due.sort_unstable();
        let (waited_for, others): (Vec<_>, Vec<_>) = due.into_iter().partition(|(.., is)| *is);
        let half = |due: Vec<_>| due.into_iter().take(limit / 2);
        let chosen: Vec<_> =
            half(waited_for).chain(half(others)).map(|(_, name, _)| name).collect();
        for name in &chosen {
            state.by_name.get_mut(name).map(NameQueue::reading);
        }
        chosen
    }

    pub(super) fn add_lease(&self, id: i64) {
        self.state().leases.insert(id);
    }

    /// Forgets a lease and all claims on it, which are gone or will be.
    pub(super) fn remove_lease(&self, id: i64) {
        let mut state = self.state();
        state.leases.remove(&id);
        for queue in state.by_name.values_mut() {
            queue.remove_lease(id);
        }
    }

    /// Those of `keys` in the queue of `name` that this process made (their lease is one of its own) but does
    /// not know: from a request that was given up and carried out all the same. They would block the lock for
    /// as long as the session lives.
    pub(super) fn orphans(&self, name: &str, keys: Vec<Key>) -> Vec<Key> {
        let mut state = self.state();
        let State { by_name, leases, .. } = &mut *state;
        let Some(queue) = by_name.get_mut(name) else { return Vec::new() };
        queue.orphans(keys, leases.iter().copied())
    }
}
