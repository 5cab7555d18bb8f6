//! A lock's queue at a service that is watched, kept in memory by what the watch shows. No I/O here.
//!
//! A service puts and deletes claims, one after the other. Each change has a number, larger than all before it. Each claim has a
//! place, larger than those of all earlier claims. The watch shows every change after it was made, and a list shows all claims as
//! of one change. From these, `settle` decides that a claim of this process is granted or gone.
//!
//! Why a decision from memory is right: a queue that is complete as of the change that made a claim has every claim before it, so
//! once that claim is the first, it stays the first.
//!
//! Why no waiter is forgotten: this queue knows a claim of this process before its request is sent (`expect`). The answer to that
//! request (`made`), each change that could make the claim the first or take it out (`apply`), and each list (`load`) end in
//! `settle`. So a claim waits too long only if a change was missed. The owner of the watch then loads a list, which contains the
//! missed change:
//!
//! - After a watch broke (`interrupted`), the owner opens a new one and then loads a list, and tries both until they succeed.
//! - A change can get lost though no watch broke. So the owner sometimes reads each queue in which a claim waits: on etcd after a
//!   second, on `ZooKeeper` after 15.
//! - If this process loses the right to read the queue (`denied`), its waiting claims count as gone, and their callers get an
//!   error.
//!
//! Also, the loss of a session ends the wait of all its claims, and the local clock ends a session: see `acquire`.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use crate::chaos::Safeguard;
use crate::claim::Reporter;
use crate::{ClaimStatus, Ticket, Token};

/// How many events may wait for a list. Only a slow list of a busy queue reaches this.
const MAX_EARLY: usize = 16_384;

/// The name of a claim at the service. Names of other clients' claims may be no text.
pub(crate) type Key = Arc<[u8]>;

/// A backend's own data about a claim, besides its place.
pub(crate) trait About {
    /// Whether the claim asks for a turn. The holder is contended only by claims that ask.
    fn asks(&self) -> bool;

    /// Adds the data of a later event about the claim.
    fn renew(&mut self, newer: Self);
}

/// No data: each claim asks for a turn.
impl About for () {
    fn asks(&self) -> bool {
        true
    }

    fn renew(&mut self, (): Self) {}
}

/// A change of one claim, or a claim in a list. `M` is the backend's data [about](About) it.
#[derive(Clone, Debug)]
pub(crate) struct Event<M> {
    pub(crate) key: Key,
    /// The number of the change.
    pub(crate) change: i64,
    /// The claim's place; `None` if the event is the claim's deletion. A claim that is put again keeps its place.
    pub(crate) put: Option<(i64, M)>,
}

/// How a claim of this process was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) place: i64,
    /// The number of the change that made it.
    pub(crate) change: i64,
    pub(crate) token: Token,
}

#[derive(Debug)]
struct OwnClaim {
    made: Option<Made>,
    reporter: Reporter,
}

/// All claims on one name, in the order of their places.
#[derive(Debug)]
pub(crate) struct WatchedQueue<M> {
    /// By place and key, since another client may make several claims in one change, at one place.
    claims: BTreeMap<(i64, Key), M>,
    places: HashMap<Key, i64>,
    /// How many of the claims ask for a turn.
    asking: usize,
    /// `claims` is complete as of this change; 0 if nothing is known.
    known: i64,
    /// Events that wait for the list to which they will be applied; `None` when there is a list.
    early: Option<Vec<Event<M>>>,
    /// Early events up to this change were dropped, so the list must be at least as new.
    dropped: i64,
    own: HashMap<Key, OwnClaim>,
}

impl<M> Default for WatchedQueue<M> {
    fn default() -> Self {
        Self {
            claims: BTreeMap::new(),
            places: HashMap::new(),
            asking: 0,
            known: 0,
            early: Some(Vec::new()),
            dropped: 0,
            own: HashMap::new(),
        }
    }
}

impl<M: About> WatchedQueue<M> {
    /// Makes a claim known before its request is sent, so that no event about it is missed.
    pub(crate) fn expect(&mut self, key: &[u8]) -> Ticket {
        let unmade = || OwnClaim { made: None, reporter: Reporter::new() };
        self.own.entry(key.into()).or_insert_with(unmade).reporter.ticket()
    }

    pub(crate) fn made(&mut self, key: &[u8], made: Made) {
        if let Some(own) = self.own.get_mut(key) {
            own.made = Some(made);
        }
        self.settle(key);
    }

    /// Notes that the claim is the first, as the service says.
    pub(crate) fn granted(&self, key: &[u8]) {
        if let Some(OwnClaim { made: Some(made), reporter }) = self.own.get(key) {
            reporter.report(ClaimStatus::Granted(made.token));
        }
    }

    /// How a claim of this process was made, if that is known.
    pub(crate) fn how_made(&self, key: &[u8]) -> Option<Made> {
        self.own.get(key)?.made
    }

    /// Notes that this process takes the claim out or gives it up, so that no caller waits for it or holds by it.
    pub(crate) fn mark_gone(&self, key: &[u8]) {
        if let Some(own) = self.own.get(key) {
            own.reporter.report(ClaimStatus::Gone);
        }
    }

    /// Notes that a claim of this process is no longer in the queue.
    pub(crate) fn forget(&mut self, key: &[u8]) {
        self.mark_gone(key);
        if self.own.remove(key).is_some() {
            shrink(&mut self.own);
        }
        self.remove(key);
    }

    pub(crate) fn own_keys(&self) -> impl Iterator<Item = &Key> {
        self.own.keys()
    }

    pub(crate) fn is_own(&self, key: &[u8]) -> bool {
        self.own.contains_key(key)
    }

    /// Whether this is a claim of this process that was not reported as gone.
    pub(crate) fn is_counted_on(&self, key: &[u8]) -> bool {
        self.own.get(key).is_some_and(|own| own.reporter.status() != ClaimStatus::Gone)
    }

    /// Whether a claim of this process waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.own.values().any(OwnClaim::is_waiting)
    }

    /// Whether the watch shows every change. If so, a request need not ask who is first.
    pub(crate) fn is_current(&self) -> bool {
        self.early.is_none()
    }

    /// The backend's data about each claim in the queue, in order.
    pub(crate) fn claims(&self) -> impl ExactSizeIterator<Item = &M> {
        self.claims.values()
    }

    /// The keys in the queue, in no order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.places.keys()
    }

    /// The backend's data about this claim, if it is in the queue.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&M> {
        let (key, place) = self.places.get_key_value(key)?;
        self.claims.get(&(*place, Arc::clone(key)))
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.places.contains_key(key)
    }

    /// The latest change that this process knows. A list that is requested after this call is not older, unless the service was
    /// put back to an earlier state.
    pub(crate) fn latest_change(&self) -> i64 {
        let made = self.own.values().filter_map(|own| own.made);
        made.map(|made| made.change).fold(self.known, i64::max)
    }

    /// Applies events of the watch. All events of one change come together.
    pub(crate) fn apply(&mut self, events: Vec<Event<M>>) {
        if let Some(early) = &mut self.early {
            early.extend(events);
            if early.len() > MAX_EARLY {
                let dropped = std::mem::take(early);
                self.dropped =
                    dropped.iter().map(|event| event.change).fold(self.dropped, i64::max);
            }
            return;
        }
        let known = self.known;
        let mut touched = Vec::new();
        for event in events {
            // a list or an earlier answer has shown this change, or the event came twice
            if event.change <= known || event.change < self.known {
                continue;
            }
            self.known = event.change;
            match event.put {
                Some((place, more)) => self.insert(&event.key, place, more),
                None => self.remove(&event.key),
            }
            touched.push(event.key);
        }
        for key in touched {
            self.settle(&key);
        }
        self.settle_first();
    }

    /// Takes a list of all claims as of the change `as_of`. `latest` was the [latest change](Self::latest_change) when the list
    /// was requested. `false` if another list is needed.
    #[must_use]
    pub(crate) fn load(&mut self, list: Vec<Event<M>>, as_of: i64, latest: i64) -> bool {
        if self.early.is_some() && as_of < self.dropped {
            return false;
        }
        if as_of < latest {
            // the service was put back to an earlier state, so its later grants no longer count
            tracing::error!(as_of, latest, "the changes of a lock service went back");
            for own in self.own.values().filter(|own| own.made.is_some()) {
                own.reporter.report(ClaimStatus::Gone);
            }
        } else if self.early.is_none() && as_of < self.known {
            // the watch is complete as well, and newer
            return true;
        }
        let mut before = std::mem::take(&mut self.claims);
        self.places.clear();
        self.asking = 0;
        for Event { key, put, .. } in list {
            let Some((place, more)) = put else { continue };
            let known = before.remove(&(place, Arc::clone(&key)));
            self.insert(&key, place, renewed(known, more));
        }
        shrink(&mut self.places);
        self.known = as_of;
        let early = self.early.take().unwrap_or_default();
        self.apply(early);
        for key in self.own.keys() {
            self.settle(key);
        }
        true
    }

    /// Notes that the service does not permit this process to read the queue. `latest` was the [latest
    /// change](Self::latest_change) at the request. Waiting claims then count as gone: without a watch they would wait for ever.
    pub(crate) fn denied(&mut self, latest: i64) {
        let is_old = |own: &&OwnClaim| own.made.is_some_and(|made| made.change <= latest);
        for own in self.own.values().filter(is_old).filter(|_| self.early.is_some()) {
            if own.is_waiting() {
                own.reporter.report(ClaimStatus::Gone);
            }
        }
    }

    /// Notes that the watch broke: events are missing until the next list.
    pub(crate) fn interrupted(&mut self) {
        if !Safeguard::Relist.is_on() {
            return;
        }
        self.early = Some(Vec::new());
        self.dropped = 0;
        for own in self.own.values() {
            own.reporter.report_contended(true);
        }
    }

    fn insert(&mut self, key: &Key, place: i64, more: M) {
        // a claim that is known at this place was put again
        let known = self.take(key).filter(|(earlier, _)| *earlier == place);
        let more = renewed(known.map(|(_, known)| known), more);
        self.asking += usize::from(more.asks());
        self.places.insert(Arc::clone(key), place);
        self.claims.insert((place, Arc::clone(key)), more);
    }

    fn remove(&mut self, key: &[u8]) {
        if self.take(key).is_some() {
            shrink(&mut self.places);
        }
    }

    fn take(&mut self, key: &[u8]) -> Option<(i64, M)> {
        let (key, place) = self.places.remove_entry(key)?;
        let more = self.claims.remove(&(place, key))?;
        self.asking -= usize::from(more.asks());
        Some((place, more))
    }

    /// Reports to a claim of this process that it is gone or granted.
    fn settle(&self, key: &[u8]) {
        let Some(OwnClaim { made: Some(made), reporter }) = self.own.get(key) else { return };
        // while events may be missing, this decides nothing: the service may be a new one, whose changes begin anew
        if self.early.is_some() {
            return;
        }
        if self.places.get(key) == Some(&made.place) {
            // the watch has shown this claim, and therefore all claims before it
            if self.claims.keys().next().is_some_and(|(_, first)| **first == *key) {
                reporter.report(ClaimStatus::Granted(made.token));
            }
        } else if self.known >= made.change {
            reporter.report(ClaimStatus::Gone);
        }
    }

    /// Settles the first claim, which may be one of this process.
    fn settle_first(&self) {
        if let Some(((_, key), first)) = self.claims.first_key_value() {
            self.settle(key);
            if let Some(own) = self.own.get(key).filter(|_| self.early.is_none()) {
                own.reporter.report_contended(self.asking > usize::from(first.asks()));
            }
        }
    }
}

impl OwnClaim {
    fn is_waiting(&self) -> bool {
        self.reporter.status() == ClaimStatus::Waiting
    }
}

/// The data about a claim after an event with the data `told`.
fn renewed<M: About>(known: Option<M>, told: M) -> M {
    match known {
        Some(mut known) => {
            known.renew(told);
            known
        }
        None => told,
    }
}

/// Gives back memory that a map no longer needs.
pub(crate) fn shrink<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    if map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}

#[cfg(test)]
mod tests;
