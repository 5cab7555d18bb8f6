//! One watch stream for everything that is queued for.
//!
//! etcd serves a new watcher at once only if it starts at revision 0, "from now", or beyond the
//! store's current revision. Any other joins a group that is served every 100 ms
//! (`mvcc/watchable_store.go`, `watchResyncPeriod`), which is what makes recipes slow that read the
//! queue and then watch from the revision of that read. So each queue has a standing watcher without
//! a start revision: once it is created, the queue is listed, and events are applied on top.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use etcd_client::{
    Compare, CompareOp, Event, EventType, GetOptions, KeyValue, Txn, TxnOp, WatchResponse,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until};

use super::endpoints::Endpoints;
use super::failure::{code, is_refused_with};
use super::keys;
use super::list::list;
use super::queue::{NameQueue, Watcher};
use super::queues::Queues;
use super::snapshot::ObservedClaim;
use super::watch_stream::WatchedStream;
use crate::BackendError;
use crate::backoff::Backoff;
use crate::chaos::Safeguard;
use crate::watched::{Event as QueueEvent, Key};

/// How often to look for what is not used, late or to be read again.
const TIDY_EVERY: Duration = Duration::from_secs(1);

/// How many queues are read again each time, in case their watchers have fallen silent.
const MAX_REREADS: usize = 4;

/// How many queues are read at a time, and how long one that could not be read waits for the next attempt.
const MAX_READS: usize = 16;
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Streams that are opened more often than this are opened more and more slowly.
const RARELY: Duration = Duration::from_secs(2);

/// Follows all queues for the life of a backend.
pub(super) struct StandingWatch {
    endpoints: Arc<Endpoints>,
    queues: Arc<Queues>,
    /// Names that are new in `queues`. There is one message for each, so the channel needs no bound
    /// of its own.
    new_names: mpsc::UnboundedReceiver<Arc<str>>,
    stream: Option<Box<WatchedStream>>,
    /// Names that have no watcher, and names whose queues are to be read: each at most once or twice.
    to_watch: VecDeque<Arc<str>>,
    to_read: VecDeque<Arc<str>>,
    tasks: JoinSet<Done>,
    is_opening: bool,
    /// When the latest stream was opened.
    opened_at: Option<Instant>,
    backoff: Backoff,
    /// Names watchers.
    next_id: i64,
}

/// What a task has done.
enum Done {
    Opened(Arc<str>, Result<Box<WatchedStream>, BackendError>),
    Read,
    /// The queue can be read, although a watcher was refused.
    Readable(Arc<str>),
}

impl StandingWatch {
    pub(super) fn new(
        endpoints: Arc<Endpoints>,
        queues: Arc<Queues>,
        new_names: mpsc::UnboundedReceiver<Arc<str>>,
    ) -> Self {
        Self {
            endpoints,
            queues,
            new_names,
            stream: None,
            to_watch: VecDeque::new(),
            to_read: VecDeque::new(),
            tasks: JoinSet::new(),
            is_opening: false,
            opened_at: None,
            backoff: Backoff::default(),
            next_id: 1,
        }
    }

    /// Runs until the backend is dropped.
    pub(super) async fn run(mut self) {
        let mut tidy = interval_at(Instant::now() + TIDY_EVERY, TIDY_EVERY);
        tidy.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.forget_idle().await;
            self.ask().await;
            if self.stream.as_ref().is_some_and(|stream| stream.is_broken) {
                if !Safeguard::ReWatch.is_on() {
                    return;
                }
                self.stream = None;
                self.to_watch = self.queues.unwatch().into();
                continue;
            }
            tokio::select! {
                response = next(&mut self.stream) => match response {
                    Ok(response) => self.shown(&response),
                    Err(error) => {
                        tracing::debug!(?error, "the watch broke");
                        self.give_up_stream();
                    }
                },
                name = self.new_names.recv() => match name {
                    Some(name) => self.to_watch.push_back(name),
                    None => return,
                },
                Some(Ok(done)) = self.tasks.join_next() => self.done(done),
                _ = tidy.tick() => self.tidy(),
            }
        }
    }

    /// Asks for what is to be watched and read, as far as there is room.
    async fn ask(&mut self) {
        while self.tasks.len() < MAX_READS {
            let Some(name) = self.to_read.pop_front() else { break };
            let read = read(Arc::clone(&self.endpoints), Arc::clone(&self.queues), name);
            self.tasks.spawn(read);
        }
        while let Some(name) = self.to_watch.front().cloned() {
            if self.stream.as_ref().map_or(self.is_opening, |stream| !stream.has_room()) {
                break;
            }
            self.to_watch.pop_front();
            if self.queues.with(&name, |queue| queue.watcher) != Some(Watcher::None) {
                continue;
            }
            let id = self.next_id;
            self.next_id += 1;
            self.queues.with(&name, |queue| queue.watcher = Watcher::Asked(id));
            match &mut self.stream {
                Some(stream) => stream.watch(id, name).await,
                None => self.open(id, name),
            }
        }
    }

    /// Stops watching queues that are not used any more, as fast as etcd answers.
    async fn forget_idle(&mut self) {
        loop {
            let room = self.stream.as_ref().map_or(MAX_READS, |stream| stream.room_to_cancel());
            let watchers = self.queues.remove_idle(room);
            if watchers.is_empty() {
                return;
            }
            for watcher in watchers {
                if let (Watcher::Created(id), Some(stream)) = (watcher, &mut self.stream) {
                    stream.cancel(id).await;
                }
            }
        }
    }

    /// Opens a stream in the background, with its first watcher.
    fn open(&mut self, id: i64, name: Arc<str>) {
        let now = Instant::now();
        if self.opened_at.is_none_or(|at| now - at > RARELY) {
            self.backoff = Backoff::default();
        }
        let open_at = self.opened_at.map_or(now, |at| now.max(at + self.backoff.next()));
        self.opened_at = Some(open_at);
        self.is_opening = true;
        let endpoints = Arc::clone(&self.endpoints);
        self.tasks.spawn(async move {
            sleep_until(open_at).await;
            let opened = WatchedStream::open(&endpoints, id, Arc::clone(&name)).await;
            Done::Opened(name, opened.map(Box::new))
        });
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Read => {}
            Done::Readable(name) => {
                // the stream's token has expired, or its user may look now
                let is_refused = |queue: &mut NameQueue| queue.watcher == Watcher::Refused;
                if self.queues.with(&name, is_refused) == Some(true)
                    && Safeguard::Reauthentication.is_on()
                {
                    self.give_up_stream();
                }
            }
            Done::Opened(_, Ok(stream)) => {
                self.is_opening = false;
                self.stream = Some(stream);
            }
            Done::Opened(name, Err(error)) => {
                tracing::debug!(?error, "could not watch: trying again");
                self.is_opening = false;
                self.watch_again(name);
            }
        }
    }

    fn give_up_stream(&mut self) {
        if let Some(stream) = &mut self.stream {
            stream.is_broken = true;
        }
    }

    /// Notes that events of the queue may be missing until there is another watcher.
    fn watch_again(&mut self, name: Arc<str>) {
        self.queues.with(&name, |queue| queue.unwatched(Watcher::None));
        self.to_watch.push_back(name);
    }

    fn shown(&mut self, response: &WatchResponse) {
        let Some(stream) = &mut self.stream else { return };
        if response.created() {
            let Some((id, name)) = stream.answered() else { return };
            if response.canceled() {
                // Its token is not valid any more, or the user may not look, and old versions do not say which. A
                // request for the same keys shows it, and gets a new token if need be.
                stream.forget(id);
                tracing::debug!(%name, reason = response.cancel_reason(), "a watcher was refused");
                self.queues.with(&name, |queue| queue.unwatched(Watcher::Refused));
                self.to_read.push_back(name);
                return;
            }
            let created = |queue: &mut NameQueue| {
                queue.watcher = Watcher::Created(id);
                queue.claims.is_current()
            };
            // only now: what was read before could miss what came in between
            if self.queues.with(&name, created) == Some(false) {
                self.to_read.push_back(name);
            }
        } else if response.canceled() {
            let Some(name) = stream.ended(response.watch_id()) else { return };
            tracing::debug!(%name, reason = response.cancel_reason(), "a watcher was cancelled");
            self.watch_again(name);
        } else if let Some(name) = stream.name_of(response.watch_id()) {
            let events: Vec<_> = response.events().iter().filter_map(key_event).collect();
            let made = events.iter().filter(|event| event.put.is_some());
            let made = made.map(|event| Arc::clone(&event.key)).collect();
            self.queues.with(&name, |queue| queue.apply(events));
            remove_orphans(&self.endpoints, &self.queues, &name, made);
        }
    }

    /// Reads some of the queues in use again, and gives up a stream that does not get through.
    fn tidy(&mut self) {
        if self.stream.as_ref().is_some_and(|stream| stream.is_overdue()) {
            self.give_up_stream();
        }
        if self.to_read.is_empty() && Safeguard::Relist.is_on() {
            self.to_read.extend(self.queues.due(MAX_REREADS));
        }
    }
}

/// The next answer on the stream, if there is one.
async fn next(stream: &mut Option<Box<WatchedStream>>) -> Result<WatchResponse, BackendError> {
    match stream {
        Some(stream) => stream.next().await,
        None => pending().await,
    }
}

/// Reads the queue of `name`, again and again until that is of no use any more.
async fn read(endpoints: Arc<Endpoints>, queues: Arc<Queues>, name: Arc<str>) -> Done {
    loop {
        let asked = queues.with(&name, |queue| {
            queue.reading();
            (queue.watcher, queue.claims.latest_change())
        });
        let Some((watcher, latest)) = asked else { return Done::Read };
        // without a watcher it is read when there is one
        if matches!(watcher, Watcher::None | Watcher::Asked(_)) {
            return Done::Read;
        }
        // with the values: 3.7 leaves out the leases as well
        let listed = list(&endpoints, &name, &GetOptions::new()).await;
        if queues.with(&name, |queue| queue.watcher) != Some(watcher) {
            return Done::Read;
        }
        match (listed, watcher) {
            (Ok(_), Watcher::Refused) => return Done::Readable(name),
            (Ok((header, kvs)), _) => {
                let listed: Vec<_> = kvs.iter().map(listed_key).collect();
                let load = |queue: &mut NameQueue| {
                    let is_loaded = queue.load(listed, header.revision(), latest);
                    // also those that the watch has shown since
                    is_loaded.then(|| queue.claims.keys().cloned().collect())
                };
                let Some(loaded) = queues.with(&name, load) else { return Done::Read };
                if let Some(keys) = loaded {
                    remove_orphans(&endpoints, &queues, &name, keys);
                    return Done::Read;
                }
            }
            // it is read again when it is due
            (Err(error), _) if is_refused_with(&error, code::PERMISSION_DENIED) => {
                tracing::debug!(%name, ?error, "may not look at a queue");
                queues.with(&name, |queue| queue.claims.denied(latest));
                return Done::Read;
            }
            (Err(error), _) => {
                tracing::debug!(%name, ?error, "could not read a queue: trying again");
                sleep(READ_AGAIN_AFTER).await;
            }
        }
    }
}

/// Deletes those of `keys` that are ours and belong to no claim, in the background; one that cannot be deleted
/// is found again.
fn remove_orphans(endpoints: &Arc<Endpoints>, queues: &Queues, name: &str, keys: Vec<Key>) {
    for key in queues.orphans(name, keys) {
        let endpoints = Arc::clone(endpoints);
        tokio::spawn(async move {
            let text = String::from_utf8_lossy(&key);
            tracing::debug!(key = %text, "removing a key of a request that was given up");
            // whichever revision it has: a key is never used twice
            let exists = Compare::create_revision(&*key, CompareOp::Greater, 0);
            let delete = Txn::new().when([exists]).and_then([TxnOp::delete(&*key, None)]);
            if let Err(error) = endpoints.txn(&delete).await {
                tracing::debug!(key = %text, ?error, "could not remove it: trying again later");
            }
        });
    }
}

fn key_event(event: &Event) -> Option<QueueEvent<ObservedClaim>> {
    let put = listed_key(event.kv()?);
    Some(match event.event_type() {
        EventType::Put => put,
        EventType::Delete => QueueEvent { put: None, ..put },
    })
}

fn listed_key(kv: &KeyValue) -> QueueEvent<ObservedClaim> {
    let (label, age) = keys::parse_value(kv.value()).unzip();
    let (key, revision, since) = (Key::from(kv.key()), kv.create_revision(), Instant::now());
    let claim = ObservedClaim {
        key: Arc::clone(&key),
        revision,
        lease: kv.lease(),
        label: label.map(Into::into),
        made_at: age.and_then(|age| SystemTime::now().checked_sub(age)),
        since,
    };
    QueueEvent { key, change: kv.mod_revision(), put: Some((revision, claim)) }
}
