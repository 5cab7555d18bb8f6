//! All queues of one backend, shared by its requests and its watch.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::queue::{NameQueue, Watcher};
use crate::watched::{Key, shrink};

/// The queues that are watched, and the leases of this process.
#[derive(Debug)]
pub(super) struct Queues {
    state: Mutex<State>,
    linger: Duration,
    /// Sends the name of each new queue to the watch.
    new_names: mpsc::UnboundedSender<Arc<str>>,
}

#[derive(Debug, Default)]
struct State {
    by_name: HashMap<Arc<str>, NameQueue>,
    /// The leases of this process' sessions.
    leases: HashSet<i64>,
}

impl Queues {
    /// A queue is kept for `linger` after its last use.
    pub(super) fn new(linger: Duration, new_names: mpsc::UnboundedSender<Arc<str>>) -> Self {
        Self { state: Mutex::default(), linger, new_names }
    }

    #[cfg(test)]
    pub(super) fn count(&self, which: impl Fn(&NameQueue) -> bool) -> usize {
        self.state.lock().by_name.values().filter(|queue| which(queue)).count()
    }

    /// Runs `work` on the queue of `name`. A new queue is watched from now on.
    pub(super) fn with_or_new<T>(
        &self,
        name: &Arc<str>,
        work: impl FnOnce(&mut NameQueue) -> T,
    ) -> T {
        work(self.state.lock().by_name.entry(Arc::clone(name)).or_insert_with(|| {
            // an error means that the backend's thread has ended, and the watch with it
            drop(self.new_names.send(Arc::clone(name)));
            NameQueue::new(name)
        }))
    }

    /// Runs `work` on the queue of `name`, if there is one.
    pub(super) fn with<T>(&self, name: &str, work: impl FnOnce(&mut NameQueue) -> T) -> Option<T> {
        self.state.lock().by_name.get_mut(name).map(work)
    }

    /// How many claims of this process are known.
    pub(super) fn count_own(&self) -> usize {
        self.state.lock().by_name.values().map(|queue| queue.claims.own_keys().count()).sum()
    }

    /// Removes the queues that nobody needs any more, and returns their watchers.
    pub(super) fn remove_idle(&self) -> Vec<Watcher> {
        let mut state = self.state.lock();
        let idle = state.by_name.extract_if(|_, queue| queue.is_idle(self.linger));
        let watchers = idle.map(|(_, queue)| queue.watcher).collect();
        shrink(&mut state.by_name);
        watchers
    }

    /// Notes that the watch has ended. Returns the names of all queues: each needs a new watcher.
    pub(super) fn unwatch(&self) -> Vec<Arc<str>> {
        let mut state = self.state.lock();
        state.by_name.values_mut().for_each(|queue| queue.unwatched(Watcher::None));
        state.by_name.keys().cloned().collect()
    }

    /// At most `limit` queues to read again, those that were read longest ago first. Half of the limit is for queues in which a
    /// claim of this process waits, half for the others.
    pub(super) fn due(&self, limit: usize) -> Vec<Arc<str>> {
        let mut state = self.state.lock();
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
        self.state.lock().leases.insert(id);
    }

    /// Forgets a lease and all claims on it. They end with the lease.
    pub(super) fn remove_lease(&self, id: i64) {
        let mut state = self.state.lock();
        state.leases.remove(&id);
        for queue in state.by_name.values_mut() {
            queue.remove_lease(id);
        }
    }

    /// The keys among `keys` that are on a lease of this process but belong to no claim that it knows: etcd carried out a
    /// request that this process had given up. Such a key would block the lock for as long as the session lives. From now
    /// on the key is known, and no caller waits for it.
    pub(super) fn orphans(&self, name: &str, keys: Vec<Key>) -> Vec<Key> {
        let mut state = self.state.lock();
        let State { by_name, leases, .. } = &mut *state;
        let Some(queue) = by_name.get_mut(name) else { return Vec::new() };
        queue.orphans(keys, leases.iter().copied())
    }
}
