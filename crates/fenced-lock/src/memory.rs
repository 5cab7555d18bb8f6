//! A lock service in this process.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};

use super::asked::Waiters;
use super::{
    Backend, BackendError, Claim, ClaimStatus, ClusterId, HolderWatch, Lease, ObservedClaim,
    Promises, PutMode, QueueEntry, Released, Ticket, Token, TokenLife,
};

/// A lock service in this process, for tests of services that use the lock. It follows tokio's clock, so leases expire in paused
/// time, and it fails when a test asks it to. Let the service take a [`SessionKeeper`](crate::SessionKeeper), whose type does not
/// name the backend.
///
/// In a test: `#[tokio::test(start_paused = true)]`, with tokio's feature `test-util`.
///
/// Clones are the same service, and sessions in it exclude each other as processes do. It locks nothing outside of this process,
/// and ends with it. A lease ends with the runtime on which it was opened.
///
/// # Panics
/// Opening a session on it panics outside of a tokio runtime with timers.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use fenced_lock::{MemoryBackend, SessionKeeper, SessionOptions};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), fenced_lock::LockError> {
/// let service = MemoryBackend::new();
/// let options = SessionOptions::new(Duration::from_secs(10));
/// let locks = SessionKeeper::start(Arc::new(service.clone()), options);
/// let guard = locks.lock("stock-lock").await?;
///
/// service.set_silent(true); // renewals are not answered any more
/// guard.lost().await; // and the holder knows in time, by its own clock
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryBackend {
    state: Arc<Mutex<State>>,
    silent: Arc<watch::Sender<bool>>,
}

/// The only cluster.
const CLUSTER: ClusterId = ClusterId(0);

#[derive(Debug, Default)]
struct State {
    revision: i64,
    last_lease: i64,
    /// When each lease ends, and its TTL.
    leases: HashMap<i64, (Instant, Duration)>,
    queues: BTreeMap<Arc<str>, Queue>,
    holders: BTreeMap<Arc<str>, HolderWatch>,
    /// Tells each claim its place in the queue.
    waiters: Waiters<Token>,
}

/// The claims on one lock by their revisions, and how observers see each.
type Queue = BTreeMap<i64, (Claim, ObservedClaim)>;

impl MemoryBackend {
    /// A service without leases and claims.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops answering, or answers again. Requests wait meanwhile.
    pub fn set_silent(&self, silent: bool) {
        self.silent.send_replace(silent);
    }

    /// Ends a lease ([`Session::lease`](crate::Session::lease)) and its claims at once, as an operator or the end of its TTL
    /// would.
    pub fn revoke(&self, lease: i64) {
        self.state.lock().end_lease(lease);
    }

    /// Deletes a claim ([`Guard::key`](crate::Guard::key)), as an operator would.
    pub fn delete(&self, key: &str) {
        self.state.lock().remove_where(|claim| claim.key() == key);
    }

    async fn answering(&self) {
        let mut silent = self.silent.subscribe();
        // `self` keeps the sender
        drop(silent.wait_for(|silent| !silent).await);
    }
}

impl State {
    fn end_lease(&mut self, lease: i64) {
        self.leases.remove(&lease);
        self.remove_where(|claim| claim.lease == lease);
    }

    /// Removes the claims for which `goes` is true. Returns whether there were any.
    fn remove_where(&mut self, goes: impl Fn(&Claim) -> bool) -> bool {
        let mut removed = false;
        for queue in self.queues.values_mut() {
            // first remove all of these claims, then grant: otherwise one of these could be granted
            queue.retain(|_, (claim, _)| {
                let stays = !goes(claim);
                if !stays {
                    removed = true;
                    self.waiters.note(claim, ClaimStatus::Gone);
                }
                stays
            });
            grant_first(queue, &self.waiters);
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        self.note_holders();
        removed
    }

    fn note_holders(&mut self) {
        self.holders.retain(|name, holder| {
            holder.note(self.queues.get(name).and_then(first));
            holder.is_watched()
        });
    }

    fn put(&mut self, claim: &Claim) -> Result<Ticket, BackendError> {
        if !self.leases.contains_key(&claim.lease) {
            return Err(BackendError::lease_gone());
        }
        let queue = self.queues.entry(Arc::clone(&claim.name)).or_default();
        if !queue.values().any(|(known, _)| known == claim) {
            self.revision += 1;
            let observed = ObservedClaim::of(claim, Token::new(CLUSTER, self.revision));
            queue.insert(self.revision, (claim.clone(), observed));
        }
        let ticket = self.waiters.expect(claim);
        grant_first(queue, &self.waiters);
        self.note_holders();
        Ok(ticket)
    }
}

fn first(queue: &Queue) -> Option<&ObservedClaim> {
    queue.values().next().map(|(_, observed)| observed)
}

fn grant_first(queue: &Queue, waiters: &Waiters<Token>) {
    if let Some((revision, (first, _))) = queue.first_key_value() {
        waiters.note(first, ClaimStatus::Granted(Token::new(CLUSTER, *revision)));
        waiters.note_contended(first, queue.values().skip(1).any(|(_, it)| !it.is_standby));
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    type Token = Token;

    fn promises(&self) -> Promises {
        Promises { token: TokenLife::Volatile, ..Promises::MOST }
    }

    async fn open(&self, ttl: Duration) -> Result<Lease, BackendError> {
        self.answering().await;
        // first, since it panics without timers
        let first_end = sleep_until(Instant::now() + ttl);
        let id = {
            let mut state = self.state.lock();
            state.last_lease += 1;
            let id = state.last_lease;
            state.leases.insert(id, (Instant::now() + ttl, ttl));
            id
        };
        tokio::spawn(Expiry { state: Arc::downgrade(&self.state), lease: id }.wait(first_end));
        Ok(Lease { id, ttl, cluster: CLUSTER })
    }

    async fn renew(&self, lease: Lease) -> Result<Duration, BackendError> {
        self.answering().await;
        let mut state = self.state.lock();
        let (ends_at, ttl) =
            state.leases.get_mut(&lease.id).ok_or_else(BackendError::lease_gone)?;
        *ends_at = Instant::now() + *ttl;
        Ok(*ttl)
    }

    async fn close(&self, lease: Lease) -> Result<(), BackendError> {
        self.answering().await;
        self.state.lock().end_lease(lease.id);
        Ok(())
    }

    async fn put(&self, claim: &Claim, mode: &PutMode) -> Result<Option<Ticket>, BackendError> {
        self.answering().await;
        let mut state = self.state.lock();
        let is_possible = match mode {
            PutMode::AtEnd => true,
            PutMode::IfEmpty => !state.queues.contains_key(&claim.name),
            PutMode::After(held) => state.remove_where(|claim| claim == held),
        };
        if is_possible { state.put(claim).map(Some) } else { Ok(None) }
    }

    async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
        self.answering().await;
        let was_there = self.state.lock().remove_where(|other| other == claim);
        Ok(if was_there { Released::Done } else { Released::Gone })
    }

    async fn ask_for_turn(&self, claim: &Claim) -> Result<(), BackendError> {
        self.answering().await;
        let mut state = self.state.lock();
        let State { queues, waiters, .. } = &mut *state;
        if let Some(queue) = queues.get_mut(&claim.name) {
            if let Some((_, own)) = queue.values_mut().find(|(known, _)| known == claim) {
                own.is_standby = false;
            }
            grant_first(queue, waiters);
        }
        state.note_holders();
        Ok(())
    }

    fn watch_holder(&self, name: &str) -> Option<watch::Receiver<Option<ObservedClaim>>> {
        let mut state = self.state.lock();
        let State { queues, holders, .. } = &mut *state;
        let holder = holders.entry(name.into()).or_default();
        holder.note(queues.get(name).and_then(first));
        Some(holder.watch())
    }

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, BackendError> {
        self.answering().await;
        let state = self.state.lock();
        let claims = state.queues.get(name).into_iter().flat_map(Queue::values);
        let entry = |(claim, observed): &(Claim, ObservedClaim)| QueueEntry {
            token: Some(Token::new(CLUSTER, observed.revision)),
            label: Some(claim.label.to_string()),
            age: Some(observed.since.elapsed()),
            note: observed.note.as_deref().map(str::to_owned),
            is_standby: observed.is_standby,
            ..QueueEntry::new(claim.lease, claim.key())
        };
        Ok(claims.map(entry).collect())
    }
}

/// Ends a lease when it is dropped: when the lease is due, or with the runtime on which it was opened.
struct Expiry {
    state: Weak<Mutex<State>>,
    lease: i64,
}

impl Expiry {
    /// Waits until the lease has expired or was removed.
    async fn wait(self, first_end: Sleep) {
        first_end.await;
        let ends_at = || Some(self.state.upgrade()?.lock().leases.get(&self.lease)?.0);
        while let Some(ends_at) = ends_at().filter(|ends_at| Instant::now() < *ends_at) {
            sleep_until(ends_at).await;
        }
    }
}

impl Drop for Expiry {
    fn drop(&mut self) {
        if let Some(state) = self.state.upgrade() {
            state.lock().end_lease(self.lease);
        }
    }
}
