//! One watch stream for everything that is queued for.
//!
//! etcd serves a new watcher at once only if it starts at revision 0, "from now", or beyond the
//! store's current revision. Any other joins a group that is served every 100 ms
//! (`mvcc/watchable_store.go`, `watchResyncPeriod`), which is what makes recipes slow that read the
//! queue and then watch from the revision of that read. So each queue has a standing watcher without
//! a start revision: once it is created, the queue is listed, and events are applied on top.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, Event, EventType, GetOptions, KeyValue, Txn, TxnOp, WatchResponse,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use super::endpoints::Endpoints;
use super::failure::{code, is_refused_with};
use super::list::list;
use super::queue::{Key, KeyEvent, Listed, NameQueue, Watcher};
use super::queues::Queues;
use super::watch_stream::WatchedStream;
use crate::BackendError;
use crate::chaos::Defence;

/// How often to look for what is not used, late or to be read again.
const TIDY_EVERY: Duration = Duration::from_secs(1);

/// How many queues are read again each time, in case their watchers have stopped telling.
const MAX_REREADS: usize = 4;

/// How many queues that could not be read are asked for again each time.
const MAX_RETRIES: usize = 256;

/// How many queues that are not used any more are forgotten each time.
const MAX_FORGOTTEN: usize = 1000;

/// How many queues are read at a time.
const MAX_READS: usize = 16;

/// How many streams there are: usually one, and one more for each token that expired while its
/// watchers were in use.
const MAX_STREAMS: usize = 8;

/// How long to wait before another stream is opened.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Follows all queues for the life of a backend.
pub(super) struct StandingWatch {
    endpoints: Arc<Endpoints>,
    queues: Arc<Queues>,
    /// Names that are new in `queues`. There is one message for each, so the channel needs no bound
    /// of its own.
    new_names: mpsc::UnboundedReceiver<Arc<str>>,
    /// The newest is the last. New watchers are made there.
    streams: Vec<WatchedStream>,
    /// Names that have no watcher, names whose queues are to be read, and those that could not be read:
    /// each name at most once or twice.
    to_watch: VecDeque<Arc<str>>,
    to_read: VecDeque<Arc<str>>,
    to_read_later: Vec<Arc<str>>,
    tasks: JoinSet<Done>,
    is_opening: bool,
    /// When the latest stream was opened, and how long after that another one may be.
    opened_at: Option<Instant>,
    pause: Duration,
    /// Names streams and watchers.
    next_id: i64,
}

/// What a task has done.
enum Done {
    Opened(Arc<str>, Result<Box<WatchedStream>, BackendError>),
    Read(Read),
}

/// A queue that was read.
struct Read {
    name: Arc<str>,
    /// Who told of it when it was asked for.
    watcher: Watcher,
    /// What was known to exist then.
    latest_revision: i64,
    /// The keys, and the revision as of which they are complete.
    result: Result<(Vec<Listed>, i64), BackendError>,
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
            streams: Vec::new(),
            to_watch: VecDeque::new(),
            to_read: VecDeque::new(),
            to_read_later: Vec::new(),
            tasks: JoinSet::new(),
            is_opening: false,
            opened_at: None,
            pause: Duration::ZERO,
            next_id: 1,
        }
    }

    /// Runs until the backend is dropped.
    pub(super) async fn run(mut self) {
        let mut tidy = interval_at(Instant::now() + TIDY_EVERY, TIDY_EVERY);
        tidy.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.ask().await;
            if let Some(broken) = self.streams.iter().position(|stream| stream.is_broken) {
                if !Defence::ReWatch.is_on() {
                    return;
                }
                self.watch_elsewhere(broken);
                continue;
            }
            let (needs_stream, may_open_at) = (self.needs_stream(), self.may_open_at());
            tokio::select! {
                (index, response) = next(&mut self.streams) => match response {
                    Ok(response) => self.heard(index, &response),
                    Err(error) => {
                        tracing::debug!(%error, "the watch broke");
                        self.streams[index].is_broken = true;
                    }
                },
                name = self.new_names.recv() => match name {
                    Some(name) => self.to_watch.push_back(name),
                    None => return,
                },
                Some(Ok(done)) = self.tasks.join_next() => self.done(done),
                () = sleep_until(may_open_at), if needs_stream => self.open(),
                _ = tidy.tick() => self.tidy().await,
            }
        }
    }

    /// Asks for what is to be watched and read, as far as there is room.
    async fn ask(&mut self) {
        while self.tasks.len() < MAX_READS {
            let Some(name) = self.to_read.pop_front() else { break };
            self.read(name);
        }
        while let Some(stream) = self.streams.last_mut().filter(|s| !s.is_stale && s.has_room()) {
            let Some(name) = next_unwatched(&mut self.to_watch, &self.queues) else { break };
            let id = self.next_id;
            self.next_id += 1;
            let from = start_watching(&self.queues, &name, id);
            stream.watch(id, name, from).await;
        }
    }

    /// Whether names wait for a stream to be opened.
    fn needs_stream(&self) -> bool {
        let is_wanted = !self.to_watch.is_empty() && !self.is_opening;
        is_wanted && self.streams.last().is_none_or(|newest| newest.is_stale)
    }

    fn may_open_at(&self) -> Instant {
        self.opened_at.map_or_else(Instant::now, |opened_at| opened_at + self.pause)
    }

    /// Opens a stream in the background, with its first watcher.
    fn open(&mut self) {
        let Some(name) = next_unwatched(&mut self.to_watch, &self.queues) else { return };
        // those that break again and again are opened more and more slowly
        let is_rare = self.opened_at.is_none_or(|at| at.elapsed() > 2 * LONGEST_PAUSE);
        self.pause = if is_rare { SHORTEST_PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
        self.opened_at = Some(Instant::now());
        self.is_opening = true;
        let id = self.next_id;
        self.next_id += 1;
        let from = start_watching(&self.queues, &name, id);
        let endpoints = Arc::clone(&self.endpoints);
        self.tasks.spawn(async move {
            let opened = WatchedStream::open(&endpoints, id, Arc::clone(&name), from).await;
            Done::Opened(name, opened.map(Box::new))
        });
    }

    /// Reads the queue of `name` in the background.
    fn read(&mut self, name: Arc<str>) {
        let asked = self.queues.with(&name, |queue| {
            queue.reading();
            // without a watcher it is read when there is one
            queue.is_readable().then(|| (queue.watcher(), queue.latest_revision()))
        });
        let Some((watcher, latest_revision)) = asked.flatten() else { return };
        let endpoints = Arc::clone(&self.endpoints);
        self.tasks.spawn(async move {
            // with the values: 3.7 leaves out the leases as well
            let listed = list(&endpoints, &name, &GetOptions::new()).await;
            let claim = |kv: &KeyValue| (kv.key().into(), kv.create_revision(), kv.lease());
            let result =
                listed.map(|(header, kvs)| (kvs.iter().map(claim).collect(), header.revision()));
            Done::Read(Read { name, watcher, latest_revision, result })
        });
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Read(read) => self.take(read),
            Done::Opened(_, Ok(stream)) => {
                self.is_opening = false;
                self.streams.push(*stream);
                self.streams
                    .retain(|stream| !stream.is_stale || stream.watchers().next().is_some());
                if self.streams.len() > MAX_STREAMS {
                    self.watch_elsewhere(0);
                }
            }
            Done::Opened(name, Err(error)) => {
                tracing::debug!(%error, "could not watch: trying again");
                self.is_opening = false;
                self.set_unwatched(name);
            }
        }
    }

    /// Has the names of a stream that is followed no longer watched on another one.
    fn watch_elsewhere(&mut self, index: usize) {
        let stream = self.streams.remove(index);
        for (_, name) in stream.watchers() {
            self.set_unwatched(Arc::clone(name));
        }
    }

    /// Notes that events of the queue may be missing until there is another watcher.
    fn set_unwatched(&mut self, name: Arc<str>) {
        self.queues.with(&name, |queue| {
            unwatched(queue);
            queue.set_watcher(Watcher::None);
        });
        self.to_watch.push_back(name);
    }

    fn heard(&mut self, index: usize, response: &WatchResponse) {
        let stream = &mut self.streams[index];
        if response.created() {
            let Some((id, name)) = stream.answered() else { return };
            if response.canceled() {
                stream.forget(id);
                let number = stream.number;
                self.refused(number, name, response.cancel_reason());
                return;
            }
            self.queues.with(&name, |queue| queue.set_watcher(Watcher::Created(id)));
            // only now: what was read before could miss what came in between
            if self.queues.with(&name, |queue| queue.resumes_from()).flatten().is_none() {
                self.to_read.push_back(name);
            }
        } else if response.canceled() {
            // there is none for the answer to a cancellation
            let Some(name) = stream.forget(response.watch_id()) else { return };
            tracing::debug!(%name, reason = response.cancel_reason(), "a watcher was cancelled");
            self.set_unwatched(Arc::clone(&name));
            self.queues.with(&name, |queue| queue.compacted(response.compact_revision()));
        } else if let Some(name) = stream.name_of(response.watch_id()) {
            let events: Vec<_> = response.events().iter().filter_map(key_event).collect();
            let made = events.iter().filter(|event| event.created.is_some());
            let made = made.map(|event| Arc::clone(&event.key)).collect();
            self.queues.with(&name, |queue| queue.apply(events));
            self.remove_orphans(&name, made);
        }
    }

    /// etcd made no watcher: the stream's token counts no more, which old versions do not tell from
    /// a user who may not look. A request for the same keys tells, and gets a new token if need be.
    fn refused(&mut self, stream: i64, name: Arc<str>, reason: &str) {
        tracing::debug!(%name, reason, "a watcher was refused");
        if self.streams.last().is_some_and(|newest| newest.number != stream) {
            return self.set_unwatched(name);
        }
        self.queues.with(&name, |queue| {
            unwatched(queue);
            queue.set_watcher(Watcher::Refused(stream));
        });
        self.to_read.push_back(name);
    }

    fn take(&mut self, read: Read) {
        let Read { name, watcher, latest_revision, result } = read;
        // who told of it then may be gone
        if self.queues.with(&name, |queue| queue.watcher()) != Some(watcher) {
            return;
        }
        match (result, watcher) {
            (Ok(_), Watcher::Refused(refused_on)) => {
                if let Some(newest) = self.streams.last_mut() {
                    let is_refused = newest.number == refused_on;
                    newest.is_stale |= is_refused && Defence::Reauthentication.is_on();
                }
                self.set_unwatched(name);
            }
            (Ok((keys, revision)), _) => {
                let load = |queue: &mut NameQueue| queue.load(&keys, revision, latest_revision);
                if self.queues.with(&name, load) == Some(false) {
                    self.to_read.push_back(name);
                    return;
                }
                self.remove_orphans(&name, keys.into_iter().map(|(key, ..)| key).collect());
            }
            // asked for again at the pace of what is read in case of need
            (Err(error), _) if is_refused_with(&error, code::PERMISSION_DENIED) => {
                tracing::debug!(%name, %error, "may not look at a queue");
                self.queues.with(&name, |queue| queue.denied(latest_revision));
            }
            (Err(error), _) => {
                tracing::debug!(%name, %error, "could not read a queue");
                self.to_read_later.push(name);
            }
        }
    }

    /// Stops watching what nobody queues for any more, reads again what could not be read and some of
    /// what is in use, and gives up streams that do not get through.
    async fn tidy(&mut self) {
        for watcher in self.queues.remove_idle(MAX_FORGOTTEN) {
            let Watcher::Created(id) = watcher else { continue };
            for stream in &mut self.streams {
                stream.cancel(id).await;
            }
        }
        for stream in &mut self.streams {
            stream.is_broken |= stream.is_overdue();
        }
        let retried = self.to_read_later.len().min(MAX_RETRIES);
        self.to_read.extend(self.to_read_later.drain(..retried));
        if self.to_read.is_empty() && Defence::Relist.is_on() {
            self.to_read.extend(self.queues.due(MAX_REREADS));
        }
    }

    /// Deletes those of `keys` that are ours and belong to no claim, in the background; what fails is
    /// found again.
    fn remove_orphans(&self, name: &str, keys: Vec<Key>) {
        for key in self.queues.orphans(name, keys) {
            let endpoints = Arc::clone(&self.endpoints);
            tokio::spawn(async move {
                let text = String::from_utf8_lossy(&key);
                tracing::debug!(key = %text, "removing a key of a request that was given up");
                if let Err(error) = endpoints.txn(&delete_if_exists(&key)).await {
                    tracing::debug!(key = %text, %error, "could not remove it: trying again later");
                }
            });
        }
    }
}

/// The next answer on any stream, and which one it is.
async fn next(streams: &mut [WatchedStream]) -> (usize, Result<WatchResponse, BackendError>) {
    poll_fn(|context| {
        for (index, stream) in streams.iter_mut().enumerate() {
            if let Poll::Ready(response) = stream.poll_next(context) {
                return Poll::Ready((index, response));
            }
        }
        Poll::Pending
    })
    .await
}

/// A name that is still to be watched.
fn next_unwatched(names: &mut VecDeque<Arc<str>>, queues: &Queues) -> Option<Arc<str>> {
    let is_unwatched =
        |name: &Arc<str>| queues.with(name, |queue| queue.watcher()) == Some(Watcher::None);
    std::iter::from_fn(|| names.pop_front()).find(is_unwatched)
}

/// Notes that etcd is asked for this watcher, and tells the revision at which it is to go on without a
/// list: `None`, unless that defence was taken away.
fn start_watching(queues: &Queues, name: &str, id: i64) -> Option<i64> {
    let start = |queue: &mut NameQueue| {
        queue.set_watcher(Watcher::Asked(id));
        queue.resumes_from()
    };
    queues.with(name, start).flatten()
}

fn unwatched(queue: &mut NameQueue) {
    if Defence::Relist.is_on() {
        queue.unwatched();
    }
}

/// Deletes a key that is never used twice, whichever revision it has.
fn delete_if_exists(key: &[u8]) -> Txn {
    Txn::new()
        .when([Compare::create_revision(key, CompareOp::Greater, 0)])
        .and_then([TxnOp::delete(key, None)])
}

fn key_event(event: &Event) -> Option<KeyEvent> {
    let kv = event.kv()?;
    let key = kv.key().into();
    let created = match event.event_type() {
        EventType::Put => Some(kv.create_revision()),
        EventType::Delete => None,
    };
    Some(KeyEvent { key, mod_revision: kv.mod_revision(), created, lease: kv.lease() })
}
