//! The queue of one lock, kept in memory from what the watch says. No I/O here.
//!
//! `settle` decides that a claim is granted or gone.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::keys;
use super::snapshot::{ObservedClaim, ObservedTenure, QueueSnapshot};
use crate::chaos::Safeguard;
use crate::{ClaimStatus, Token};

/// How often a queue in use is read again in case its watcher has fallen silent, and how much later for each
/// claim in it.
const REREAD_EVERY: Duration = Duration::from_secs(1);
const REREAD_LATER: Duration = Duration::from_millis(1);

/// How many events may wait for a list. It takes a slow list and a fast queue to have more.
const MAX_EARLY: usize = 16_384;

/// How many tenures that have ended are kept: a reader that looks a few times a second misses none.
const MAX_TENURES: usize = 256;

/// A key in etcd. Keys of other clients need not be text.
pub(super) type Key = Arc<[u8]>;

/// A claim's status, and whether others wait behind it.
pub(super) type Expected = (watch::Receiver<ClaimStatus>, watch::Receiver<bool>);

/// The watcher of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watcher {
    /// None yet.
    None,
    /// One that etcd has been asked for.
    Asked(i64),
    /// One that etcd has made. From then on it misses nothing.
    Created(i64),
    /// None: etcd refused to make one on the stream of this number.
    Refused(i64),
}

/// A change of one key, or a key in a list.
#[derive(Clone, Debug)]
pub(super) struct KeyEvent {
    pub(super) key: Key,
    pub(super) mod_revision: i64,
    /// The revision at which the key was created; `None` if the event is its deletion.
    pub(super) created: Option<i64>,
    /// The lease that the key hangs on.
    pub(super) lease: i64,
    /// Who made the key, if this library did.
    pub(super) label: Option<Arc<str>>,
}

/// One of this process's claims.
#[derive(Debug)]
struct Own {
    /// With its `create_revision`, once known.
    token: Option<Token>,
    status: watch::Sender<ClaimStatus>,
    /// Whether others wait behind it, while it is the first.
    contended: watch::Sender<bool>,
}

/// All claims on one name, by their `create_revision`.
///
/// What makes it sound to decide from memory: creations only ever get larger revisions. So if the
/// queue is complete as of a revision at or past that of a claim, no other can come before that claim
/// any more, and it stays first once it is first.
#[derive(Debug)]
pub(super) struct NameQueue {
    prefix: String,
    watcher: Watcher,
    /// The key is there for foreign claims that were made in one transaction, at one revision.
    members: BTreeMap<(i64, Key), ObservedClaim>,
    revisions: HashMap<Key, i64>,
    /// `members` is complete as of this revision; 0: nothing is known.
    known_revision: i64,
    /// Events that came before the list that they belong on top of; `None` once there is a list.
    early: Option<Vec<KeyEvent>>,
    /// Early events up to this revision were dropped, so an older list is of no use.
    dropped: i64,
    own: HashMap<Key, Own>,
    /// Members that this process made and does not want.
    orphans: HashSet<Key>,
    /// The last tenures that have ended.
    tenures: VecDeque<ObservedTenure>,
    last_used: Instant,
    last_read: Instant,
}

impl NameQueue {
    pub(super) fn new(name: &str) -> Self {
        Self {
            prefix: keys::prefix(name),
            watcher: Watcher::None,
            members: BTreeMap::new(),
            revisions: HashMap::new(),
            known_revision: 0,
            early: Some(Vec::new()),
            dropped: 0,
            own: HashMap::new(),
            orphans: HashSet::new(),
            tenures: VecDeque::new(),
            last_used: Instant::now(),
            last_read: Instant::now(),
        }
    }

    pub(super) fn watcher(&self) -> Watcher {
        self.watcher
    }

    pub(super) fn set_watcher(&mut self, watcher: Watcher) {
        self.watcher = watcher;
    }

    /// Makes a claim known before its request is sent, so that no event about it is missed.
    pub(super) fn expect(&mut self, key: &str) -> Expected {
        self.last_used = Instant::now();
        let own = self.own.entry(key.as_bytes().into()).or_insert_with(|| Own {
            token: None,
            status: watch::Sender::new(ClaimStatus::Waiting),
            contended: watch::Sender::new(true),
        });
        (own.status.subscribe(), own.contended.subscribe())
    }

    /// Notes that the claim was created, and whether it is known to be granted.
    pub(super) fn enqueued(&mut self, key: &str, token: Token, is_granted: bool) {
        if let Some(own) = self.own.get_mut(key.as_bytes()) {
            own.token = Some(token);
        }
        if is_granted {
            self.granted(key);
        }
        self.settle(key.as_bytes());
    }

    /// Notes that the claim is the first.
    pub(super) fn granted(&self, key: &str) {
        if let Some(Own { token: Some(token), status, .. }) = self.own.get(key.as_bytes()) {
            ClaimStatus::Granted(*token).advance(status);
        }
    }

    /// The revision at which one of this process's claims was created, if known.
    pub(super) fn revision_of(&self, key: &str) -> Option<i64> {
        self.own.get(key.as_bytes()).and_then(Own::revision)
    }

    /// Notes that the claim is not in the queue any more.
    pub(super) fn forget(&mut self, key: &[u8]) {
        self.last_used = Instant::now();
        if let Some(own) = self.own.remove(key) {
            ClaimStatus::Gone.advance(&own.status);
            shrink(&mut self.own);
        }
        self.change(|queue| queue.remove(key));
    }

    /// Whether the watch will show every change, so that a request need not ask who is first.
    pub(super) fn is_current(&self) -> bool {
        self.early.is_none()
    }

    /// Forgets the claims on this lease, which have ended with it or will.
    pub(super) fn remove_lease(&mut self, lease: i64) {
        for key in self.own_of(lease) {
            self.forget(&key);
        }
        let begins = self.begin_of(lease);
        self.orphans.retain(|key| !key.starts_with(&begins));
    }

    /// This process's claims on this lease.
    pub(super) fn own_of(&self, lease: i64) -> Vec<Key> {
        let begins = self.begin_of(lease);
        self.own.keys().filter(|key| key.starts_with(&begins)).cloned().collect()
    }

    /// This process's claims on the lease `id` that are not seen to hang on `current`, which took its place.
    pub(super) fn on_other_leases(&self, id: i64, current: i64) -> Vec<Key> {
        let hangs_on = |key: &Key| {
            let revision = *self.revisions.get(key)?;
            self.members.get(&(revision, Arc::clone(key))).map(|member| member.lease)
        };
        let mut keys = self.own_of(id);
        keys.retain(|key| hangs_on(key) != Some(current));
        keys
    }

    /// What the keys of claims on this lease begin with, if this library made them.
    fn begin_of(&self, lease: i64) -> Vec<u8> {
        format!("{}{lease:x}-", self.prefix).into_bytes()
    }

    /// The latest revision that this process knows to exist. No list that is asked for from now on
    /// can be older, unless the store was put back to an earlier state.
    pub(super) fn latest_revision(&self) -> i64 {
        let own = self.own.values().filter_map(Own::revision).max();
        own.unwrap_or(0).max(self.known_revision)
    }

    /// Applies what the watch said, one answer at a time: all events of one revision come together.
    pub(super) fn apply(&mut self, events: Vec<KeyEvent>) {
        if let Some(early) = &mut self.early {
            early.extend(events);
            if early.len() > MAX_EARLY {
                let dropped = std::mem::take(early);
                self.dropped = dropped.iter().map(|e| e.mod_revision).fold(self.dropped, i64::max);
            }
            return;
        }
        let known = self.known_revision;
        let mut touched = Vec::new();
        for event in events {
            if event.mod_revision <= known || !keys::is_claim(&event.key, &self.prefix) {
                continue;
            }
            self.known_revision = self.known_revision.max(event.mod_revision);
            self.change(|queue| match event.created {
                Some(created) => queue.insert(&event, created),
                None => queue.remove(&event.key),
            });
            touched.push(event.key);
        }
        for key in touched {
            self.settle(&key);
        }
        self.settle_first();
    }

    /// Takes a list of all keys under the prefix, complete as of `revision`, that was asked for when
    /// [`latest_revision`](Self::latest_revision) was `latest`. `false` if another one is needed.
    #[must_use]
    pub(super) fn load(&mut self, keys: &[KeyEvent], revision: i64, latest: i64) -> bool {
        if self.early.is_some() && revision < self.dropped {
            return false;
        }
        if revision < latest {
            // the store was put back to an earlier state: what it granted since counts no more
            tracing::error!(prefix = self.prefix, revision, latest, "the revisions went back");
            for own in self.own.values().filter(|own| own.token.is_some()) {
                ClaimStatus::Gone.advance(&own.status);
            }
        } else if self.early.is_none() && revision < self.known_revision {
            // what the watch said since is newer, and complete as well
            return true;
        }
        let claims = keys.iter().filter(|claim| keys::is_claim(&claim.key, &self.prefix));
        let listed: HashMap<_, _> =
            claims.filter_map(|claim| Some((&claim.key, (claim, claim.created?)))).collect();
        self.change(|queue| {
            let gone = queue.revisions.keys().filter(|key| !listed.contains_key(*key)).cloned();
            for key in gone.collect::<Vec<_>>() {
                queue.remove(&key);
            }
            for (claim, created) in listed.into_values() {
                queue.insert(claim, created);
            }
        });
        self.known_revision = revision;
        let early = self.early.take().unwrap_or_default();
        self.apply(early);
        for key in self.own.keys() {
            self.settle(key);
        }
        self.settle_first();
        true
    }

    /// Notes that etcd denied a look at this queue, which was asked for when
    /// [`latest_revision`](Self::latest_revision) was `latest`. Claims that wait would wait for ever,
    /// unless there is a watcher from better times.
    pub(super) fn denied(&mut self, latest: i64) {
        let is_left_alone =
            |own: &&Own| own.revision().is_some_and(|r| r <= latest) && own.is_waiting();
        for own in self.own.values().filter(is_left_alone).filter(|_| self.early.is_some()) {
            ClaimStatus::Gone.advance(&own.status);
        }
    }

    /// Notes that the watcher has gone: from now on events are missing, until the next list.
    pub(super) fn unwatched(&mut self, watcher: Watcher) {
        self.watcher = watcher;
        if !Safeguard::Relist.is_on() {
            return;
        }
        self.early = Some(Vec::new());
        self.dropped = 0;
        for own in self.own.values() {
            set(&own.contended, true);
        }
    }

    /// Those of `keys` that are in the queue and are written as claims on one of these leases, but are none
    /// of this process's claims. The queue is in use until they have gone, so that one whose deletion fails is
    /// found again.
    pub(super) fn orphans(
        &mut self,
        mut keys: Vec<Key>,
        leases: impl Iterator<Item = i64>,
    ) -> Vec<Key> {
        let begins: Vec<_> = leases.map(|lease| self.begin_of(lease)).collect();
        keys.retain(|key| {
            begins.iter().any(|begin| key.starts_with(begin))
                && !self.own.contains_key(key)
                && self.revisions.contains_key(key)
        });
        self.orphans.extend(keys.iter().cloned());
        keys
    }

    /// How many of this process's claims are known.
    pub(super) fn count_own(&self) -> usize {
        self.own.len()
    }

    /// Whether any of this process's claims are in it, be they wanted or not.
    pub(super) fn is_used(&self) -> bool {
        !self.own.is_empty() || !self.orphans.is_empty()
    }

    /// Whether any of this process's claims wait.
    pub(super) fn is_waited_for(&self) -> bool {
        self.own.values().any(Own::is_waiting)
    }

    /// Since when it should be read again, if it is time: its watcher may have fallen silent, or there is none.
    pub(super) fn due_since(&self) -> Option<Instant> {
        let claims = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        let due = self.last_read + REREAD_EVERY + REREAD_LATER.saturating_mul(claims);
        let is_wanted = self.is_used() || !self.is_current();
        (is_wanted && self.is_readable() && due <= Instant::now()).then_some(due)
    }

    /// Whether a list is of use now.
    pub(super) fn is_readable(&self) -> bool {
        matches!(self.watcher, Watcher::Created(_) | Watcher::Refused(_))
    }

    /// Notes that it is being read.
    pub(super) fn reading(&mut self) {
        self.last_read = Instant::now();
    }

    /// From when on it need not be watched any more, if it is not used until then.
    pub(super) fn idle_at(&self, linger: Duration) -> Instant {
        let is_kept = self.is_used() || matches!(self.watcher, Watcher::Asked(_));
        if is_kept { Instant::now() + linger } else { self.last_used + linger }
    }

    /// What the watch has shown, for a caller that only looks. The queue is watched for a while from now.
    pub(super) fn snapshot(&mut self) -> QueueSnapshot {
        self.last_used = Instant::now();
        QueueSnapshot {
            is_current: self.is_current(),
            queue: self.members.values().cloned().collect(),
            tenures: self.tenures.iter().cloned().collect(),
        }
    }

    /// Changes the members, and notes the tenure that ends with that and the one that begins.
    fn change(&mut self, change: impl FnOnce(&mut Self)) {
        let mut members = self.members.values();
        let (holder, waiter) = (members.next().cloned(), members.next().map(|waiter| waiter.since));
        change(self);
        let now = Instant::now();
        let first = self.members.values_mut().next();
        if first.as_ref().map(|first| first.revision) == holder.as_ref().map(|h| h.revision) {
            return;
        }
        if let Some(first) = first {
            first.since = now;
        }
        let Some(holder) = holder else { return };
        if self.tenures.len() == MAX_TENURES {
            self.tenures.pop_front();
        }
        self.tenures.push_back(ObservedTenure {
            revision: holder.revision,
            label: holder.label,
            began_at: holder.since,
            ended_at: now,
            contended_since: waiter.map(|since| since.max(holder.since)),
        });
    }

    fn insert(&mut self, KeyEvent { key, lease, label, .. }: &KeyEvent, created: i64) {
        let (lease, label) = (*lease, label.clone());
        let mut claim = ObservedClaim { revision: created, lease, label, since: Instant::now() };
        if let Some(earlier) = self.revisions.insert(Arc::clone(key), created) {
            let known = self.members.remove(&(earlier, Arc::clone(key)));
            // one that is known, or was only put on another lease, waits as long as before
            if let Some(known) = known.filter(|_| earlier == created) {
                claim.since = known.since;
            }
        }
        self.members.insert((created, Arc::clone(key)), claim);
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some((key, created)) = self.revisions.remove_entry(key) {
            self.orphans.remove(&key);
            self.members.remove(&(created, key));
            shrink(&mut self.revisions);
        }
    }

    /// Tells one of this process's claims if it is gone or granted.
    fn settle(&self, key: &[u8]) {
        let Some(Own { token: Some(token), status, .. }) = self.own.get(key) else { return };
        // while events may be missing, nothing is concluded: the gap may be a whole new cluster, whose
        // revisions begin anew
        if self.early.is_some() || self.known_revision < token.revision() {
            return;
        }
        match self.members.first_key_value() {
            _ if self.revisions.get(key) != Some(&token.revision()) => {
                ClaimStatus::Gone.advance(status);
            }
            Some(((_, first), _)) if **first == *key => {
                ClaimStatus::Granted(*token).advance(status);
            }
            _ => {}
        }
    }

    /// The first claim may now be one of ours.
    fn settle_first(&self) {
        if let Some(((_, key), _)) = self.members.first_key_value() {
            self.settle(key);
            if let Some(own) = self.own.get(key).filter(|_| self.early.is_none()) {
                set(&own.contended, self.members.len() > 1);
            }
        }
    }
}

impl Own {
    fn revision(&self) -> Option<i64> {
        self.token.map(Token::revision)
    }

    fn is_waiting(&self) -> bool {
        *self.status.borrow() == ClaimStatus::Waiting
    }
}

/// Gives memory back that a map does not need any more.
pub(super) fn shrink<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    if map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}

fn set(flag: &watch::Sender<bool>, to: bool) {
    flag.send_if_modified(|flag| std::mem::replace(flag, to) != to);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterId;

    const LINGER: Duration = Duration::from_secs(30);

    fn put(key: &str, revision: i64) -> KeyEvent {
        let key = key.as_bytes().into();
        let label = Some("a".into());
        KeyEvent { key, mod_revision: revision, created: Some(revision), lease: 1, label }
    }

    fn delete(key: &str, revision: i64) -> KeyEvent {
        KeyEvent { created: None, lease: 0, label: None, ..put(key, revision) }
    }

    fn load(queue: &mut NameQueue, keys: &[(&str, i64)], revision: i64, latest: i64) -> bool {
        let keys: Vec<_> = keys.iter().map(|(key, at)| put(key, *at)).collect();
        queue.load(&keys, revision, latest)
    }

    const fn token(revision: i64) -> Token {
        Token::new(ClusterId(1), revision)
    }

    /// To the claim of most tests.
    const GRANTED: ClaimStatus = ClaimStatus::Granted(token(7));

    fn is_contended(queue: &NameQueue) -> bool {
        *queue.own[&b"a/1-1"[..]].contended.borrow()
    }

    /// A queue with a foreign holder at 5 and an own claim at 7, synced at 7.
    fn waiting() -> (NameQueue, watch::Receiver<ClaimStatus>) {
        let mut queue = NameQueue::new("a");
        let (status, _) = queue.expect("a/1-1");
        assert!(load(&mut queue, &[("a/9-1", 5)], 6, 0));
        queue.enqueued("a/1-1", token(7), false);
        queue.apply(vec![put("a/1-1", 7)]);
        (queue, status)
    }

    #[tokio::test]
    async fn granted_when_the_holder_goes() {
        let (mut queue, status) = waiting();
        assert_eq!(*status.borrow(), ClaimStatus::Waiting);
        queue.apply(vec![delete("a/9-1", 8)]);
        assert_eq!(*status.borrow(), GRANTED);
    }

    /// Goal: a waiter whose own key went first never believes that it was granted (etcd#11456).
    #[tokio::test]
    async fn gone_before_granted() {
        let (mut queue, status) = waiting();
        queue.apply(vec![delete("a/1-1", 8), delete("a/9-1", 8)]);
        assert_eq!(*status.borrow(), ClaimStatus::Gone);
    }

    /// Goal: what the watch says before the list arrives is applied on top of it, and only that part
    /// which the list does not have.
    #[tokio::test]
    async fn events_before_the_list_are_kept() {
        let mut queue = NameQueue::new("a");
        let (status, _) = queue.expect("a/1-1");
        queue.enqueued("a/1-1", token(7), false);
        queue.apply(vec![put("a/1-1", 7)]);
        queue.apply(vec![delete("a/9-1", 8)]);
        assert_eq!(*status.borrow(), ClaimStatus::Waiting, "the list is not there yet");
        assert!(load(&mut queue, &[("a/9-1", 5), ("a/1-1", 7)], 7, 7));
        assert_eq!(*status.borrow(), GRANTED);
    }

    /// Goal: a list that was read before the latest event does not undo it.
    #[tokio::test]
    async fn an_old_list_is_ignored() {
        let (mut queue, status) = waiting();
        queue.apply(vec![delete("a/9-1", 8)]);
        assert!(load(&mut queue, &[("a/9-1", 5)], 6, 6));
        assert_eq!(*status.borrow(), GRANTED);
        queue.apply(vec![put("a/9-2", 9)]);
        assert!(is_contended(&queue), "the claim is still the first");
    }

    /// Goal: keys of a lock `a/b` neither block nor count in `a`.
    #[tokio::test]
    async fn keys_of_longer_names_are_ignored() {
        let mut queue = NameQueue::new("a");
        let (status, _) = queue.expect("a/1-1");
        queue.enqueued("a/1-1", token(7), false);
        assert!(load(&mut queue, &[("a/b/9-1", 5), ("a/1-1", 7), ("a/b/9-2", 8)], 8, 7));
        assert_eq!(*status.borrow(), GRANTED);
        assert!(!is_contended(&queue));
    }

    /// Goal: contention is assumed where it is not known: without a list, and after a break.
    #[tokio::test]
    async fn unknown_means_contended() {
        let (mut queue, _status) = waiting();
        assert!(is_contended(&queue));
        queue.apply(vec![delete("a/9-1", 8)]);
        assert!(!is_contended(&queue));
        queue.apply(vec![put("a/9-2", 9)]);
        assert!(is_contended(&queue));
        queue.apply(vec![delete("a/9-2", 10)]);
        assert!(!is_contended(&queue));
        queue.unwatched(Watcher::None);
        assert!(is_contended(&queue));
    }

    /// Goal: after a break nothing is concluded from events until a list has filled the gap.
    #[tokio::test]
    async fn a_break_hides_events_until_the_next_list() {
        let (mut queue, status) = waiting();
        queue.unwatched(Watcher::None);
        queue.apply(vec![delete("a/9-1", 12)]);
        assert_eq!(*status.borrow(), ClaimStatus::Waiting);
        assert!(load(&mut queue, &[("a/1-1", 7)], 12, 7));
        assert_eq!(*status.borrow(), GRANTED);
    }

    /// Goal: a key from a request that was given up is found; others' keys are left alone.
    #[tokio::test]
    async fn orphans_are_found() {
        let (mut queue, _status) = waiting();
        let others = ["a/2-1", "a/1", "a/01-3", "a/+1-3"];
        queue.apply(others.map(|key| put(key, 9)).into());
        queue.apply(vec![put("a/1-2", 10)]);
        let keys = others.into_iter().chain(["a/1-1", "a/1-2"]);
        let keys = keys.map(|key| key.as_bytes().into()).collect();
        assert_eq!(queue.orphans(keys, [1].into_iter()), [Key::from(&b"a/1-2"[..])]);
    }

    /// Goal: a store that was put back to an earlier state, in which our lease still lives, takes back
    /// what it granted since.
    #[tokio::test]
    async fn revisions_that_go_back_take_grants_back() {
        let (mut queue, status) = waiting();
        queue.apply(vec![delete("a/9-1", 8)]);
        assert_eq!(*status.borrow(), GRANTED);
        let latest = queue.latest_revision();
        queue.unwatched(Watcher::None);
        assert!(load(&mut queue, &[("a/2-1", 3)], 4, latest));
        assert_eq!(*status.borrow(), ClaimStatus::Gone);
    }

    /// Goal: a claim that goes over to another lease is seen on that one, and waits as long as before.
    #[tokio::test(start_paused = true)]
    async fn a_claim_is_seen_on_the_lease_that_it_hangs_on() {
        let (mut queue, _status) = waiting();
        let before = queue.snapshot().queue[1].clone();
        tokio::time::advance(LINGER).await;
        queue.apply(vec![KeyEvent { created: Some(7), lease: 2, ..put("a/1-1", 9) }]);
        assert_eq!(queue.snapshot().queue[1], ObservedClaim { lease: 2, ..before });
        assert!(queue.load(&[KeyEvent { lease: 3, ..put("a/1-1", 7) }], 10, 7));
        assert_eq!(queue.snapshot().queue[0].lease, 3);
    }

    /// Goal: nothing is kept of a lease that has ended.
    #[tokio::test]
    async fn claims_go_with_their_lease() {
        let (mut queue, status) = waiting();
        queue.remove_lease(1);
        assert_eq!(*status.borrow(), ClaimStatus::Gone);
        assert!(!queue.is_used());
    }

    /// Goal: while events may be missing, nothing is concluded from what was known before: after the
    /// gap there may be another cluster, whose revisions begin anew.
    #[tokio::test]
    async fn a_break_hides_what_was_known() {
        let (mut queue, _status) = waiting();
        queue.unwatched(Watcher::None);
        let (later, _) = queue.expect("a/1-2");
        queue.enqueued("a/1-2", token(6), false);
        assert_eq!(*later.borrow(), ClaimStatus::Waiting);
    }

    /// Goal: an event that the list has already taken into account is not applied again.
    #[tokio::test]
    async fn an_old_event_is_ignored() {
        let (mut queue, _status) = waiting();
        assert!(load(&mut queue, &[("a/1-1", 7)], 10, 7));
        queue.apply(vec![put("a/9-2", 9)]);
        assert!(!is_contended(&queue));
    }

    /// Goal: claims that another client made in one transaction, at one revision, are two.
    #[tokio::test]
    async fn claims_of_one_revision_are_told_apart() {
        let (mut queue, status) = waiting();
        assert!(load(&mut queue, &[("a/9-1", 5), ("a/9-2", 5), ("a/1-1", 7)], 7, 7));
        queue.apply(vec![delete("a/9-1", 8)]);
        assert_eq!(*status.borrow(), ClaimStatus::Waiting);
        queue.apply(vec![delete("a/9-2", 9)]);
        assert_eq!(*status.borrow(), GRANTED);
    }

    /// Goal: a key that is no text is a claim like any other.
    #[tokio::test]
    async fn a_claim_need_not_be_text() {
        let mut queue = NameQueue::new("a");
        let (status, _) = queue.expect("a/1-1");
        let foreign: Key = Arc::from(&b"a/\xff\xfe"[..]);
        assert!(queue.load(&[KeyEvent { key: Arc::clone(&foreign), ..put("", 5) }], 6, 0));
        queue.enqueued("a/1-1", token(7), false);
        queue.apply(vec![put("a/1-1", 7)]);
        assert_eq!(*status.borrow(), ClaimStatus::Waiting);
        queue.apply(vec![KeyEvent { key: foreign, ..delete("", 8) }]);
        assert_eq!(*status.borrow(), GRANTED);
    }

    /// Goal: events that wait for a list do not pile up; a list that lacks those that were dropped is
    /// asked for again.
    #[tokio::test]
    async fn early_events_are_bounded() {
        let mut queue = NameQueue::new("a");
        for revision in 1..=100_000 {
            queue.apply(vec![put("a/9-1", revision)]);
            assert!(queue.early.as_ref().is_some_and(|early| early.len() <= MAX_EARLY));
        }
        assert!(!load(&mut queue, &[], 50_000, 0));
        assert!(!queue.is_current());
        assert!(load(&mut queue, &[], 99_999, 0));
        assert_eq!(queue.members.len(), 1, "the last event is on top of the list");
    }

    /// Goal: a waiter of a queue that may not be read any more does not wait for ever. One that an earlier watcher
    /// still serves waits on, and so does one that queued later.
    #[tokio::test]
    async fn a_denied_waiter_is_told() {
        let (mut queue, status) = waiting();
        queue.denied(7);
        assert_eq!(*status.borrow(), ClaimStatus::Waiting);
        queue.unwatched(Watcher::None);
        queue.denied(6);
        assert_eq!(*status.borrow(), ClaimStatus::Waiting);
        queue.denied(7);
        assert_eq!(*status.borrow(), ClaimStatus::Gone);
    }

    /// Goal: what is gone is not granted by an answer that comes later.
    #[tokio::test]
    async fn gone_stays_gone() {
        let (mut queue, status) = waiting();
        queue.apply(vec![delete("a/1-1", 8)]);
        assert_eq!(*status.borrow(), ClaimStatus::Gone);
        queue.enqueued("a/1-1", token(7), true);
        assert_eq!(*status.borrow(), ClaimStatus::Gone);
    }

    /// Goal: a queue is watched for a while after its last claim, and not for ever.
    #[tokio::test(start_paused = true)]
    async fn a_queue_becomes_idle() {
        let is_idle = |queue: &NameQueue| queue.idle_at(LINGER) <= Instant::now();
        let (mut queue, _status) = waiting();
        tokio::time::advance(2 * LINGER).await;
        assert!(!is_idle(&queue), "it has a claim");
        queue.forget(b"a/1-1");
        assert!(!is_idle(&queue), "a key may appear late");
        tokio::time::advance(LINGER).await;
        assert!(is_idle(&queue));
    }

    /// Goal: each tenure is reported once, from when its claim was the first to when it was gone.
    #[tokio::test(start_paused = true)]
    async fn tenures_follow_each_other() {
        let (mut queue, _status) = waiting();
        let waits_since = Instant::now();
        tokio::time::advance(Duration::from_millis(3)).await;
        queue.apply(vec![delete("a/9-1", 8)]);
        tokio::time::advance(Duration::from_millis(4)).await;
        queue.apply(vec![delete("a/1-1", 9)]);
        let QueueSnapshot { queue: claims, tenures, .. } = queue.snapshot();
        let told = |t: &ObservedTenure| (t.revision, (t.ended_at - t.began_at).as_millis());
        assert_eq!(tenures.iter().map(told).collect::<Vec<_>>(), [(5, 3), (7, 4)]);
        assert_eq!(tenures[0].label.as_deref(), Some("a"));
        assert_eq!(tenures[0].contended_since, Some(waits_since));
        assert_eq!(tenures[1].contended_since, None);
        assert!(claims.is_empty());
    }

    #[tokio::test]
    async fn only_the_last_tenures_are_kept() {
        let mut queue = NameQueue::new("a");
        assert!(load(&mut queue, &[], 1, 0));
        for number in 1..=i64::try_from(MAX_TENURES).expect("small") + 1 {
            let key = format!("a/9-{number}");
            queue.apply(vec![put(&key, 2 * number)]);
            queue.apply(vec![delete(&key, 2 * number + 1)]);
        }
        let tenures = queue.snapshot().tenures;
        assert_eq!((tenures.len(), tenures[0].revision), (MAX_TENURES, 4));
    }
}
