//! One ZooKeeper session: its requests, and the queues that it watches.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Semaphore;
use tokio::time::{interval, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use zookeeper_client::{
    Acls, AddWatchMode, Client, CreateMode, Error, EventType, MultiReadResult, MultiWriteError,
    MultiWriteResult, PersistentWatcher, SessionState, StateWatcher,
};

use super::failure::{backend_error, lease_gone, transient};
use super::layout::{self, Node};
use super::queue::{Queue, Use};
use crate::backoff::Backoff;
use crate::waiters::Waiters;
use crate::{
    BackendError, BackendErrorKind, Claim, ClaimStatus, Lease, QueueEntry, Released, Ticket, Token,
};

/// How often a queue is looked at: one that is not used is not watched any more, one that is waited in is read
/// again, in case that news of it got lost.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// How many claims are read at a time: a request may have a megabyte.
const MOST_READS: usize = 1000;

/// How many requests may be under way; further ones wait. So few that each is answered in time: what times out is
/// sent again, and the server has both to do.
const MOST_UNDER_WAY: usize = 64;

/// How often a claim is tried in a lock's node that goes: an empty one is removed by the servers.
const MOST_TRIES: u32 = 3;

/// One session at the servers.
pub(super) struct Connected {
    pub(super) lease: Lease,
    /// The session ends when the last handle of its client is dropped.
    client: Mutex<Option<Arc<Client>>>,
    state: StateWatcher,
    root: String,
    acls: Acls<'static>,
    request_timeout: Duration,
    /// A place for each request.
    under_way: Semaphore,
    waiters: Waiters<Token>,
    queues: Mutex<HashMap<Arc<str>, Queue>>,
}

impl Connected {
    pub(super) fn new(
        client: Client,
        lease: Lease,
        root: &str,
        acls: Acls<'static>,
        request_timeout: Duration,
    ) -> Self {
        Self {
            lease,
            state: client.state_watcher(),
            client: Mutex::new(Some(Arc::new(client))),
            root: root.to_owned(),
            acls,
            request_timeout,
            under_way: Semaphore::new(MOST_UNDER_WAY),
            waiters: Waiters::new(),
            queues: Mutex::default(),
        }
    }

    pub(super) fn count_claims(&self) -> usize {
        self.queues().values().map(Queue::count_own).sum()
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
        match timeout(self.request_timeout, writer.commit()).await {
            Err(elapsed) => Err(BackendError::new(BackendErrorKind::Transient, elapsed)),
            Ok(Err(
                MultiWriteError::RequestFailed { source }
                | MultiWriteError::OperationFailed { source: source @ Error::SessionExpired, .. },
            )) => Err(backend_error(source)),
            // a refusal is an answer
            Ok(_) => Ok(self.lease.ttl),
        }
    }

    /// Gives up the session: its client sends nothing from now on but its end.
    pub(super) fn give_up(&self) {
        self.end();
        self.queues().clear();
        drop(self.client.lock().unwrap_or_else(PoisonError::into_inner).take());
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
        let prefix = layout::prefix(claim);
        // before the request: its node may be seen before the answer
        let ticket = self.waiters.expect(claim);
        let (was_sent, watched) = {
            let mut queues = self.queues();
            let queue = queues.entry(Arc::clone(&claim.name)).or_default();
            (queue.expect(&prefix, claim), Arc::clone(&queue.watched))
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
        self.with(&claim.name, |queue| match &put {
            Ok(Some((node, token))) => queue.made(&prefix, node.clone(), *token, &self.waiters),
            Err(error) if was_sent || error.kind == BackendErrorKind::Transient => {}
            _ => queue.forget(&prefix, &self.waiters),
        });
        if let (Some(held), Ok(Some(_))) = (held, &put) {
            self.forget(held);
        }
        Ok(put?.map(|_| ticket))
    }

    /// Makes the node of a claim.
    async fn create(
        &self,
        client: &Client,
        claim: &Claim,
    ) -> Result<(String, Token), BackendError> {
        let prefix = layout::prefix(claim);
        let dir = layout::dir(&self.root, &claim.name);
        let (path, label) = (format!("{dir}/{prefix}"), claim.label.as_bytes());
        let mode = CreateMode::EphemeralSequential.with_acls(self.acls);
        let mut tries = 0;
        loop {
            tries += 1;
            match self.ask(|| client.create(&path, label, &mode)).await {
                Ok((stat, sequence)) => {
                    return Ok((format!("{prefix}{sequence}"), self.token(stat.czxid)));
                }
                Err(Error::NoNode) if tries < MOST_TRIES => {
                    // the servers remove an empty one: names that are not used any more cost nothing
                    let mode = CreateMode::Container.with_acls(self.acls);
                    match self.ask(|| client.create(&dir, b"", &mode)).await {
                        Ok(_) | Err(Error::NodeExists) => {}
                        Err(error) => return Err(backend_error(error)),
                    }
                }
                Err(error) => return Err(backend_error(error)),
            }
        }
    }

    /// Deletes the node of `held` and makes that of `next`, or neither; `None` if `held` is gone.
    async fn exchange(
        &self,
        client: &Client,
        held: &Claim,
        next: &Claim,
    ) -> Result<Option<(String, Token)>, BackendError> {
        let node = self.with(&held.name, |queue| queue.leave(&layout::prefix(held)));
        let Some(node) = node else { return Ok(None) };
        let dir = layout::dir(&self.root, &next.name);
        let path = format!("{dir}/{}", layout::prefix(next));
        let mode = CreateMode::EphemeralSequential.with_acls(self.acls);
        let mut writer = client.new_multi_writer();
        writer.add_delete(&format!("{dir}/{node}"), None).map_err(backend_error)?;
        writer.add_create(&path, next.label.as_bytes(), &mode).map_err(backend_error)?;
        let results = match self.ask(|| writer.commit()).await {
            Err(MultiWriteError::OperationFailed { index: 0, source: Error::NoNode }) => {
                return Ok(None);
            }
            results => results.map_err(|error| backend_error(error.into()))?,
        };
        let Some(MultiWriteResult::Create { path, stat }) = results.into_iter().nth(1) else {
            return Err(transient("a transaction without its results"));
        };
        let stat = if stat.is_invalid() {
            // as before 3.8.2: ZOOKEEPER-4026
            let read = self.ask(|| client.check_stat(&path)).await;
            read.map_err(backend_error)?.ok_or_else(|| transient("the claim is gone"))?
        } else {
            stat
        };
        let node = path.rsplit('/').next().unwrap_or_default();
        Ok(Some((node.to_owned(), self.token(stat.czxid))))
    }

    /// The node of a claim whose answer got lost, if it is there.
    async fn find(
        &self,
        client: &Client,
        claim: &Claim,
    ) -> Result<Option<(String, Token)>, BackendError> {
        let prefix = layout::prefix(claim);
        let nodes = self.list(client, &claim.name).await?;
        let Some(node) = nodes.into_iter().find(|node| node.name.starts_with(&prefix)) else {
            return Ok(None);
        };
        let path = format!("{}/{}", layout::dir(&self.root, &claim.name), node.name);
        let stat = self.ask(|| client.check_stat(&path)).await;
        // a node of another session is about to go: CURATOR-498
        let stat = stat.map_err(backend_error)?.filter(|stat| stat.ephemeral_owner == claim.lease);
        Ok(stat.map(|stat| (node.name, self.token(stat.czxid))))
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
        let Some(mut ticket) = self.put(claim, None).await? else { return Ok(None) };
        // after a failure from here on, the claim may be in the queue
        let left = |error| BackendError::new(BackendErrorKind::Transient, error);
        let nodes = self.list(&client, &claim.name).await.map_err(left)?;
        if nodes.first().is_some_and(|first| first.prefix() == layout::prefix(claim)) {
            // the watch is about to show it
            let shown = ticket.status.wait_for(|status| *status != ClaimStatus::Waiting);
            let shown = timeout(self.request_timeout, shown).await.is_ok();
            return if shown { Ok(Some(ticket)) } else { Err(transient("the watch is late")) };
        }
        self.release(claim).await.map_err(left)?;
        Ok(None)
    }

    pub(super) async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
        let prefix = layout::prefix(claim);
        if !self.with(&claim.name, |queue| queue.knows(&prefix)) {
            // it was seen to go, or never made
            return Ok(Released::Gone);
        }
        let client = self.client()?;
        let node = match self.with(&claim.name, |queue| queue.leave(&prefix)) {
            Some(node) => Some(node),
            None => self.find(&client, claim).await?.map(|(node, _)| node),
        };
        let Some(node) = node else {
            self.forget(claim);
            return Ok(Released::Gone);
        };
        let path = format!("{}/{node}", layout::dir(&self.root, &claim.name));
        let released = match self.ask(|| client.delete(&path, None)).await {
            Ok(()) => Released::Done,
            Err(Error::NoNode) => Released::Gone,
            Err(error) => return Err(backend_error(error)),
        };
        self.forget(claim);
        Ok(released)
    }

    /// The claims on a lock, the holder's first.
    pub(super) async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, BackendError> {
        let client = self.client()?;
        let dir = layout::dir(&self.root, name);
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
                let ours = layout::claim_of(&node.name);
                // Curator's GUIDs are random
                let ours = ours.filter(|(lease, _)| *lease == stat.ephemeral_owner);
                let made_at = Duration::from_millis(stat.ctime.try_into().unwrap_or_default());
                let age = SystemTime::now().duration_since(UNIX_EPOCH + made_at);
                entries.push(QueueEntry {
                    token: Some(self.token(stat.czxid)),
                    lease: stat.ephemeral_owner,
                    key: match ours {
                        Some((lease, number)) => format!("{name}/{lease:x}-{number}"),
                        None => format!("{name}/{}", node.name),
                    },
                    label: ours.map(|_| String::from_utf8_lossy(&data).into_owned()),
                    // a clock that runs ahead of ours is no reason for an error
                    age: ours.map(|_| age.unwrap_or_default()),
                });
            }
        }
        Ok(entries)
    }

    /// The nodes of a lock's queue in the order of their turns, as new as the leader has them.
    async fn list(&self, client: &Client, name: &str) -> Result<Vec<Node>, BackendError> {
        let dir = layout::dir(&self.root, name);
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
        nodes.sort_unstable_by(Node::turn);
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
        let limit = self.request_timeout;
        let place = timeout(limit, self.under_way.acquire()).await;
        let _place = place.map_err(|_| Error::Timeout)?;
        timeout(limit, request()).await.unwrap_or_else(|_| Err(Error::Timeout.into()))
    }

    /// Has a queue watched from now on.
    async fn watch(self: &Arc<Self>, name: &Arc<str>) -> Result<(), BackendError> {
        let watcher = self.read(name).await?;
        let (session, followed) = (Arc::clone(self), Arc::clone(name));
        let follow = tokio::spawn(async move { session.follow(&followed, watcher).await });
        self.with(name, |queue| queue.task = Some(AbortOnDropHandle::new(follow)));
        Ok(())
    }

    /// Watches a queue, and reads it: in this order, so that no news is missed.
    async fn read(&self, name: &Arc<str>) -> Result<PersistentWatcher, BackendError> {
        let client = self.client()?;
        let dir = layout::dir(&self.root, name);
        let watch = || client.watch(&dir, AddWatchMode::PersistentRecursive);
        let watcher = self.ask(watch).await.map_err(backend_error)?;
        let made = self.with(name, |queue| queue.all_made());
        let nodes = self.list(&client, name).await?;
        self.with(name, |queue| queue.load(nodes, &made, &self.waiters));
        Ok(watcher)
    }

    /// Follows what happens in a queue until it is not used any more, or the session has ended.
    async fn follow(&self, name: &Arc<str>, mut watcher: PersistentWatcher) {
        let dir = layout::dir(&self.root, name);
        let mut look = interval(LOOK_EVERY);
        look.reset();
        loop {
            let is_missed = tokio::select! {
                event = watcher.changed() => match event.event_type {
                    EventType::Session if event.session_state.is_terminated() => return self.end(),
                    EventType::Session => {
                        self.with(name, |queue| queue.interrupted(&self.waiters));
                        // the client does not watch again, and news are not repeated: ZOOKEEPER-4698
                        event.session_state == SessionState::SyncConnected
                    }
                    kind => self.heard(name, kind, &event.path, &dir),
                },
                _ = look.tick() => match self.look(name) {
                    Use::None => return,
                    is_used => is_used == Use::Waited,
                },
            };
            if is_missed {
                watcher = match self.read_again(name).await {
                    Ok(watcher) => watcher,
                    Err(error) if error.kind == BackendErrorKind::LeaseGone => return self.end(),
                    Err(error) => {
                        tracing::warn!(%name, %error, "may not look at a queue any more");
                        return self.with(name, |queue| queue.end(&self.waiters));
                    }
                };
            }
        }
    }

    async fn read_again(&self, name: &Arc<str>) -> Result<PersistentWatcher, BackendError> {
        let mut backoff = Backoff::default();
        loop {
            match self.read(name).await {
                Err(error)
                    if matches!(
                        error.kind,
                        BackendErrorKind::Transient | BackendErrorKind::Refused
                    ) =>
                {
                    tracing::debug!(%name, %error, "could not read a queue: trying again");
                    sleep(backoff.next()).await;
                }
                read => return read,
            }
        }
    }

    /// Takes over what was told of a queue; `true` if it must be read again.
    ///
    /// The watch tells of the lock's own node as well, and of all that others have made deeper in the tree.
    fn heard(&self, name: &Arc<str>, kind: EventType, path: &str, dir: &str) -> bool {
        let child = path.strip_prefix(dir).and_then(|path| path.strip_prefix('/'));
        let Some(node) = child.and_then(Node::new) else { return false };
        self.with(name, |queue| match kind {
            EventType::NodeCreated => {
                queue.created(node, &self.waiters);
                false
            }
            EventType::NodeDeleted => queue.deleted(&node, &self.waiters),
            _ => false,
        })
    }

    /// Whether a queue is used. One that is not is forgotten.
    fn look(&self, name: &Arc<str>) -> Use {
        let mut queues = self.queues();
        let is_used = queues.get_mut(name).map_or(Use::None, Queue::look);
        if is_used == Use::None {
            queues.remove(name);
        }
        is_used
    }

    /// Notes that the session has ended, and all its claims with it.
    fn end(&self) {
        for queue in self.queues().values_mut() {
            queue.end(&self.waiters);
        }
    }

    fn forget(&self, claim: &Claim) {
        self.with(&claim.name, |queue| queue.forget(&layout::prefix(claim), &self.waiters));
    }

    fn token(&self, czxid: i64) -> Token {
        Token::new(self.lease.cluster, czxid)
    }

    /// Works with the queue of `name` if there is one.
    fn with<T: Default>(&self, name: &str, work: impl FnOnce(&mut Queue) -> T) -> T {
        self.queues().get_mut(name).map(work).unwrap_or_default()
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<Arc<str>, Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self) -> Result<Arc<Client>, BackendError> {
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
        client.ok_or_else(|| {
            if self.state.peek_state().is_terminated() {
                lease_gone()
            } else {
                transient("the session is being closed")
            }
        })
    }
}
