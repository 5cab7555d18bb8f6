//! One ZooKeeper session: its requests, and the queues that it watches.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{interval, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use zookeeper_client::{
    AddWatchMode, Client, CreateMode, Error, EventType, MultiReadResult, MultiWriteError,
    MultiWriteResult, PersistentWatcher, SessionState, StateWatcher, WatchedEvent,
};

use super::failure::backend_error;
use super::layout::{self, Node, claim_of, prefix};
use super::options::ZooKeeperOptions;
use super::queue::Queue;
use crate::backoff::Backoff;
use crate::{BackendError, BackendErrorKind, Claim, Lease, QueueEntry, Released, Ticket, Token};

/// How often a queue is looked at: one that is not used is not watched any more, one that is waited in is read
/// again, in case that news of it got lost.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// How many claims are read at a time: a request may have a megabyte.
const MOST_READS: usize = 1000;

/// How many requests may be under way; further ones wait. So few that each is answered in time: what times out is
/// sent again, and the server has both to do.
const MOST_UNDER_WAY: usize = 64;

/// How many bytes of paths are watched one by one. After a reconnect the client library repeats its watches to the server. For
/// more than 128 KiB it sends two requests under one number, and the second answer ends the session.
const MOST_WATCHED_BYTES: usize = 120_000;

/// How often a claim is tried in a lock's node that goes: an empty one is removed by the servers.
const MOST_TRIES: u32 = 3;

/// One session at the servers.
pub(super) struct Connected {
    pub(super) lease: Lease,
    state: StateWatcher,
    options: ZooKeeperOptions,
    /// A place for each request.
    under_way: Semaphore,
    /// The bytes of paths that can be watched one by one.
    watchable: Arc<Semaphore>,
    /// The watch on the root, while there is one.
    root_watch: tokio::sync::Mutex<Weak<AbortOnDropHandle<()>>>,
    open: Mutex<Open>,
}

/// What a session has until it is given up.
#[derive(Default)]
struct Open {
    /// Before the client: a drop tells the holders first.
    queues: HashMap<Arc<str>, Queue>,
    /// The session ends when the last copy of its client is dropped.
    client: Option<Client>,
    /// The queues that are seen by the watch on the root, by their directories, each with what has it read again.
    by_root: HashMap<String, (Arc<str>, Arc<Notify>)>,
}

impl Open {
    /// Has all queues that are seen by the watch on the root read again, since news may have been missed: also a queue whose
    /// list was asked for while there was no watch. Until then nothing is granted in them.
    fn root_missed_news(&mut self) {
        for (name, missed) in self.by_root.values() {
            if let Some(queue) = self.queues.get_mut(name) {
                queue.interrupted();
            }
            missed.notify_one();
        }
    }

    /// Whether a queue is still seen by the watch on the root, and its news lead here.
    fn is_by_root(&self, dir: &str, missed: &Arc<Notify>) -> bool {
        self.by_root.get(dir).is_some_and(|(_, notified)| Arc::ptr_eq(notified, missed))
    }
}

/// A source of news of one queue.
enum Watch {
    /// A watch of its own, and the bytes of its path.
    Own(PersistentWatcher, #[allow(dead_code, reason = "held")] OwnedSemaphorePermit),
    /// The one on the root.
    Root(Arc<Notify>, #[allow(dead_code, reason = "held")] Arc<AbortOnDropHandle<()>>),
}

impl Watch {
    /// The next news. `None` if the queue must be read again.
    async fn changed(&mut self) -> Option<WatchedEvent> {
        match self {
            Self::Own(watcher, _) => Some(watcher.changed().await),
            Self::Root(missed, _) => {
                missed.notified().await;
                None
            }
        }
    }
}

/// A claim's node, and its token.
type Made = (Node, Token);

impl Connected {
    pub(super) fn new(client: Client, lease: Lease, options: &ZooKeeperOptions) -> Self {
        Self {
            lease,
            state: client.state_watcher(),
            options: options.clone(),
            under_way: Semaphore::new(MOST_UNDER_WAY),
            watchable: Arc::new(Semaphore::new(MOST_WATCHED_BYTES)),
            root_watch: tokio::sync::Mutex::default(),
            open: Mutex::new(Open { client: Some(client), ..Open::default() }),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.client().is_ok() && self.state.peek_state() == SessionState::SyncConnected
    }

    /// Proves that the session lives.
    ///
    /// By a write, since a read or a ping may be answered by a server that was cut off from a leader which
    /// ends the session: a write is answered only after most servers have taken it. This one changes nothing.
    pub(super) async fn renew(&self) -> Result<Duration, BackendError> {
        let client = self.client()?;
        let mut writer = client.new_multi_writer();
        writer.add_check_version("/", -1).map_err(backend_error)?;
        let answer = timeout(self.options.request_timeout, writer.commit()).await;
        let answer = answer.unwrap_or(Err(Error::Timeout.into()));
        if let Err(error) = answer
            && !is_of_the_leader(&error)
        {
            return Err(backend_error(error));
        }
        Ok(self.lease.ttl)
    }

    /// Gives up the session: its client sends nothing from now on but its end.
    pub(super) fn give_up(&self) {
        drop(std::mem::take(&mut *self.open.lock()));
    }

    /// Waits until the session has ended, at the servers or for being out of reach for longer than they keep it.
    pub(super) async fn ended(&self) {
        let mut state = self.state.clone();
        while !state.state().is_terminated() {
            state.changed().await;
        }
    }

    /// Puts `claim` into the queue, and takes `held` out in the same transaction; `None` if `held` is gone.
    pub(super) async fn put(
        self: &Arc<Self>,
        claim: &Claim,
        held: Option<&Claim>,
    ) -> Result<Option<Ticket>, BackendError> {
        let client = self.client()?;
        // before the request: its node may be seen before the answer
        let ((ticket, was_sent), watched) = {
            let mut open = self.open.lock();
            let queue = open.queues.entry(Arc::clone(&claim.name)).or_default();
            (queue.expect(claim), Arc::clone(&queue.watched))
        };
        let put = async {
            watched.get_or_try_init(|| self.watch(&claim.name)).await?;
            if was_sent && let Some(made) = self.find(&client, claim).await? {
                return Ok(Some(made));
            }
            match held {
                None => self.create(&client, claim).await.map(Some),
                Some(held) => self.exchange(&client, held, claim).await,
            }
        };
        let put = put.await;
        match &put {
            Ok(Some((node, token))) => {
                self.with(&claim.name, |queue| queue.made(claim, node, *token));
                held.inspect(|held| self.forget(held));
            }
            Err(error) if was_sent || error.kind == BackendErrorKind::Transient => {}
            _ => self.forget(claim),
        }
        Ok(put?.map(|_| ticket))
    }

    /// Makes the node of a claim.
    async fn create(&self, client: &Client, claim: &Claim) -> Result<Made, BackendError> {
        let dir = self.dir(&claim.name);
        let (path, label) = (format!("{dir}/{}", prefix(claim)), claim.label.as_bytes());
        let mode = self.options.node(CreateMode::EphemeralSequential);
        for _ in 0..MOST_TRIES {
            match self.ask(|| client.create(&path, label, &mode)).await {
                Err(Error::NoNode) => {}
                created => {
                    let (stat, sequence) = created.map_err(backend_error)?;
                    return self.made(&format!("{path}{sequence}"), stat.czxid);
                }
            }
            // the servers remove an empty one: names that are not used any more cost nothing
            let mode = self.options.node(CreateMode::Container);
            self.ask(|| client.mkdir(&dir, &mode)).await.map_err(backend_error)?;
        }
        Err(backend_error(Error::NoNode))
    }

    /// Deletes the node of `held` and makes that of `next`, or neither; `None` if `held` is gone.
    async fn exchange(
        &self,
        client: &Client,
        held: &Claim,
        next: &Claim,
    ) -> Result<Option<Made>, BackendError> {
        let node = self.with(&held.name, |queue| queue.mark_gone(held));
        let Some(node) = node else { return Ok(None) };
        let dir = self.dir(&next.name);
        let path = format!("{dir}/{}", prefix(next));
        let mode = self.options.node(CreateMode::EphemeralSequential);
        let mut writer = client.new_multi_writer();
        writer.add_delete(&format!("{dir}/{node}"), None).map_err(backend_error)?;
        writer.add_create(&path, next.label.as_bytes(), &mode).map_err(backend_error)?;
        let results = match self.ask(|| writer.commit()).await {
            Err(MultiWriteError::OperationFailed { index: 0, source: Error::NoNode }) => {
                return Ok(None);
            }
            results => results.map_err(backend_error)?,
        };
        let Some(MultiWriteResult::Create { path, stat }) = results.into_iter().nth(1) else {
            return Err(BackendError::transient("a transaction without its results"));
        };
        if stat.is_invalid() {
            // as before 3.8.2: ZOOKEEPER-4026
            return match self.look_up(client, &path).await {
                Ok(None) => Err(BackendError::transient("the claim is gone")),
                // `held` has gone in any case, and the node may be there
                found => found.map_err(BackendError::transient),
            };
        }
        self.made(&path, stat.czxid).map(Some)
    }

    /// The node of a claim whose answer got lost, if it is there.
    async fn find(&self, client: &Client, claim: &Claim) -> Result<Option<Made>, BackendError> {
        let (nodes, prefix) = (self.list(client, &claim.name).await?, prefix(claim));
        let Some(node) = nodes.iter().find(|node| node.prefix() == prefix) else { return Ok(None) };
        self.look_up(client, &format!("{}/{}", self.dir(&claim.name), node.name)).await
    }

    /// The node at this path, if it is there and ours: one of another session is about to go, see CURATOR-498.
    async fn look_up(&self, client: &Client, path: &str) -> Result<Option<Made>, BackendError> {
        let stat = self.ask(|| client.check_stat(path)).await.map_err(backend_error)?;
        let ours = stat.filter(|stat| stat.ephemeral_owner == self.lease.id);
        ours.map(|stat| self.made(path, stat.czxid)).transpose()
    }

    fn made(&self, path: &str, czxid: i64) -> Result<Made, BackendError> {
        let node = path.rsplit('/').next().and_then(Node::new);
        let node = node.ok_or_else(|| BackendError::transient("a claim without its number"))?;
        Ok((node, self.token(czxid)))
    }

    pub(super) async fn put_if_free(
        self: &Arc<Self>,
        claim: &Claim,
    ) -> Result<Option<Ticket>, BackendError> {
        let client = self.client()?;
        // a claim that is withdrawn again would stand in the way of other tries
        if !self.list(&client, &claim.name).await?.is_empty() {
            return Ok(None);
        }
        let Some(ticket) = self.put(claim, None).await? else { return Ok(None) };
        // after any failure from here on, the claim may be in the queue
        let nodes = self.list(&client, &claim.name).await.map_err(BackendError::transient)?;
        if nodes.first().is_some_and(|first| first.prefix() == prefix(claim)) {
            self.with(&claim.name, |queue| queue.claims.granted(prefix(claim).as_bytes()));
            return Ok(Some(ticket));
        }
        self.release(claim).await.map_err(BackendError::transient)?;
        Ok(None)
    }

    pub(super) async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
        if !self.with(&claim.name, |queue| queue.claims.is_own(prefix(claim).as_bytes())) {
            // it was seen to go, or never made
            return Ok(Released::Gone);
        }
        let client = self.client()?;
        let node = match self.with(&claim.name, |queue| queue.mark_gone(claim)) {
            None => self.find(&client, claim).await?.map(|(node, _)| node.name),
            known => known,
        };
        let mut released = Released::Gone;
        if let Some(node) = node {
            let path = format!("{}/{node}", self.dir(&claim.name));
            match self.ask(|| client.delete(&path, None)).await {
                Ok(()) => released = Released::Done,
                Err(Error::NoNode) => {}
                Err(error) => return Err(backend_error(error)),
            }
        }
        self.forget(claim);
        Ok(released)
    }

    /// The claims on a lock, the holder's first.
    pub(super) async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, BackendError> {
        let client = self.client()?;
        let dir = self.dir(name);
        let nodes = self.list(&client, name).await?;
        let mut entries = Vec::with_capacity(nodes.len());
        for nodes in nodes.chunks(MOST_READS) {
            let mut reader = client.new_multi_reader();
            for node in nodes {
                reader.add_get_data(&format!("{dir}/{}", node.name)).map_err(backend_error)?;
            }
            let read = self.ask(|| reader.commit()).await.map_err(backend_error)?;
            for (node, read) in nodes.iter().zip(read) {
                // what could not be read is gone
                let MultiReadResult::Data { data, stat } = read else { continue };
                let mut entry =
                    QueueEntry::new(stat.ephemeral_owner, format!("{name}/{}", node.name));
                entry.token = Some(self.token(stat.czxid));
                // Curator's GUIDs are random
                if let Some((lease, number)) = claim_of(node)
                    && lease == entry.lease
                {
                    entry.key = format!("{name}/{lease:x}-{number}");
                    entry.label = Some(String::from_utf8_lossy(&data).into_owned());
                    let made_at = Duration::from_millis(stat.ctime.try_into().unwrap_or_default());
                    // a clock that runs ahead of ours is no reason for an error
                    entry.age = Some((UNIX_EPOCH + made_at).elapsed().unwrap_or_default());
                }
                entries.push(entry);
            }
        }
        Ok(entries)
    }

    /// The nodes of a lock's queue in the order of their turns, as new as the leader has them.
    async fn list(&self, client: &Client, name: &str) -> Result<Vec<Node>, BackendError> {
        let dir = self.dir(name);
        let list = || {
            // both are sent now, and answered in their order
            let (sync, list) = (client.sync(&dir), client.list_children(&dir));
            async {
                sync.await?;
                list.await
            }
        };
        let names = match self.ask(list).await {
            Err(Error::NoNode) => Vec::new(),
            names => names.map_err(backend_error)?,
        };
        let mut nodes: Vec<_> = names.iter().filter_map(|name| Node::new(name)).collect();
        layout::sort(&mut nodes);
        Ok(nodes)
    }

    /// Sends a request when there is room for it.
    ///
    /// It stays under way when it was waited for too long. Requests of one session are carried out in their order, so
    /// a later one finds what it did.
    async fn ask<T, E: From<Error>, F: Future<Output = Result<T, E>>>(
        &self,
        request: impl FnOnce() -> F,
    ) -> Result<T, E> {
        let limit = self.options.request_timeout;
        let place = timeout(limit, self.under_way.acquire()).await;
        let _place = place.map_err(|_| Error::Timeout)?;
        timeout(limit, request()).await.unwrap_or_else(|_| Err(Error::Timeout.into()))
    }

    /// Has a queue watched from now on, until what is returned is dropped.
    async fn watch(
        self: &Arc<Self>,
        name: &Arc<str>,
    ) -> Result<AbortOnDropHandle<()>, BackendError> {
        let dir = self.dir(name);
        // the client counts what stands behind the servers' addresses as well
        let base = self.options.servers.split_once('/').map_or(0, |(_, base)| base.len() + 1);
        let bytes = u32::try_from(base + dir.len()).unwrap_or(u32::MAX);
        let watch = match Arc::clone(&self.watchable).try_acquire_many_owned(bytes) {
            Ok(bytes) => Watch::Own(self.watch_path(&dir).await?, bytes),
            Err(_) => self.watch_by_root(name).await?,
        };
        if let Err(error) = self.read(name).await {
            if let Watch::Root(missed, _) = &watch {
                let mut open = self.open.lock();
                if open.is_by_root(&dir, missed) {
                    open.by_root.remove(&dir);
                }
            }
            return Err(error);
        }
        let following = Arc::clone(self).follow(Arc::clone(name), watch);
        Ok(AbortOnDropHandle::new(tokio::spawn(following)))
    }

    async fn watch_path(&self, path: &str) -> Result<PersistentWatcher, BackendError> {
        let client = self.client()?;
        let watch = || client.watch(path, AddWatchMode::PersistentRecursive);
        self.ask(watch).await.map_err(backend_error)
    }

    /// Has the news of a queue from a watch on the root, which shows those of all other clients' locks as well.
    async fn watch_by_root(self: &Arc<Self>, name: &Arc<str>) -> Result<Watch, BackendError> {
        let mut latest = self.root_watch.lock().await;
        let watching = if let Some(watching) = latest.upgrade() {
            watching
        } else {
            let watcher = self.watch_path(&self.options.root).await?;
            let following = Arc::clone(self).follow_root(watcher);
            let watching = Arc::new(AbortOnDropHandle::new(tokio::spawn(following)));
            *latest = Arc::downgrade(&watching);
            watching
        };
        let missed = Arc::<Notify>::default();
        self.open.lock().by_root.insert(self.dir(name), (Arc::clone(name), Arc::clone(&missed)));
        Ok(Watch::Root(missed, watching))
    }

    /// Passes on what happens below the root.
    async fn follow_root(self: Arc<Self>, mut watcher: PersistentWatcher) {
        let root = format!("{}/", self.options.root);
        let mut backoff = Backoff::default();
        loop {
            let event = watcher.changed().await;
            if event.event_type != EventType::Session {
                let dir = event.path.strip_prefix(&root).and_then(|path| path.split('/').next());
                let dir = format!("{root}{}", dir.unwrap_or_default());
                let seen = self.open.lock().by_root.get(&dir).cloned();
                if let Some((name, missed)) = seen
                    && self.apply(&name, &event)
                {
                    missed.notify_one();
                }
                continue;
            }
            let seen: Vec<_> = self.open.lock().by_root.values().cloned().collect();
            for (name, _) in &seen {
                self.apply(name, &event);
            }
            if event.session_state == SessionState::Disconnected {
                continue;
            }
            let is_over = loop {
                match self.watch_path(&self.options.root).await {
                    Ok(again) => {
                        (watcher, backoff) = (again, Backoff::default());
                        break false;
                    }
                    Err(error) if error.kind.may_pass() => sleep(backoff.next()).await,
                    Err(_) => break true,
                }
            };
            if !is_over {
                self.open.lock().root_missed_news();
                continue;
            }
            // the queues watch the root anew, and whoever waits in one is told if that is refused
            let mut root_watch = self.root_watch.lock().await;
            *root_watch = Weak::new();
            let mut open = self.open.lock();
            open.root_missed_news();
            open.by_root.clear();
            return;
        }
    }

    /// Reads a queue that is watched: in this order, so that no news is missed.
    async fn read(&self, name: &str) -> Result<(), BackendError> {
        let client = self.client()?;
        let asked = self.with(name, |queue| queue.asked());
        let nodes = self.list(&client, name).await?;
        self.with(name, |queue| queue.load(&nodes, asked));
        Ok(())
    }

    /// Watches a queue again, and reads it.
    async fn read_again(
        self: &Arc<Self>,
        name: &Arc<str>,
        watch: &mut Watch,
    ) -> Result<(), BackendError> {
        let dir = self.dir(name);
        match watch {
            Watch::Own(watcher, _) => *watcher = self.watch_path(&dir).await?,
            Watch::Root(missed, _) => {
                let is_seen = self.open.lock().is_by_root(&dir, missed);
                if !is_seen {
                    *watch = self.watch_by_root(name).await?;
                }
            }
        }
        self.read(name).await
    }

    /// Follows what happens in a queue until it is not used any more, or nothing can be known of it.
    async fn follow(self: Arc<Self>, name: Arc<str>, mut watch: Watch) {
        let mut look = interval(LOOK_EVERY);
        look.reset();
        let mut backoff = Backoff::default();
        loop {
            let mut is_missed = tokio::select! {
                event = watch.changed() => event.is_none_or(|event| self.apply(&name, &event)),
                _ = look.tick() => {
                    let mut open = self.open.lock();
                    if !open.queues.get_mut(&name).is_some_and(Queue::take_use) {
                        open.queues.remove(&name);
                        open.by_root.remove(&self.dir(&name));
                        return;
                    }
                    open.queues.get(&name).is_some_and(|queue| queue.claims.is_waited_for())
                }
            };
            while is_missed {
                match self.read_again(&name, &mut watch).await {
                    Ok(()) => (is_missed, backoff) = (false, Backoff::default()),
                    Err(error) if error.kind.may_pass() => {
                        tracing::debug!(%name, ?error, "could not read a queue: trying again");
                        sleep(backoff.next()).await;
                    }
                    Err(error) => {
                        tracing::debug!(%name, ?error, "cannot look at a queue any more");
                        self.open.lock().by_root.remove(&self.dir(&name));
                        self.with(&name, Queue::end);
                        return self.remove_unused(&name);
                    }
                }
            }
        }
    }

    /// Takes over what a watch tells; `true` if the queue must be read again.
    fn apply(&self, name: &str, event: &WatchedEvent) -> bool {
        // it tells of the lock's own node as well, and of all that others have made deeper in the tree
        let child =
            event.path.strip_prefix(&self.dir(name)).and_then(|path| path.strip_prefix('/'));
        let node = child.and_then(Node::new);
        self.with(name, |queue| match (event.event_type, node) {
            (EventType::Session, _) => {
                queue.interrupted();
                // the client does not watch again, and news are not repeated: ZOOKEEPER-4698
                event.session_state != SessionState::Disconnected
            }
            (EventType::NodeCreated, Some(node)) => {
                queue.created(&node);
                false
            }
            (EventType::NodeDeleted, Some(node)) => queue.deleted(&node),
            _ => false,
        })
    }

    fn forget(&self, claim: &Claim) {
        self.with(&claim.name, |queue| queue.claims.forget(prefix(claim).as_bytes()));
        self.remove_unused(&claim.name);
    }

    /// Removes a queue that is not watched and has no claim of ours. That of a watched one is the watch's.
    fn remove_unused(&self, name: &str) {
        let mut open = self.open.lock();
        if open.queues.get(name).is_some_and(Queue::is_unused) {
            open.queues.remove(name);
        }
    }

    fn dir(&self, name: &str) -> String {
        layout::dir(&self.options.root, name)
    }

    fn token(&self, czxid: i64) -> Token {
        Token::new(self.lease.cluster, czxid)
    }

    /// Works with the queue of `name` if there is one.
    fn with<T: Default>(&self, name: &str, work: impl FnOnce(&mut Queue) -> T) -> T {
        self.open.lock().queues.get_mut(name).map(work).unwrap_or_default()
    }

    fn client(&self) -> Result<Client, BackendError> {
        if self.state.peek_state().is_terminated() {
            return Err(BackendError::lease_gone("the session has ended"));
        }
        self.open
            .lock()
            .client
            .clone()
            .ok_or_else(|| BackendError::transient("the session is being closed"))
    }
}

/// Whether an error is an answer of the leader's, as a refusal is. What a server says by itself, as that it has no room, is
/// none.
fn is_of_the_leader(error: &MultiWriteError) -> bool {
    matches!(error, MultiWriteError::OperationFailed { source: Error::NoAuth, .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClaimStatus;

    /// Goal: a queue that was loaded while there was no watch on the root, or by a list that was asked for then, grants nothing
    /// before it was read again: another client's claim may have come meanwhile.
    #[test]
    fn what_the_watch_on_the_root_missed_grants_nothing() {
        let (mut open, missed) = (Open::default(), Arc::<Notify>::default());
        let claim = Claim::new("a", 1, 1);
        let node = |prefix: &str, number| {
            Node::new(&format!("{prefix}{number:010}")).expect("it has a number")
        };
        let list = [node("x-", 0), node(&prefix(&claim), 1)];
        open.by_root.insert("/locks/a".into(), (Arc::clone(&claim.name), missed));
        let queue = open.queues.entry(Arc::clone(&claim.name)).or_default();
        queue.load(&[], queue.asked());
        let asked = queue.asked();
        open.root_missed_news();
        let queue = open.queues.get_mut("a").expect("it was put there");
        queue.load(&[], asked);
        let (ticket, _) = queue.expect(&claim);
        queue.made(&claim, &list[1], Token::new(crate::ClusterId(1), 7));
        queue.created(&list[1]);
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Waiting);
        queue.load(&list, queue.asked());
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Waiting);
        assert!(!queue.deleted(&list[0]));
        assert!(matches!(*ticket.status.borrow(), ClaimStatus::Granted(_)));
    }

    /// Goal: a lease counts as renewed only by an answer that no server gives without the leader.
    #[test]
    fn only_the_leader_renews() {
        let is_of_the_leader =
            |source| is_of_the_leader(&MultiWriteError::OperationFailed { index: 0, source });
        assert!(is_of_the_leader(Error::NoAuth));
        assert!(![Error::Throttled, Error::QuotaExceeded].into_iter().any(is_of_the_leader));
    }
}
