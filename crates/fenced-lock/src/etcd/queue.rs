//! The queue of one lock, as its watcher has shown it, and that watcher's state.

use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;

use super::keys;
use crate::watched::{About, Event, Key, WatchedQueue};
use crate::{HolderWatch, ObservedClaim};

/// How often a queue in use is read again, in case its watcher has fallen silent.
const REREAD_EVERY: Duration = Duration::from_secs(1);

/// The addition to that time for each claim in the queue.
const REREAD_LATER: Duration = Duration::from_millis(1);

/// A queue as its watcher has shown it so far. A snapshot costs no request. It lacks the changes that the watcher has not shown
/// yet.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSnapshot {
    /// Whether the watch is up. If not, the queue is the one from before the watch broke.
    pub is_current: bool,
    /// The claims in the queue, the holder first.
    pub queue: Vec<ObservedClaim>,
}

/// The watcher of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watcher {
    /// The queue has no watcher yet.
    None,
    /// etcd was asked for a watcher.
    Asked,
    /// etcd has made the watcher of this number. It shows each change from then on.
    Created(i64),
    /// etcd refused to make a watcher.
    Refused,
}

#[derive(Debug)]
pub(super) struct NameQueue {
    prefix: String,
    pub(super) watcher: Watcher,
    pub(super) claims: WatchedQueue<ObservedClaim>,
    holder: HolderWatch,
    last_used: Instant,
    last_read: Instant,
}

impl NameQueue {
    pub(super) fn new(name: &str) -> Self {
        Self {
            prefix: keys::prefix(name),
            watcher: Watcher::None,
            claims: WatchedQueue::default(),
            holder: HolderWatch::default(),
            last_used: Instant::now(),
            last_read: Instant::now(),
        }
    }

    /// The claims. The queue counts as used, and is watched for a while from now on.
    pub(super) fn used(&mut self) -> &mut WatchedQueue<ObservedClaim> {
        self.last_used = Instant::now();
        &mut self.claims
    }

    /// Notes that a claim of this process is not in the queue any more.
    pub(super) fn forget(&mut self, key: &[u8]) {
        self.used().forget(key);
        self.note_holder();
    }

    /// Forgets the claims on this lease. They end with the lease.
    pub(super) fn remove_lease(&mut self, lease: i64) {
        let begin = keys::begin(&self.prefix, lease);
        let own = self.claims.own_keys().filter(|key| key.starts_with(&begin));
        for key in own.cloned().collect::<Vec<_>>() {
            self.forget(&key);
        }
    }

    /// Applies what the watch said.
    pub(super) fn apply(&mut self, mut events: Vec<Event<ObservedClaim>>) {
        events.retain(|event| keys::is_claim(&event.key, &self.prefix));
        self.claims.apply(events);
        self.note_holder();
    }

    /// Takes a list of all keys under the prefix: see [`WatchedQueue::load`].
    #[must_use]
    pub(super) fn load(
        &mut self,
        mut list: Vec<Event<ObservedClaim>>,
        as_of: i64,
        latest: i64,
    ) -> bool {
        list.retain(|claim| keys::is_claim(&claim.key, &self.prefix));
        let is_done = self.claims.load(list, as_of, latest);
        self.note_holder();
        is_done
    }

    /// Notes that the watcher has gone.
    pub(super) fn unwatched(&mut self, watcher: Watcher) {
        self.watcher = watcher;
        self.claims.interrupted();
    }

    /// Returns the keys in the queue that are on one of these leases and belong to no claim of this process. From now on they
    /// count as claims for which no caller waits.
    pub(super) fn orphans(
        &mut self,
        mut keys: Vec<Key>,
        leases: impl Iterator<Item = i64>,
    ) -> Vec<Key> {
        let begins: Vec<_> = leases.map(|lease| keys::begin(&self.prefix, lease)).collect();
        keys.retain(|key| {
            begins.iter().any(|begin| key.starts_with(begin))
                && !self.claims.is_own(key)
                && self.claims.contains(key)
        });
        for key in &keys {
            self.claims.expect(key);
            self.claims.mark_gone(key);
        }
        keys
    }

    /// Whether the queue has a claim of this process, or somebody watches its holder.
    pub(super) fn is_used(&self) -> bool {
        self.claims.own_keys().next().is_some() || self.holder.is_watched()
    }

    /// Since when the queue is due to be read again, if it is due.
    pub(super) fn due_since(&self) -> Option<Instant> {
        let claims = u32::try_from(self.claims.claims().len()).unwrap_or(u32::MAX);
        let due = self.last_read + REREAD_EVERY + REREAD_LATER.saturating_mul(claims);
        let is_wanted = self.is_used() || !self.claims.is_current();
        let is_readable = matches!(self.watcher, Watcher::Created(_) | Watcher::Refused);
        (is_wanted && is_readable && due <= Instant::now()).then_some(due)
    }

    /// Notes that a read of the queue begins.
    pub(super) fn reading(&mut self) {
        self.last_read = Instant::now();
    }

    /// Whether the queue needs no watcher any more.
    pub(super) fn is_idle(&self, linger: Duration) -> bool {
        let is_kept = self.is_used() || self.watcher == Watcher::Asked;
        !is_kept && self.last_used.elapsed() >= linger
    }

    /// The queue as the watcher has shown it. The queue is watched for a while from now on.
    pub(super) fn snapshot(&mut self) -> QueueSnapshot {
        let mut queue: Vec<_> = self.used().claims().cloned().collect();
        if let (Some(first), Some(holder)) = (queue.first_mut(), self.holder.holder()) {
            first.since = holder.since;
        }
        QueueSnapshot { is_current: self.claims.is_current(), queue }
    }

    /// A receiver that shows the holder. The queue is watched for as long as it lives.
    pub(super) fn watch_holder(&mut self) -> watch::Receiver<Option<ObservedClaim>> {
        self.last_used = Instant::now();
        self.holder.watch()
    }

    /// When this claim was made, as far as the watch has shown it.
    pub(super) fn made_at(&self, key: &[u8]) -> Option<SystemTime> {
        self.claims.get(key)?.made_at
    }

    fn note_holder(&mut self) {
        self.holder.note(self.claims.claims().next());
    }
}

impl About for ObservedClaim {
    fn asks(&self) -> bool {
        !self.is_standby
    }

    /// Keeps the first time at which the claim was seen, and the first result for the time at which it was made. Each read
    /// computes that time from the claim's age, and a slightly different time would look like a change.
    fn renew(&mut self, newer: Self) {
        *self = Self { since: self.since, made_at: self.made_at, ..newer };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watched::Made;
    use crate::{ClusterId, Ticket, Token};

    fn put(key: &str, revision: i64) -> Event<ObservedClaim> {
        let (key, since) = (Key::from(key.as_bytes()), Instant::now());
        let claim = ObservedClaim {
            key: Key::clone(&key),
            revision,
            cluster: ClusterId(1),
            lease: 1,
            label: Some("a".into()),
            // as for each claim that is read
            made_at: Some(SystemTime::now()),
            since,
            note: None,
            is_standby: false,
        };
        Event { key, change: revision, put: Some((revision, claim)) }
    }

    fn delete(key: &str, revision: i64) -> Event<ObservedClaim> {
        Event { put: None, ..put(key, revision) }
    }

    /// A queue with a foreign holder at 5 and an own claim at 7, known as of 7.
    fn waiting() -> (NameQueue, Ticket) {
        let mut queue = NameQueue::new("a");
        let ticket = queue.used().expect(b"a/1-1");
        assert!(queue.load(vec![put("a/9-1", 5)], 6, 0));
        let made = Made { place: 7, change: 7, token: Token::new(ClusterId(1), 7) };
        queue.claims.made(b"a/1-1", made);
        queue.apply(vec![put("a/1-1", 7)]);
        (queue, ticket)
    }

    /// Goal: a key from a request that was given up is found, once; others' keys are left alone. The queue is in use until
    /// it has gone.
    #[tokio::test]
    async fn orphans_are_found() {
        let (mut queue, _ticket) = waiting();
        let others = ["a/2-1", "a/1", "a/01-3", "a/+1-3"];
        queue.apply(others.map(|key| put(key, 9)).into());
        queue.apply(vec![put("a/1-2", 10)]);
        let keys = others.into_iter().chain(["a/1-1", "a/1-2"]);
        let keys: Vec<_> = keys.map(|key| key.as_bytes().into()).collect();
        assert_eq!(queue.orphans(keys.clone(), [1].into_iter()), [Key::from(&b"a/1-2"[..])]);
        assert_eq!(queue.orphans(keys, [1].into_iter()), []);
        queue.forget(b"a/1-1");
        assert!(queue.is_used());
        queue.forget(b"a/1-2");
        assert!(!queue.is_used());
    }

    /// Goal: a holder is seen to hold since it is the first, and not since it came.
    #[tokio::test(start_paused = true)]
    async fn a_holder_holds_since_it_is_the_first() {
        let (mut queue, _ticket) = waiting();
        tokio::time::advance(Duration::from_millis(3)).await;
        queue.apply(vec![delete("a/9-1", 8)]);
        let since = Instant::now();
        tokio::time::advance(Duration::from_millis(4)).await;
        queue.apply(vec![put("a/9-2", 9)]);
        let claims = queue.snapshot().queue;
        assert_eq!((claims.len(), claims[0].revision, claims[0].since), (2, 7, since));
    }

    /// Goal: while only the holder is watched, the queue is read again in case its watcher has fallen silent, and a holder that
    /// is still there is no news.
    #[tokio::test(start_paused = true)]
    async fn a_watched_holder_is_read_again_and_no_news() {
        let mut queue = NameQueue::new("a");
        queue.watcher = Watcher::Created(1);
        let mut told = queue.watch_holder();
        assert!(queue.load(vec![put("a/9-1", 5)], 6, 0));
        told.mark_unchanged();
        assert!(queue.load(vec![put("a/9-1", 5)], 6, 0));
        assert!(!told.has_changed().expect("the queue is there"));
        tokio::time::advance(2 * REREAD_EVERY).await;
        assert!(queue.due_since().is_some());
        drop(told);
        assert!(queue.due_since().is_none());
    }
}
