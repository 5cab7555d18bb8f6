//! One watch stream for everything that is queued for.
//!
//! etcd serves a new watcher at once only if it starts at revision 0, "from now", or beyond the
//! store's current revision. Any other joins a group that is served every 100 ms
//! (`mvcc/watchable_store.go`, `watchResyncPeriod`), which is what makes recipes slow that read the
//! queue and then watch from the revision of that read. So each queue has a standing watcher without
//! a start revision: once it is created, the queue is listed, and events are applied on top.

use std::collections::HashMap;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, Event, EventType, GetOptions, GetResponse, KeyValue,
    ResponseHeader, SortOrder, SortTarget, Txn, TxnOp, WatchOptions, WatchRequestSender,
    WatchResponse, WatchResponseStream,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::failure::{backend_error, malformed, within};
use super::keys;
use super::queue::{KeyEvent, NameQueue};
use super::queues::Queues;
use crate::lock::BackendError;

/// How often a queue in use is read again, in case the watch has stopped telling.
const REREAD_EVERY: Duration = Duration::from_secs(1);

/// How long to wait before another stream is opened.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Follows all queues for the life of a backend.
pub(super) struct StandingWatch {
    pub(super) client: Client,
    pub(super) queues: Arc<Queues>,
    /// Names that are new in `queues`. There is one message for each, so the channel needs no bound
    /// of its own.
    pub(super) new_names: mpsc::UnboundedReceiver<Arc<str>>,
    pub(super) request_timeout: Duration,
}

impl StandingWatch {
    /// Runs until the backend is dropped.
    pub(super) async fn run(mut self) {
        let mut pause = SHORTEST_PAUSE;
        // a stream begins with its first watcher, so there is none before the first name
        while let Some(name) = self.next_name().await {
            match self.open(&name).await {
                Ok(stream) => {
                    let opened_at = Instant::now();
                    if let Ended::BackendGone = self.follow(stream).await {
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
                self.queues.with(&name, NameQueue::unwatched);
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

    async fn open(&mut self, first: &Arc<str>) -> Result<Stream, BackendError> {
        let opening = self.client.watch(keys::prefix(first), Some(watch_options(1)));
        let (sender, responses) = within(self.request_timeout, opening).await?.split();
        let watched = HashMap::from([(1, Arc::clone(first))]);
        let mut stream = Stream { sender, responses, watched, next_watch_id: 2 };
        for name in self.queues.names() {
            if name != *first {
                stream.watch(name).await?;
            }
        }
        Ok(stream)
    }

    /// Follows one stream until it breaks, or the backend is gone.
    async fn follow(&mut self, mut stream: Stream) -> Ended {
        // read lists come back here: at most one is under way for each watched name and second
        let (lists, mut listed) = mpsc::unbounded_channel::<Listed>();
        let mut reread = interval(REREAD_EVERY);
        reread.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let result = tokio::select! {
                response = stream.responses.message() => match response {
                    Ok(Some(response)) => self.heard(&stream, &response, &lists),
                    Ok(None) => Err(malformed("the watch stream ended")),
                    Err(error) => Err(backend_error(error)),
                },
                name = self.new_names.recv() => match name {
                    Some(name) => stream.watch(name).await,
                    None => return Ended::BackendGone,
                },
                Some(list) = listed.recv() => {
                    self.take(list);
                    Ok(())
                }
                _ = reread.tick() => self.tidy(&mut stream, &lists).await,
            };
            if let Err(error) = result {
                tracing::debug!(error = error.source().map(ToString::to_string), "the watch broke");
                return Ended::StreamBroke;
            }
        }
    }

    fn heard(
        &self,
        stream: &Stream,
        response: &WatchResponse,
        lists: &mpsc::UnboundedSender<Listed>,
    ) -> Result<(), BackendError> {
        let Some(name) = stream.watched.get(&response.watch_id()).cloned() else {
            // the answer to the cancellation of a watcher
            return Ok(());
        };
        if response.canceled() {
            // compacted, or no permission: nothing that this stream can mend for this watcher
            tracing::debug!(%name, reason = response.cancel_reason(), "a watcher was cancelled");
            return Err(malformed("a watcher was cancelled"));
        }
        if response.created() {
            self.list(name, lists.clone());
            return Ok(());
        }
        let events = response.events().iter().filter_map(key_event).collect();
        self.queues.with(&name, |queue| queue.apply(events));
        self.remove_orphans(&name);
        Ok(())
    }

    /// Reads the queue of `name` in the background.
    fn list(&self, name: Arc<str>, lists: mpsc::UnboundedSender<Listed>) {
        let mut client = self.client.clone();
        let limit = self.request_timeout;
        tokio::spawn(async move {
            let read = within(limit, client.get(keys::prefix(&name), Some(list_options()))).await;
            // a list that fails is asked for again within a second; a stream that has ended meanwhile
            // does not want it any more
            match read {
                Ok(response) => drop(lists.send(Listed { name, response })),
                Err(error) => tracing::debug!(%name, %error, "could not read a queue"),
            }
        });
    }

    fn take(&self, Listed { name, response }: Listed) {
        let Some(revision) = response.header().map(ResponseHeader::revision) else { return };
        let members = response.kvs().iter().filter_map(member).collect();
        self.queues.with(&name, |queue| queue.load(members, revision));
        self.remove_orphans(&name);
    }

    /// Stops watching what nobody queues for any more, and reads again what is in use.
    async fn tidy(
        &self,
        stream: &mut Stream,
        lists: &mpsc::UnboundedSender<Listed>,
    ) -> Result<(), BackendError> {
        let watched: Vec<_> = stream.watched.iter().map(|(id, name)| (*id, name.clone())).collect();
        for (watch_id, name) in watched {
            if self.queues.remove_if_idle(&name) {
                stream.watched.remove(&watch_id);
                stream.sender.cancel(watch_id).await.map_err(backend_error)?;
            } else if self.queues.with(&name, |queue| queue.is_used()) == Some(true) {
                self.list(name, lists.clone());
            }
        }
        Ok(())
    }

    /// Deletes keys of ours that belong to no claim, in the background; what fails is found again.
    fn remove_orphans(&self, name: &str) {
        for key in self.queues.orphans(name) {
            let mut client = self.client.clone();
            let limit = self.request_timeout;
            tokio::spawn(async move {
                tracing::debug!(key, "removing a key of a request that was given up");
                if let Err(error) = within(limit, client.txn(delete_if_exists(&key))).await {
                    tracing::debug!(key, %error, "could not remove it: trying again later");
                }
            });
        }
    }
}

/// Why a stream is followed no longer.
enum Ended {
    StreamBroke,
    BackendGone,
}

/// A queue as it was read.
struct Listed {
    name: Arc<str>,
    response: GetResponse,
}

/// One stream and the watchers on it.
struct Stream {
    sender: WatchRequestSender,
    responses: WatchResponseStream,
    watched: HashMap<i64, Arc<str>>,
    next_watch_id: i64,
}

impl Stream {
    async fn watch(&mut self, name: Arc<str>) -> Result<(), BackendError> {
        // a name whose queue was made while the stream was opened is announced as well
        if self.watched.values().any(|watched| *watched == name) {
            return Ok(());
        }
        let watch_id = self.next_watch_id;
        self.next_watch_id += 1;
        let options = watch_options(watch_id);
        self.sender.watch(keys::prefix(&name), Some(options)).await.map_err(backend_error)?;
        self.watched.insert(watch_id, name);
        Ok(())
    }
}

/// No start revision: see the module's documentation. The id is ours, so that answers can be told
/// apart before the first one has come.
fn watch_options(watch_id: i64) -> WatchOptions {
    WatchOptions::new().with_prefix().with_watch_id(watch_id)
}

pub(super) fn list_options() -> GetOptions {
    GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend)
}

/// Deletes a key that is never used twice, whichever revision it has.
pub(super) fn delete_if_exists(key: &str) -> Txn {
    Txn::new()
        .when([Compare::create_revision(key, CompareOp::Greater, 0)])
        .and_then([TxnOp::delete(key, None)])
}

fn key_event(event: &Event) -> Option<KeyEvent> {
    let kv = event.kv()?;
    let created = match event.event_type() {
        EventType::Put => Some(kv.create_revision()),
        EventType::Delete => None,
    };
    // a key that is no text was written by none of the libraries that queue here
    let key = kv.key_str().ok()?.to_owned();
    Some(KeyEvent { key, mod_revision: kv.mod_revision(), created })
}

fn member(kv: &KeyValue) -> Option<(String, i64)> {
    Some((kv.key_str().ok()?.to_owned(), kv.create_revision()))
}
