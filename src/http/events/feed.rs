//! The task that polls a sale for all its watchers at this instance, and the stream of each watcher.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::IntoResponse;
use axum::response::sse::{Event, Sse};
use futures_util::stream;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::projection::Projection;
use crate::http::AppState;
use crate::inventory::{InventoryError, Item};

/// The time between two polls, and so between two messages.
const TICK: Duration = Duration::from_millis(125);

/// The time limit of a poll. A watcher takes a longer silence for a dead instance.
const POLL_TIMEOUT: Duration = Duration::from_secs(1);

/// How often an unchanged state is sent again.
const REPEAT: Duration = Duration::from_millis(500);

/// How long a client waits before a reconnect.
const RETRY: Duration = Duration::from_secs(1);

/// How long a feed outlives its last watcher: a watcher that connects again finds the rate and the instances.
const LINGER: Duration = Duration::from_secs(10);

/// The times of the polls. Polls that a late poll missed are not made up for.
fn ticks() -> Interval {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// The state that the watchers of one sale share.
pub(super) struct Feed {
    /// The latest state, encoded once for all watchers; empty before the first poll.
    latest: watch::Sender<Arc<str>>,
    /// Cancelled when the feed's task ends.
    pub(super) over: CancellationToken,
}

impl Feed {
    /// Starts the task, which ends some time after the last watcher has left, or when `over` is cancelled.
    pub(super) fn start(app: &Arc<AppState>, item: &Item, over: CancellationToken) -> Arc<Self> {
        let feed = Arc::new(Self { latest: watch::Sender::new("".into()), over });
        tokio::spawn(Arc::clone(&feed).run(Arc::clone(app), item.clone()));
        feed
    }

    pub(super) fn is_unwatched(&self) -> bool {
        self.latest.receiver_count() == 0
    }

    /// Polls until the feed is over.
    async fn run(self: Arc<Self>, app: Arc<AppState>, item: Item) {
        // when the task ends or panics, the watchers' streams end
        let _over = self.over.clone().drop_guard();
        let mut projection = Projection::new(&app, &item);
        let (mut sent, mut sent_at, mut watched_at) = (Value::Null, Instant::now(), Instant::now());
        let mut ticks = ticks();
        while self.over.run_until_cancelled(ticks.tick()).await.is_some() {
            if !self.is_unwatched() {
                watched_at = Instant::now();
            } else if watched_at.elapsed() >= LINGER {
                // watchers subscribe while the map is locked, so none gets a feed that has ended
                let _feeds = app.events.feeds.lock();
                if self.is_unwatched() {
                    self.over.cancel();
                    break;
                }
            }
            let read = timeout(POLL_TIMEOUT, app.events.inventory.stock(&item)).await;
            let read = read.unwrap_or_else(|_| Err(InventoryError::too_late()));
            projection.add(read, app.sale.queue_snapshot(&item));
            let mut state = projection.state();
            if state != sent || sent_at.elapsed() >= REPEAT {
                (sent, sent_at) = (state.clone(), Instant::now());
                state["now_ms"] = projection.clock.now_ms().into();
                self.latest.send_replace(state.to_string().into());
            }
        }
        // the item may have a newer feed, if this one was removed to make room
        app.events.feeds.lock().retain(|_, feed| !Arc::ptr_eq(feed, &self));
    }
}

/// A watcher. Its feed counts it from its creation on.
pub(super) struct Watcher {
    feed: Arc<Feed>,
    latest: watch::Receiver<Arc<str>>,
    kind: &'static str,
    _place: OwnedSemaphorePermit,
}

impl Watcher {
    pub(super) fn of(feed: &Arc<Feed>, place: OwnedSemaphorePermit) -> Self {
        let mut latest = feed.latest.subscribe();
        if !latest.borrow().is_empty() {
            latest.mark_changed();
        }
        Self { feed: Arc::clone(feed), latest, kind: "snapshot", _place: place }
    }

    /// The present state, and the state after each change. Takes the state only when the client is ready for it: nothing is
    /// buffered for a slow client. The stream ends with the feed, and when the client's token is no longer valid.
    pub(super) fn messages(
        self,
        may_watch: impl Fn() -> bool + Send + 'static,
    ) -> impl IntoResponse {
        Sse::new(stream::unfold((self, may_watch), |(mut watcher, may_watch)| async {
            let over = watcher.feed.over.clone();
            over.run_until_cancelled(watcher.latest.changed()).await?.ok()?;
            if !may_watch() {
                return None;
            }
            let state = Arc::clone(&watcher.latest.borrow_and_update());
            let message = Event::default().event(watcher.kind).retry(RETRY).data(state);
            watcher.kind = "change";
            Some((Ok::<_, Infallible>(message), (watcher, may_watch)))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: eight polls a second, even after a late one.
    #[tokio::test(start_paused = true)]
    async fn polls_are_paced() {
        let mut ticks = ticks();
        ticks.tick().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        ticks.tick().await;
        let began_at = Instant::now();
        for _ in 0..8 {
            ticks.tick().await;
        }
        assert_eq!(began_at.elapsed(), Duration::from_secs(1));
    }
}
