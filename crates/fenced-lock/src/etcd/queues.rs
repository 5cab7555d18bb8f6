//! All queues of one backend, shared by its requests and its watch.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::queue::{Key, NameQueue, Watcher, shrink};

/// The queues that are watched, and the leases whose keys are ours.
#[derive(Debug, Default)]
pub(super) struct Queues {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    by_name: HashMap<Arc<str>, NameQueue>,
    leases: HashMap<i64, KeptBy>,
}

/// The lease on which the claims of a session hang: its own, or one that took its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptBy {
    pub(super) lease: i64,
    pub(super) ttl: Duration,
    /// Whether all claims of the session hang on it by now.
    pub(super) has_all: bool,
}

impl Queues {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works with the queue of `name`, making it if there is none; the second part of the answer
    /// tells whether it is new, and so has to be watched from now on.
    pub(super) fn with_or_new<T>(
        &self,
        name: &Arc<str>,
        work: impl FnOnce(&mut NameQueue) -> T,
    ) -> (T, bool) {
        let mut state = self.state();
        let mut is_new = false;
        let queue = state.by_name.entry(Arc::clone(name)).or_insert_with(|| {
            is_new = true;
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
        self.state().by_name.values().map(NameQueue::count_own).sum()
    }

    /// Removes at most `limit` queues that nobody needs any more, and tells who watched them.
    pub(super) fn remove_idle(&self, limit: usize) -> Vec<Watcher> {
        let mut state = self.state();
        let idle = state.by_name.iter().filter(|(_, queue)| queue.is_idle()).take(limit);
        let idle: Vec<_> = idle.map(|(name, queue)| (Arc::clone(name), queue.watcher())).collect();
        for (name, _) in &idle {
            state.by_name.remove(name);
        }
        shrink(&mut state.by_name);
        idle.into_iter().map(|(_, watcher)| watcher).collect()
    }

    /// At most `limit` queues to read again. Half of them are those that have waited longest for it,
    /// and half are chosen so among those in which a claim of ours waits.
    pub(super) fn due(&self, limit: usize) -> Vec<Arc<str>> {
        let mut state = self.state();
        let mut due: Vec<(bool, Instant, Arc<str>)> = Vec::new();
        for (name, queue) in &state.by_name {
            if let Some(since) = queue.due_since() {
                due.push((!queue.is_waited_for(), since, Arc::clone(name)));
            }
        }
        due.sort_unstable();
        let mut chosen: Vec<_> = due.drain(..due.len().min(limit / 2)).collect();
        due.sort_unstable_by_key(|(_, since, _)| *since);
        chosen.extend(due.into_iter().take(limit - chosen.len()));
        let chosen: Vec<_> = chosen.into_iter().map(|(.., name)| name).collect();
        for name in &chosen {
            state.by_name.get_mut(name).map(NameQueue::reading);
        }
        chosen
    }

    pub(super) fn add_lease(&self, id: i64, ttl: Duration) {
        self.set_kept_by(id, KeptBy { lease: id, ttl, has_all: true });
    }

    pub(super) fn set_kept_by(&self, id: i64, kept_by: KeptBy) {
        self.state().leases.insert(id, kept_by);
    }

    /// On which lease the claims of the lease `id` hang.
    pub(super) fn kept_by(&self, id: i64) -> KeptBy {
        let known = self.state().leases.get(&id).copied();
        known.unwrap_or(KeptBy { lease: id, ttl: Duration::ZERO, has_all: true })
    }

    /// This process's claims of the lease `id`: their locks' names and their keys.
    pub(super) fn own_of(&self, id: i64) -> Vec<(Arc<str>, Key)> {
        let state = self.state();
        let of_queue = |(name, queue): (&Arc<str>, &NameQueue)| {
            let own = queue.own_of(id).into_iter();
            own.map(|key| (Arc::clone(name), key)).collect::<Vec<_>>()
        };
        state.by_name.iter().flat_map(of_queue).collect()
    }

    /// Forgets a lease and all claims on it, which are gone or will be.
    pub(super) fn remove_lease(&self, id: i64) {
        let mut state = self.state();
        state.leases.remove(&id);
        for queue in state.by_name.values_mut() {
            queue.remove_lease(id);
        }
    }

    /// Those of `keys` in the queue of `name` that are ours and that nobody knows of: see
    /// [`NameQueue::is_orphan`].
    pub(super) fn orphans(&self, name: &str, mut keys: Vec<Key>) -> Vec<Key> {
        let state = self.state();
        let Some(queue) = state.by_name.get(name) else { return Vec::new() };
        keys.retain(|key| queue.is_orphan(key, |lease| state.leases.contains_key(&lease)));
        keys
    }
}
