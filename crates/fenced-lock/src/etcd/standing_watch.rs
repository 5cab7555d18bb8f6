//! One watch stream for all queues in use.
//!
//! etcd serves a new watcher at once only if it starts at revision 0 ("from now") or beyond the store's current revision. It
//! serves all other new watchers every 100 ms (`mvcc/watchable_store.go`, `watchResyncPeriod`). This slows down recipes that read
//! the queue and then watch from the revision of that read. So this backend creates a watcher without a start revision for each
//! queue, then lists the queue, and applies the watcher's events to the list.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use etcd_client::{
    Compare, CompareOp, Event, EventType, GetOptions, KeyValue, ResponseHeader, Txn, TxnOp,
    WatchResponse,
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
use super::watch_stream::WatchedStream;
use crate::backoff::Backoff;
use crate::chaos::Safeguard;
use crate::watched::{Event as QueueEvent, Key};
use crate::{BackendError, ClusterId, ObservedClaim};

/// How often to look for queues that are not used, requests that are late, and queues that must be read again.
const CLEAN_UP_EVERY: Duration = Duration::from_secs(1);

/// How many queues are read again each time, in case their watchers have fallen silent.
const MAX_REREADS: usize = 4;

/// How many queues are read at a time, and the pause after a read or a removal that failed.
const MAX_READS: usize = 16;
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The pauses before the next stream grow while each stream breaks sooner than this.
const RARELY: Duration = Duration::from_secs(2);

/// Follows all queues for the life of a backend.
pub(super) struct StandingWatch {
    endpoints: Arc<Endpoints>,
    queues: Arc<Queues>,
    /// Names that are new in `queues`: one message for each, so `queues` bounds the channel.
    new_names: mpsc::UnboundedReceiver<Arc<str>>,
    /// Names without a watcher. Each is here at most twice.
    to_watch: VecDeque<Arc<str>>,
    /// Names whose queues must be read. Each is here at most twice.
    to_read: VecDeque<Arc<str>>,
    /// The number of the latest watcher.
    latest_id: i64,
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
            to_watch: VecDeque::new(),
            to_read: VecDeque::new(),
            latest_id: 0,
        }
    }

    /// Runs for as long as the backend's thread: opens a stream, and the next one when it breaks.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::default();
        let mut open_at = Instant::now();
        loop {
            let name = match self.to_watch.pop_front() {
                Some(name) => name,
                None => match self.new_names.recv().await {
                    Some(name) => name,
                    None => return,
                },
            };
            let Some(id) = self.asked(&name) else { continue };
            sleep_until(open_at).await;
            let opened_at = Instant::now();
            match WatchedStream::open(&self.endpoints, id, &name).await {
                Ok(stream) => {
                    let Err(error) = self.follow(stream).await else { return };
                    tracing::debug!(?error, "the watch broke");
                    if !Safeguard::ReWatch.is_on() {
                        return;
                    }
                    self.to_watch = self.queues.unwatch().into();
                }
                Err(error) => {
                    tracing::debug!(?error, "could not watch: trying again");
                    self.watch_again(name);
                    // there are no watchers to cancel
                    self.queues.remove_idle();
                }
            }
            if opened_at.elapsed() > RARELY {
                backoff = Backoff::default();
            }
            open_at = opened_at + backoff.next();
        }
    }

    /// Watches the queues on this stream, until it breaks.
    async fn follow(&mut self, mut stream: WatchedStream) -> Result<(), BackendError> {
        let mut clean_up = interval_at(Instant::now() + CLEAN_UP_EVERY, CLEAN_UP_EVERY);
        clean_up.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // each read returns whether this stream must be replaced, so no read outlives the stream
        let mut reads = JoinSet::new();
        loop {
            while reads.len() < MAX_READS
                && let Some(name) = self.to_read.pop_front()
            {
                let read = read(Arc::clone(&self.endpoints), Arc::clone(&self.queues), name);
                reads.spawn(read);
            }
            while stream.has_room()
                && let Some(name) = self.to_watch.pop_front()
            {
                if let Some(id) = self.asked(&name) {
                    stream.watch(id, name).await?;
                }
            }
            stream.cancel_unneeded().await?;
            tokio::select! {
                response = stream.next() => self.shown(&mut stream, &response?),
                name = self.new_names.recv() => match name {
                    Some(name) => self.to_watch.push_back(name),
                    None => return Ok(()),
                },
                Some(read) = reads.join_next() => {
                    if matches!(read, Ok(true)) && Safeguard::Reauthentication.is_on() {
                        return Err(BackendError::transient("a watcher was refused for the stream's token"));
                    }
                }
                _ = clean_up.tick() => self.clean_up(&mut stream)?,
            }
        }
    }

    /// Notes that etcd is asked for a watcher of this queue, and returns the watcher's number. `None` if the queue has a watcher.
    fn asked(&mut self, name: &str) -> Option<i64> {
        let is_asked = self.queues.with(name, |queue| {
            let needs_one = queue.watcher == Watcher::None;
            if needs_one {
                queue.watcher = Watcher::Asked;
            }
            needs_one
        });
        self.latest_id += 1;
        is_asked?.then_some(self.latest_id)
    }

    /// Notes that events of the queue may be missing until there is another watcher.
    fn watch_again(&mut self, name: Arc<str>) {
        self.queues.with(&name, |queue| queue.unwatched(Watcher::None));
        self.to_watch.push_back(name);
    }

    fn shown(&mut self, stream: &mut WatchedStream, response: &WatchResponse) {
        if response.created() {
            let Some((id, name)) = stream.answered() else { return };
            if response.canceled() {
                // The stream's token has expired, or its user may not read the queue; old versions of etcd do not say which. A
                // read of the same keys shows which, and gets a new token if the old one has expired.
                stream.ended(id);
                tracing::debug!(%name, reason = response.cancel_reason(), "a watcher was refused");
                self.queues.with(&name, |queue| queue.unwatched(Watcher::Refused));
                self.to_read.push_back(name);
                return;
            }
            let created = |queue: &mut NameQueue| {
                queue.watcher = Watcher::Created(id);
                queue.claims.is_current()
            };
            // an earlier list could lack the changes between the list and the watcher
            if self.queues.with(&name, created) == Some(false) {
                self.to_read.push_back(name);
            }
        } else if response.canceled() {
            let Some(name) = stream.ended(response.watch_id()) else { return };
            tracing::debug!(%name, reason = response.cancel_reason(), "a watcher was cancelled");
            self.watch_again(name);
        } else if let Some(name) = stream.name_of(response.watch_id()) {
            let cluster = cluster_of(response.header());
            let event = |event| key_event(cluster, event);
            let events: Vec<_> = response.events().iter().filter_map(event).collect();
            let made = events.iter().filter(|event| event.put.is_some());
            let made = made.map(|event| Arc::clone(&event.key)).collect();
            self.queues.with(&name, |queue| queue.apply(events));
            remove_orphans(&self.endpoints, &self.queues, &name, made);
        }
    }

    /// Removes the queues that nobody uses any more, and has some of the others read again.
    fn clean_up(&mut self, stream: &mut WatchedStream) -> Result<(), BackendError> {
        for watcher in self.queues.remove_idle() {
            if let Watcher::Created(id) = watcher {
                stream.give_up(id);
            }
        }
        if self.to_read.is_empty() && Safeguard::Relist.is_on() {
            self.to_read.extend(self.queues.due(MAX_REREADS));
        }
        if stream.is_overdue() {
            return Err(BackendError::transient("the watch stream does not get through"));
        }
        Ok(())
    }
}

/// Reads the queue of `name`, and repeats a read that failed while the queue has the same watcher.
///
/// Returns whether another stream is needed: etcd refused the watcher and now permits the read. So either the stream's token has
/// expired, or its user has got the right to read.
async fn read(endpoints: Arc<Endpoints>, queues: Arc<Queues>, name: Arc<str>) -> bool {
    let mut backoff = Backoff::default();
    loop {
        let asked = queues.with(&name, |queue| {
            queue.reading();
            (queue.watcher, queue.claims.latest_change())
        });
        let Some((watcher, latest)) = asked else { return false };
        // the queue is read once it has a watcher
        if matches!(watcher, Watcher::None | Watcher::Asked) {
            return false;
        }
        // with the values: a request for keys alone returns no leases from etcd 3.7
        let listed = list(&endpoints, &name, &GetOptions::new()).await;
        if queues.with(&name, |queue| queue.watcher) != Some(watcher) {
            return false;
        }
        match (listed, watcher) {
            (Ok(_), Watcher::Refused) => return true,
            (Ok((header, kvs)), _) => {
                let cluster = cluster_of(Some(&header));
                let listed: Vec<_> = kvs.iter().map(|kv| listed_key(cluster, kv)).collect();
                let load = |queue: &mut NameQueue| {
                    let is_loaded = queue.load(listed, header.revision(), latest);
                    // the watch may have shown more keys since the list was made
                    is_loaded.then(|| queue.claims.keys().cloned().collect())
                };
                let Some(loaded) = queues.with(&name, load) else { return false };
                if let Some(keys) = loaded {
                    remove_orphans(&endpoints, &queues, &name, keys);
                    return false;
                }
                sleep(backoff.next()).await;
            }
            // the next read follows when the queue is due
            (Err(error), _) if is_refused_with(&error, code::PERMISSION_DENIED) => {
                tracing::debug!(%name, ?error, "may not look at a queue");
                queues.with(&name, |queue| queue.claims.denied(latest));
                return false;
            }
            (Err(error), _) => {
                tracing::debug!(%name, ?error, "could not read a queue: trying again");
                sleep(TRY_AGAIN_AFTER).await;
            }
        }
    }
}

/// Deletes, in the background, the keys of this process that belong to no claim. Tries until each is deleted or its lease has
/// ended.
fn remove_orphans(
    endpoints: &Arc<Endpoints>,
    queues: &Arc<Queues>,
    name: &Arc<str>,
    keys: Vec<Key>,
) {
    for key in queues.orphans(name, keys) {
        let (endpoints, queues) = (Arc::clone(endpoints), Arc::clone(queues));
        let name = Arc::clone(name);
        tokio::spawn(async move {
            let text = String::from_utf8_lossy(&key);
            tracing::debug!(key = %text, "removing a key of a request that was given up");
            // at any revision: a key is never used twice
            let exists = Compare::create_revision(&*key, CompareOp::Greater, 0);
            let delete = Txn::new().when([exists]).and_then([TxnOp::delete(&*key, None)]);
            while queues.with(&name, |queue| queue.claims.is_own(&key)) == Some(true) {
                let Err(error) = endpoints.txn(&delete).await else {
                    queues.with(&name, |queue| queue.forget(&key));
                    return;
                };
                tracing::debug!(key = %text, ?error, "could not remove it: trying again later");
                sleep(TRY_AGAIN_AFTER).await;
            }
        });
    }
}

fn cluster_of(header: Option<&ResponseHeader>) -> ClusterId {
    ClusterId(header.map_or(0, ResponseHeader::cluster_id))
}

fn key_event(cluster: ClusterId, event: &Event) -> Option<QueueEvent<ObservedClaim>> {
    let put = listed_key(cluster, event.kv()?);
    Some(match event.event_type() {
        EventType::Put => put,
        EventType::Delete => QueueEvent { put: None, ..put },
    })
}

fn listed_key(cluster: ClusterId, kv: &KeyValue) -> QueueEvent<ObservedClaim> {
    let value = keys::parse_value(kv.value());
    let (key, revision, since) = (Key::from(kv.key()), kv.create_revision(), Instant::now());
    let claim = ObservedClaim {
        key: Arc::clone(&key),
        revision,
        cluster,
        lease: kv.lease(),
        made_at: value.as_ref().and_then(|value| SystemTime::now().checked_sub(value.age)),
        since,
        is_standby: value.as_ref().is_some_and(|value| value.is_standby),
        note: value.as_ref().and_then(|value| value.note.as_deref()).map(Into::into),
        label: value.map(|value| value.label.into()),
    };
    QueueEvent { key, change: kv.mod_revision(), put: Some((revision, claim)) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Notify;

    use super::*;
    use crate::{EtcdOptions, EtcdUser};

    /// Goal: an etcd that refuses every watch is asked with pauses. Method: the password cannot be read, which is counted.
    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_refused_is_tried_with_pauses() {
        let minute = Duration::from_secs(60);
        let (asked, flood) = (Arc::<AtomicU32>::default(), Arc::<Notify>::default());
        let (count, flooded) = (Arc::clone(&asked), Arc::clone(&flood));
        let mut options = EtcdOptions::new(["http://127.0.0.1:1"]);
        options.user = Some(EtcdUser::with_password_from("app", move || {
            if count.fetch_add(1, Ordering::Relaxed) == 130 {
                flooded.notify_one();
            }
            Err("it cannot be read".into())
        }));
        let endpoints = Arc::new(Endpoints::new(options));
        let (new_names, names) = mpsc::unbounded_channel();
        let queues = Arc::new(Queues::new(2 * minute, new_names));
        queues.with_or_new(&Arc::from("a"), NameQueue::snapshot);
        let watch = StandingWatch::new(endpoints, queues, names).run();
        tokio::select! {
            () = watch => panic!("it gives up"),
            () = flood.notified() => panic!("it is flooded"),
            () = tokio::time::sleep(minute) => {}
        }
        assert!(asked.load(Ordering::Relaxed) >= 60);
    }
}
