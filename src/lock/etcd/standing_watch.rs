//! One watch stream for everything that is queued for.
//!
//! etcd serves a new watcher at once only if it starts at revision 0, "from now", or beyond the
//! store's current revision. Any other joins a group that is served every 100 ms
//! (`mvcc/watchable_store.go`, `watchResyncPeriod`), which is what makes recipes slow that read the
//! queue and then watch from the revision of that read. So each queue has a standing watcher without
//! a start revision: once it is created, the queue is listed, and events are applied on top.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, Event, EventType, GetResponse, ResponseHeader, Txn, TxnOp, WatchResponse,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use super::endpoints::Endpoints;
use super::failure::{backend_error, malformed};
use super::keys;
use super::queue::{KeyEvent, NameQueue};
use super::queues::Queues;
use super::ranges::{list_options, member};
use super::watch_stream::WatchedStream;
use crate::lock::BackendError;
use crate::lock::chaos::Defence;

/// How often a queue in use is read again, in case the watch has stopped telling.
const REREAD_EVERY: Duration = Duration::from_secs(1);

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
}

/// Why a stream is followed no longer.
enum Ended {
    StreamBroke,
    BackendGone,
}

/// A queue as it was read for one watcher.
struct Listed {
    watch_id: i64,
    response: GetResponse,
    /// What was known to exist when it was asked for.
    latest_revision: i64,
}

impl StandingWatch {
    pub(super) fn new(
        endpoints: Arc<Endpoints>,
        queues: Arc<Queues>,
        new_names: mpsc::UnboundedReceiver<Arc<str>>,
    ) -> Self {
        Self { endpoints, queues, new_names }
    }

    /// Runs until the backend is dropped.
    pub(super) async fn run(mut self) {
        let mut pause = SHORTEST_PAUSE;
        // a stream begins with its first watcher, so there is none before the first name
        while let Some(name) = self.next_name().await {
            let from = self.resumes_from(&name);
            match WatchedStream::open(&self.endpoints, &name, from).await {
                Ok(stream) => {
                    let opened_at = Instant::now();
                    if let Ended::BackendGone = self.follow(stream).await {
                        return;
                    }
                    if !Defence::ReWatch.is_on() {
                        return;
                    }
                    // one that breaks again and again is opened more and more slowly
                    if opened_at.elapsed() > LONGEST_PAUSE {
                        pause = SHORTEST_PAUSE;
                    }
                }
                Err(error) => tracing::debug!(%error, "could not watch: trying again"),
            }
            for name in self.queues.names() {
                self.unwatched(&name);
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// A name to open a stream with; `None` when the backend is gone.
    async fn next_name(&mut self) -> Option<Arc<str>> {
        loop {
            if let Some(name) = self.queues.names().into_iter().next() {
                return Some(name);
            }
            self.new_names.recv().await?;
        }
    }

    /// Follows one stream until it breaks, or the backend is gone.
    async fn follow(&mut self, mut stream: WatchedStream) -> Ended {
        // what was read comes back here: about one list a second for each queue in use
        let (lists, mut listed) = mpsc::unbounded_channel::<Listed>();
        let mut reread = interval_at(Instant::now() + REREAD_EVERY, REREAD_EVERY);
        reread.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut result = self.watch_all(&mut stream).await;
        loop {
            if let Err(error) = result {
                let cause = error.source().map(ToString::to_string);
                tracing::debug!(cause, "the watch broke");
                return Ended::StreamBroke;
            }
            result = tokio::select! {
                response = stream.next() => match response {
                    Ok(Some(response)) => {
                        self.heard(&mut stream, &response, &lists);
                        Ok(())
                    }
                    Ok(None) => Err(malformed("the watch stream ended")),
                    Err(error) => Err(backend_error(error)),
                },
                name = self.new_names.recv() => match name {
                    Some(name) => self.watch(&mut stream, name).await,
                    None => return Ended::BackendGone,
                },
                Some(list) = listed.recv() => {
                    self.take(&stream, &list);
                    Ok(())
                }
                _ = reread.tick() => self.tidy(&mut stream, &lists).await,
            };
        }
    }

    async fn watch_all(&self, stream: &mut WatchedStream) -> Result<(), BackendError> {
        for name in self.queues.names() {
            self.watch(stream, name).await?;
        }
        Ok(())
    }

    async fn watch(&self, stream: &mut WatchedStream, name: Arc<str>) -> Result<(), BackendError> {
        let from = self.resumes_from(&name);
        stream.watch(name, from).await
    }

    /// The revision at which to go on without a list; `None`, unless that defence was taken away.
    fn resumes_from(&self, name: &str) -> Option<i64> {
        self.queues.with(name, |queue| queue.resumes_from()).flatten()
    }

    /// Notes that events of the queue may be missing from now on.
    fn unwatched(&self, name: &str) {
        if Defence::Relist.is_on() {
            self.queues.with(name, NameQueue::unwatched);
        }
    }

    fn heard(
        &self,
        stream: &mut WatchedStream,
        response: &WatchResponse,
        lists: &mpsc::UnboundedSender<Listed>,
    ) {
        let watch_id = response.watch_id();
        // there is none for the answer to a cancellation
        let Some(name) = stream.name_of(watch_id) else { return };
        if response.canceled() {
            tracing::debug!(%name, reason = response.cancel_reason(), "a watcher was cancelled");
            self.unwatched(&name);
            self.queues.with(&name, |queue| queue.compacted(response.compact_revision()));
            // one that was refused from the start (no permission) would be again on this stream
            if !response.created() {
                // `tidy` watches it anew
                stream.forget(watch_id);
            }
        } else if response.created() {
            // only now: what was read before could miss what came in between
            stream.set_created(watch_id);
            if self.resumes_from(&name).is_none() {
                self.list(watch_id, name, lists.clone());
            }
        } else {
            let events = response.events().iter().filter_map(key_event).collect();
            self.queues.with(&name, |queue| queue.apply(events));
            self.remove_orphans(&name);
        }
    }

    /// Reads the queue of `name` in the background.
    fn list(&self, watch_id: i64, name: Arc<str>, lists: mpsc::UnboundedSender<Listed>) {
        let endpoints = Arc::clone(&self.endpoints);
        let latest = self.queues.with(&name, |queue| queue.latest_revision()).unwrap_or(0);
        tokio::spawn(async move {
            let options = list_options().with_keys_only();
            let read = endpoints.get(&keys::prefix(&name), &options).await;
            // a list that fails is asked for again within a second; a stream that has ended meanwhile
            // does not want it any more
            match read {
                Ok(response) => {
                    drop(lists.send(Listed { watch_id, response, latest_revision: latest }));
                }
                Err(error) => tracing::debug!(%name, %error, "could not read a queue"),
            }
        });
    }

    fn take(&self, stream: &WatchedStream, list: &Listed) {
        // the watcher that it belongs to may be gone
        let Some(name) = stream.name_of(list.watch_id) else { return };
        let Some(revision) = list.response.header().map(ResponseHeader::revision) else { return };
        let members = list.response.kvs().iter().filter_map(member).collect();
        self.queues.with(&name, |queue| queue.load(members, revision, list.latest_revision));
        self.remove_orphans(&name);
    }

    /// Stops watching what nobody queues for any more, reads again what is in use, and watches what
    /// is not watched.
    async fn tidy(
        &self,
        stream: &mut WatchedStream,
        lists: &mpsc::UnboundedSender<Listed>,
    ) -> Result<(), BackendError> {
        for (watch_id, name, is_created) in stream.watchers() {
            if self.queues.remove_if_idle(&name) {
                stream.cancel(watch_id).await?;
                continue;
            }
            let is_used = self.queues.with(&name, |queue| queue.is_used()) == Some(true);
            if is_used && is_created && self.resumes_from(&name).is_none() {
                self.list(watch_id, name, lists.clone());
            } else if is_used && stream.is_overdue(watch_id) {
                return Err(malformed("a watcher was not made"));
            }
        }
        self.watch_all(stream).await
    }

    /// Deletes keys of ours that belong to no claim, in the background; what fails is found again.
    fn remove_orphans(&self, name: &str) {
        for key in self.queues.orphans(name) {
            let endpoints = Arc::clone(&self.endpoints);
            tokio::spawn(async move {
                tracing::debug!(key, "removing a key of a request that was given up");
                if let Err(error) = endpoints.txn(&delete_if_exists(&key)).await {
                    tracing::debug!(key, %error, "could not remove it: trying again later");
                }
            });
        }
    }
}

/// Deletes a key that is never used twice, whichever revision it has.
fn delete_if_exists(key: &str) -> Txn {
    Txn::new()
        .when([Compare::create_revision(key, CompareOp::Greater, 0)])
        .and_then([TxnOp::delete(key, None)])
}

fn key_event(event: &Event) -> Option<KeyEvent> {
    let kv = event.kv()?;
    let (key, create_revision) = member(kv)?;
    let created = match event.event_type() {
        EventType::Put => Some(create_revision),
        EventType::Delete => None,
    };
    Some(KeyEvent { key, mod_revision: kv.mod_revision(), created })
}
