//! The task that polls a sale for all its watchers at this instance.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::pace::Pace;
use super::poller::Poller;
use super::projection::{Projection, Reading};
use super::view::View;
use crate::http::Extension;
use crate::inventory::Item;
use crate::sale::Sale;

/// How often it polls: messages are at most ten a second.
const TICK: Duration = Duration::from_millis(125);

/// How long it goes on after the last watcher has left, so that a watcher that returns finds the history.
const LINGER: Duration = Duration::from_secs(10);

/// The state that the watchers of one sale share.
pub(super) struct Feed {
    projection: Mutex<Projection>,
    latest: watch::Sender<Change>,
    /// The version and the text of the last snapshot.
    snapshot: Mutex<(u64, Bytes)>,
    started_ms: u64,
    /// Cancelled when its task ends.
    pub(super) over: CancellationToken,
}

/// The feeds of the watched items.
pub(super) type Feeds = Arc<Mutex<HashMap<Item, Arc<Feed>>>>;

/// The latest change, encoded once for all watchers. Version 0: none yet.
#[derive(Clone, Default)]
pub(super) struct Change {
    pub(super) version: u64,
    /// The changes since the version before.
    pub(super) text: Bytes,
}

/// A message.
#[derive(Serialize)]
struct Message<'a> {
    version: u64,
    now_ms: f64,
    #[serde(flatten)]
    view: View<'a>,
}

impl Feed {
    /// Starts the task. It ends some time after the last watcher has left, or when `over` is cancelled.
    pub(super) fn start(
        feeds: &Feeds,
        item: &Item,
        sale: &Sale,
        extension: Option<Arc<dyn Extension>>,
        over: CancellationToken,
        pace: Arc<Pace>,
    ) -> Arc<Self> {
        let projection = Projection::new(item.clone(), sale.clone(), extension.clone());
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a date")]
        let started_ms = projection.clock.ms(Instant::now()) as u64;
        let feed = Arc::new(Self {
            projection: Mutex::new(projection),
            latest: watch::Sender::default(),
            snapshot: Mutex::default(),
            started_ms,
            over,
        });
        let task = FeedTask {
            feed: Arc::clone(&feed),
            feeds: Arc::clone(feeds),
            item: item.clone(),
            sale: sale.clone(),
            extension,
            pace,
        };
        tokio::spawn(task.run());
        feed
    }

    /// Whether it has no watchers.
    pub(super) fn is_alone(&self) -> bool {
        self.latest.receiver_count() == 0
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Change> {
        self.latest.subscribe()
    }

    /// The whole state as of the latest version, encoded once for all watchers.
    pub(super) fn snapshot(&self) -> (u64, Bytes) {
        // the projection is locked first, so that no version comes in between
        let projection = self.projection.lock();
        let version = self.latest.borrow().version;
        let mut last = self.snapshot.lock();
        if last.0 != version {
            *last = (version, self.write("snapshot", version, &projection, projection.whole()));
        }
        last.clone()
    }

    fn write(&self, event: &str, version: u64, projection: &Projection, view: View<'_>) -> Bytes {
        let now_ms = projection.clock.ms(Instant::now());
        let message = Message { version, now_ms, view };
        let data = serde_json::to_string(&message)
            .expect("a message is made of texts and numbers, and those always serialize");
        format!("id: {}-{version}\nevent: {event}\ndata: {data}\n\n", self.started_ms).into()
    }
}

/// The task that polls.
struct FeedTask {
    feed: Arc<Feed>,
    feeds: Feeds,
    item: Item,
    sale: Sale,
    extension: Option<Arc<dyn Extension>>,
    pace: Arc<Pace>,
}

impl FeedTask {
    async fn run(self) {
        let Self { feed, sale, extension, .. } = &self;
        // however this ends, the streams of the watchers end
        let _over = feed.over.clone().drop_guard();
        let _watching = sale.metrics().latency.watch();
        let mut poller = Poller::new(self.item.clone(), sale.clone(), Arc::clone(&self.pace));
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watched_at = Instant::now();
        let mut last = String::new();
        loop {
            tokio::select! {
                () = feed.over.cancelled() => return self.leave(),
                _ = ticks.tick() => {}
            }
            if !feed.is_alone() {
                watched_at = Instant::now();
            } else if watched_at.elapsed() >= LINGER && self.leave_if_alone() {
                return;
            }
            if let Some(extension) = extension {
                Arc::clone(extension).refresh();
            }
            let reading = poller.poll(&feed.projection).await;
            publish(feed, reading, &mut last);
        }
    }

    fn leave(&self) {
        // a feed that made room was removed before, and another may have its place
        let mut feeds = self.feeds.lock();
        if feeds.get(&self.item).is_some_and(|feed| Arc::ptr_eq(feed, &self.feed)) {
            feeds.remove(&self.item);
        }
    }

    /// A watcher subscribes while the map is locked, so none is left with a feed that has ended.
    fn leave_if_alone(&self) -> bool {
        let mut feeds = self.feeds.lock();
        let is_alone = self.feed.is_alone();
        // a feed that was cancelled meanwhile has been removed
        if is_alone && !self.feed.over.is_cancelled() {
            feeds.remove(&self.item);
        }
        is_alone
    }
}

fn publish(feed: &Feed, reading: Reading, last: &mut String) {
    let mut projection = feed.projection.lock();
    let is_new_sale = projection.take(reading);
    let version = feed.latest.borrow().version;
    let (view, has_grown) = projection.change();
    let body = serde_json::to_string(&view).unwrap_or_default();
    if version > 0 && !has_grown && body == *last {
        return;
    }
    *last = body;
    // a gap in the versions makes every watcher take a snapshot
    let version = version + if is_new_sale { 2 } else { 1 };
    let now_ms = projection.clock.ms(Instant::now());
    let id = feed.started_ms;
    let rest = last.strip_prefix('{').unwrap_or_default();
    let text = format!(
        "id: {id}-{version}\nevent: change\ndata: {{\"version\":{version},\"now_ms\":{now_ms},{rest}\n\n"
    );
    feed.latest.send_replace(Change { version, text: text.into() });
    projection.mark_sent();
}
