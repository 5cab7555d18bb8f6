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

/// How often each queue is looked at. A queue without use is then unwatched; a queue with waiting claims is read again, in case
/// one of its events was lost.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// How many claims are read at a time: a request may have a megabyte.
const MOST_READS: usize = 1000;

/// How many requests may be under way; further ones wait. This few are each answered in time. A request that timed out is sent
/// again, and then the server has to carry out both.
const MOST_UNDER_WAY: usize = 64;

/// How many bytes of paths may have watches of their own. After a reconnect the client library repeats its watches to the server.
/// For more than 128 KiB it sends two requests under one number, and the second answer ends the session.
const MOST_WATCHED_BYTES: usize = 120_000;

/// How many times a claim is put while the node of its lock vanishes: the servers remove an empty one.
const MOST_TRIES: u32 = 3;

/// One session at the servers.
pub(super) struct Connected {
    pub(super) lease: Lease,
    state: StateWatcher,
    options: ZooKeeperOptions,
    /// A permit for each request.
    under_way: Semaphore,
    /// A permit for each byte of a path with a watch of its own.
    watchable: Arc<Semaphore>,
    /// The task that follows the root, while the root is watched.
    root_watch: tokio::sync::Mutex<Weak<AbortOnDropHandle<()>>>,
    open: Mutex<Open>,
}

/// The state of a session until it is given up.
#[derive(Default)]
struct Open {
    /// Declared before the client, so that a drop tells the holders first.
    queues: HashMap<Arc<str>, Queue>,
    /// The session ends when the last copy of its client is dropped.
    client: Option<Client>,
    /// The queues that the watch on the root shows, by their directories; the `Notify` asks for a queue to be read again.
    by_root: HashMap<String, (Arc<str>, Arc<Notify>)>,
}

impl Open {
    /// Asks to read all queues again that the watch on the root shows, since events may have been missed. This includes a queue
    /// whose list was requested while the root was not watched. Until a queue is read again, nothing is granted in it.
    fn root_missed_news(&mut self) {
        for (name, missed) in self.by_root.values() {
            if let Some(queue) = self.queues.get_mut(name) {
                queue.interrupted();
            }
            missed.notify_one();
        }
    }

    /// Whether the watch on the root still shows this queue, and notifies `missed`.
    fn is_by_root(&self, dir: &str, missed: &Arc<Notify>) -> bool {
        self.by_root.get(dir).is_some_and(|(_, notified)| Arc::ptr_eq(notified, missed))
    }
}

/// The source of a queue's events.
enum Watch {
    /// A watch of the queue's own, and permits for the bytes of its path.
    Own(PersistentWatcher, #[allow(dead_code, reason = "held")] OwnedSemaphorePermit),
    /// The watch on the root.
    Root(Arc<Notify>, #[allow(dead_code, reason = "held")] Arc<AbortOnDropHandle<()>>),
}

impl Watch {
    /// The next event. `None` if the queue must be read again.
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

    /// Proves that the session lives, by a write that changes nothing. A server that was cut off from a leader may answer a read
    /// or a ping although the leader has ended the session; a write is answered only after most servers have taken it.
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

    /// Gives up the session: from now on its client sends only the session's end.
    pub(super) fn give_up(&self) {
        drop(std::mem::take(&mut *self.open.lock()));
    }

    /// Waits until the servers have ended the session, or were out of reach for longer than they keep it.
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
        // before the request, because the watch may show the node before the answer arrives
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
            // the servers remove a container that is empty, so unused names cost nothing
            let mode = self.options.node(CreateMode::Container);
            self.ask(|| client.mkdir(&dir, &mode)).await.map_err(backend_error)?;
        }
        Err(backend_error(Error::NoNode))
    }

    /// Deletes the node of `held` and makes the node of `next`, or does neither; `None` if `held` is gone.
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
            // servers before 3.8.2 do not return it: ZOOKEEPER-4026
            return match self.look_up(client, &path).await {
                Ok(None) => Err(BackendError::transient("the claim is gone")),
                // `held` is gone in any case, and the node may exist
                found => found.map_err(BackendError::transient),
            };
        }
        self.made(&path, stat.czxid).map(Some)
    }

    /// The node of a claim whose answer was lost, if the node exists.
    async fn find(&self, client: &Client, claim: &Claim) -> Result<Option<Made>, BackendError> {
        let (nodes, prefix) = (self.list(client, &claim.name).await?, prefix(claim));
        let Some(node) = nodes.iter().find(|node| node.prefix() == prefix) else { return Ok(None) };
        self.look_up(client, &format!("{}/{}", self.dir(&claim.name), node.name)).await
    }

    /// The node at this path, if it exists and belongs to this session: a node of another session is about to vanish, see
    /// CURATOR-498.
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
        // a claim that must be withdrawn would make the tries of others fail
        if !self.list(&client, &claim.name).await?.is_empty() {
            return Ok(None);
        }
        let Some(ticket) = self.put(claim, None).await? else { return Ok(None) };
        // after a failure from here on, the claim may be in the queue
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
            // the watch has shown the node's deletion, or the node was never made
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
                // a node that could not be read is gone
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
                    // the server's clock may run ahead of ours
                    entry.age = Some((UNIX_EPOCH + made_at).elapsed().unwrap_or_default());
                }
                entries.push(entry);
            }
        }
        Ok(entries)
    }

    /// The nodes of a lock's queue in the order of their turns, as up to date as the leader.
    async fn list(&self, client: &Client, name: &str) -> Result<Vec<Node>, BackendError> {
        let dir = self.dir(name);
        let list = || {
            // both requests are sent now, and answered in this order
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
    /// A request that timed out stays under way. The servers carry out the requests of a session in order, so a later request
    /// finds what the earlier one did.
    async fn ask<T, E: From<Error>, F: Future<Output = Result<T, E>>>(
        &self,
        request: impl FnOnce() -> F,
    ) -> Result<T, E> {
        let limit = self.options.request_timeout;
        let place = timeout(limit, self.under_way.acquire()).await;
        let _place = place.map_err(|_| Error::Timeout)?;
        timeout(limit, request()).await.unwrap_or_else(|_| Err(Error::Timeout.into()))
    }

    /// Watches a queue until the returned handle is dropped.
    async fn watch(
        self: &Arc<Self>,
        name: &Arc<str>,
    ) -> Result<AbortOnDropHandle<()>, BackendError> {
        let dir = self.dir(name);
        // the client library also counts the path behind the servers' addresses
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

    /// Follows a queue by a watch on the root, which shows all locks of all clients.
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

    /// Passes the events below the root on to the queues.
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
            // the queues then watch the root anew; if that is refused, their waiters are told
            let mut root_watch = self.root_watch.lock().await;
            *root_watch = Weak::new();
            let mut open = self.open.lock();
            open.root_missed_news();
            open.by_root.clear();
            return;
        }
    }

    /// Reads a queue. It must be watched first, or events between could be missed.
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

    /// Follows a queue until it is unused, or can no longer be followed.
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

    /// Applies an event of a watch. Returns `true` if the queue must be read again.
    fn apply(&self, name: &str, event: &WatchedEvent) -> bool {
        // the watch also shows the lock's own node, and nodes that others have made deeper in the tree
        let child =
            event.path.strip_prefix(&self.dir(name)).and_then(|path| path.strip_prefix('/'));
        let node = child.and_then(Node::new);
        self.with(name, |queue| match (event.event_type, node) {
            (EventType::Session, _) => {
                queue.interrupted();
                // the client library does not watch again, and missed events are not repeated: ZOOKEEPER-4698
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

    /// Removes a queue that nobody watches and that has no claim of this process. The task that follows a watched queue removes
    /// that queue.
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
            return Err(BackendError::lease_gone());
        }
        self.open
            .lock()
            .client
            .clone()
            .ok_or_else(|| BackendError::transient("the session is being closed"))
    }
}

/// Whether the error is an answer of the leader, such as missing rights. A server gives some errors by itself, for example that
/// it is busy.
fn is_of_the_leader(error: &MultiWriteError) -> bool {
    matches!(error, MultiWriteError::OperationFailed { source: Error::NoAuth, .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClaimStatus;

    /// Goal: nothing is granted in a queue that was loaded while the root was not watched, or from a list requested then,
    /// before the queue is read again: another client's claim may have been added meanwhile.
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

    /// Goal: a lease is renewed only by an answer that a server cannot give without the leader.
    #[test]
    fn only_the_leader_renews() {
        let is_of_the_leader =
            |source| is_of_the_leader(&MultiWriteError::OperationFailed { index: 0, source });
        assert!(is_of_the_leader(Error::NoAuth));
        assert!(![Error::Throttled, Error::QuotaExceeded].into_iter().any(is_of_the_leader));
    }
}
