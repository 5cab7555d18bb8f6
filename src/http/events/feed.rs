//! The task that polls a sale for all its watchers at this instance, and the stream of each of them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, StreamExt as _};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::projection::{Lists, Projection};
use crate::http::AppState;
use crate::inventory::{InventoryError, Item};

/// The time between two polls: there are at most eight messages a second.
const TICK: Duration = Duration::from_millis(125);

/// The time limit of a poll. A watcher takes a longer silence for a dead instance.
const POLL_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a feed outlives its last watcher, so that a watcher that returns finds the history.
const LINGER: Duration = Duration::from_secs(10);

/// The most orders that a feed reads at once, in a burst, and for each tick. The ledger of a faster sale is thinned out
/// evenly.
const AT_ONCE: u32 = 500;
const BURST: u32 = 1000;
const EACH_TICK: u32 = 60;

/// After this silence a comment shows that the connection lives.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// How long a client waits before a reconnect.
const RETRY: Duration = Duration::from_secs(1);

/// The state that the watchers of one sale share.
pub(super) struct Feed {
    projection: Mutex<Projection>,
    /// The latest change. Version 0: none yet.
    latest: watch::Sender<Message>,
    /// The last snapshot.
    snapshot: Mutex<Message>,
    /// Cancelled when its task ends.
    pub(super) over: CancellationToken,
}

/// The whole state of a version, or the changes since the one before, encoded once for all watchers.
#[derive(Clone, Default)]
struct Message {
    version: u64,
    event: Event,
}

impl Feed {
    /// Starts the task. The task ends some time after the last watcher has left, or when `over` is cancelled.
    pub(super) fn start(app: &Arc<AppState>, item: &Item, over: CancellationToken) -> Arc<Self> {
        let feed = Arc::new(Self {
            projection: Mutex::new(Projection::new(app, item)),
            latest: watch::Sender::default(),
            snapshot: Mutex::default(),
            over,
        });
        tokio::spawn(Arc::clone(&feed).run(Arc::clone(app), item.clone()));
        feed
    }

    /// Whether it has no watchers.
    pub(super) fn is_alone(&self) -> bool {
        self.latest.receiver_count() == 0
    }

    /// The whole state as of the latest version.
    fn snapshot(&self) -> Message {
        // the projection is locked first, so that no version comes in between; the latest has all new entries
        let mut projection = self.projection.lock();
        let version = self.latest.borrow().version;
        let mut last = self.snapshot.lock();
        if last.version != version {
            let (state, lists) = (projection.state(), projection.take_entries(true));
            *last = encode("snapshot", version, &projection, state, lists);
        }
        last.clone()
    }

    /// Polls until the feed is over.
    async fn run(self: Arc<Self>, app: Arc<AppState>, item: Item) {
        // however the task ends, the streams of the watchers end
        let _over = self.over.clone().drop_guard();
        let mut budget = BURST;
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watched_at = Instant::now();
        let mut last = Value::Null;
        while self.over.run_until_cancelled(ticks.tick()).await.is_some() {
            if !self.is_alone() {
                watched_at = Instant::now();
            } else if watched_at.elapsed() >= LINGER {
                // a watcher subscribes while the map is locked, so none is left with a feed that has ended
                let _feeds = app.events.feeds.lock();
                if self.is_alone() {
                    self.over.cancel();
                    break;
                }
            }
            app.events.pace.turn().await;
            let cursor = self.projection.lock().cursor();
            budget = (budget + EACH_TICK).min(BURST);
            let most = budget.min(AT_ONCE);
            let poll = app.events.inventory.poll_since(&item, cursor.as_ref(), most);
            let update = timeout(POLL_TIMEOUT, poll).await;
            let update = update.unwrap_or_else(|_| Err(InventoryError::too_late()));
            let read = update.as_ref().map_or(0, |update| update.entries.len());
            budget = budget.saturating_sub(u32::try_from(read).unwrap_or(u32::MAX));
            // after the ledger, so that the tenures of its orders are known
            let queue_snapshot = app.sale.queue_snapshot(&item);
            let mut projection = self.projection.lock();
            let is_new_sale = projection.add(cursor.as_ref(), update, queue_snapshot);
            self.publish(&mut projection, is_new_sale, &mut last);
        }
        // if this feed made room before, the item may have another one by now, which stays
        app.events.feeds.lock().retain(|_, feed| !Arc::ptr_eq(feed, &self));
    }

    /// Sends the changes since the message before, in which the state was `last`.
    fn publish(&self, projection: &mut Projection, is_new_sale: bool, last: &mut Value) {
        let (state, lists) = (projection.state(), projection.take_entries(false));
        if *last == state && lists.iter().all(|(_, list)| list.is_empty()) {
            return;
        }
        // a gap in the versions makes every watcher take a snapshot
        let version = self.latest.borrow().version + if is_new_sale { 2 } else { 1 };
        self.latest.send_replace(encode("change", version, projection, state.clone(), lists));
        *last = state;
    }
}

/// A watcher, which counts as soon as it is made.
pub(super) struct Watcher {
    feed: Arc<Feed>,
    latest: watch::Receiver<Message>,
    /// The version that was sent last; 0: none.
    version: u64,
    _place: OwnedSemaphorePermit,
}

impl Watcher {
    pub(super) fn of(feed: &Arc<Feed>, place: OwnedSemaphorePermit) -> Self {
        Self { latest: feed.latest.subscribe(), feed: Arc::clone(feed), version: 0, _place: place }
    }

    /// A snapshot, then each change; after a missed change, another snapshot. A message is chosen only when the reader is
    /// ready, so nothing is buffered for a slow reader. The stream ends with the feed.
    pub(super) fn messages(self) -> impl IntoResponse {
        let messages = stream::unfold(self, |mut watcher| async {
            let over = watcher.feed.over.clone();
            let next = over.run_until_cancelled(watcher.next()).await??;
            Some((Ok::<_, Infallible>(next), watcher))
        });
        let all = stream::iter([Ok(Event::default().retry(RETRY))]).chain(messages);
        Sse::new(all).keep_alive(KeepAlive::new().interval(HEARTBEAT).text("still here"))
    }

    async fn next(&mut self) -> Option<Event> {
        let version = self.version;
        let change = self.latest.wait_for(|change| change.version > version).await.ok()?.clone();
        let is_next = version > 0 && change.version == version + 1;
        let Message { version, event } = if is_next { change } else { self.feed.snapshot() };
        self.version = version;
        Some(event)
    }
}

/// A message: the state, and entries of the lists.
fn encode(
    kind: &str,
    version: u64,
    projection: &Projection,
    mut state: Value,
    lists: Lists,
) -> Message {
    state["version"] = version.into();
    state["now_ms"] = projection.clock.now_ms().into();
    for (name, list) in lists {
        state[name] = list.into();
    }
    let id = format!("{:.0}-{version}", projection.clock.anchor_ms);
    Message { version, event: Event::default().id(id).event(kind).data(state.to_string()) }
}
