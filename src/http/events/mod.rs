//! `GET /events`: the sale as it goes, as server-sent events.
//!
//! One task looks at the sale for all watchers at this instance, and only while there are any
//! (`feed`): at the store with one bounded command a tick (`poller`), over a connection that the sale does
//! not use and at a rate that no number of items raises (`pace`); at the queue by the watch that the
//! lock has anyway. What it knows is in the `projection`; each message is written once for all. Who watches
//! (`client`) takes the latest message when it can: one that was too slow for a change takes a snapshot,
//! so nothing is kept for it.

mod alerts;
mod client;
mod clock;
mod event_log;
mod feed;
mod pace;
mod percentiles;
mod poller;
mod projection;
mod throughput;
mod timeline;
mod view;

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

pub use event_log::stale_batch;

use self::feed::{Change, Feed, Feeds};
use self::pace::Pace;
use super::extension::Extension;
use super::params;
use super::problem::{Problem, ProblemType};
use super::state::AppState;
use crate::defence::Defence;
use crate::inventory::Item;
use crate::sale::Sale;

/// How many may watch at one instance, unless told otherwise.
pub const DEFAULT_WATCHERS: usize = 64;

/// The feeds of the items that are watched.
pub(super) struct Events {
    feeds: Feeds,
    places: Arc<Semaphore>,
    most: usize,
    stop: CancellationToken,
    pace: Arc<Pace>,
}

impl Events {
    pub(super) fn new(most: usize) -> Self {
        let most = most.min(Semaphore::MAX_PERMITS);
        Self {
            feeds: Feeds::default(),
            places: Arc::new(Semaphore::new(most)),
            most,
            stop: CancellationToken::new(),
            pace: Arc::new(Pace::new()),
        }
    }

    /// Ends all streams, and takes no more.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// Joins the feed of `item`, if there is one.
    fn join(&self, item: &Item) -> Option<Subscription> {
        join(&self.feeds.lock(), item)
    }

    /// Joins the feed of `item`, starting it if need be. The caller has a place.
    fn subscribe(
        &self,
        item: &Item,
        sale: &Sale,
        extension: Option<&Arc<dyn Extension>>,
    ) -> Subscription {
        let mut feeds = self.feeds.lock();
        if let Some(joined) = join(&feeds, item) {
            return joined;
        }
        // there are no more feeds than places: one that nobody watches makes room
        let alone = feeds.iter().find(|(_, feed)| feed.is_alone()).map(|(item, _)| item.clone());
        if let Some(alone) = alone.filter(|_| feeds.len() >= self.most && Defence::Limits.is_on())
            && let Some(feed) = feeds.remove(&alone)
        {
            feed.over.cancel();
        }
        let over = self.stop.child_token();
        let pace = Arc::clone(&self.pace);
        let feed = Feed::start(&self.feeds, item, sale, extension.cloned(), over, pace);
        feeds.insert(item.clone(), Arc::clone(&feed));
        let latest = feed.subscribe();
        (feed, latest)
    }
}

/// A feed, and its latest change.
type Subscription = (Arc<Feed>, watch::Receiver<Change>);

fn join(feeds: &HashMap<Item, Arc<Feed>>, item: &Item) -> Option<Subscription> {
    let feed = feeds.get(item).filter(|feed| !feed.over.is_cancelled())?;
    Some((Arc::clone(feed), feed.subscribe()))
}

/// The stream of an item: of the default one always, so that its page can wait for the sale to begin.
pub(super) async fn events(
    State(app): State<Arc<AppState>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let [item] = params::parse(query.as_deref(), ["item"])?;
    let item = params::item(item.as_deref())?;
    let events = &app.events;
    if events.stop.is_cancelled() {
        return Err(Problem::new(ProblemType::STOPPING, "this instance is stopping"));
    }
    let place = Arc::clone(&events.places).try_acquire_owned().map_err(|_| {
        let detail = format!("{} watch at this instance already, and no more may", events.most);
        Problem::new(ProblemType::TOO_MANY_WATCHERS, detail)
    })?;
    if item != Item::DEFAULT && Defence::Limits.is_on() && events.join(&item).is_none() {
        events.pace.turn().await;
        app.sale.check_known(&item).await?;
    }
    let (feed, latest) = events.subscribe(&item, &app.sale, app.extension.as_ref());
    let stream = client::stream(feed, latest, place);
    let mut response = Response::new(Body::from_stream(stream));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // a proxy that buffers would show everything too late
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}
