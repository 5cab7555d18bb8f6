//! `GET /events`: the sale as it goes, as server-sent events.
//!
//! One task looks at the sale for all who watch it at this instance, and only while somebody does
//! (`feed`): at the store with one bounded command a tick (`reader`), at the queue by the watch that the
//! lock has anyway. What it knows is in the `book`; each message is written once for all. Who watches
//! (`client`) takes the latest message when it can: one that was too slow for a change takes a snapshot,
//! so nothing is kept for it.

mod book;
mod client;
mod clock;
mod diary;
mod feed;
mod flow;
mod lanes;
mod percentiles;
mod reader;
mod troubles;
mod view;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

pub(super) use book::mode_name;
pub(super) use diary::stale_batch;

use self::feed::{Change, Feed, Feeds};
use super::demo::Demo;
use super::params;
use super::problem::{Problem, ProblemType};
use super::state::AppState;
use crate::inventory::Item;
use crate::sale::Sale;

/// How many may watch at one instance, unless told otherwise.
pub const DEFAULT_WATCHERS: usize = 64;

/// The feeds of the items that somebody watches.
pub(super) struct Events {
    feeds: Feeds,
    places: Arc<Semaphore>,
    most: usize,
    stop: CancellationToken,
}

impl Events {
    pub(super) fn new(most: usize) -> Self {
        let most = most.min(Semaphore::MAX_PERMITS);
        Self {
            feeds: Feeds::default(),
            places: Arc::new(Semaphore::new(most)),
            most,
            stop: CancellationToken::new(),
        }
    }

    /// Ends all streams, and takes no more.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    fn subscribe(
        &self,
        item: &Item,
        sale: &Sale,
        demo: Option<&Arc<Demo>>,
    ) -> (Arc<Feed>, watch::Receiver<Change>) {
        // there are as many as there are places, and those that linger
        let mut feeds = feed::open(&self.feeds);
        if let Some(feed) = feeds.get(item).filter(|feed| !feed.over.is_cancelled()) {
            return (Arc::clone(feed), feed.subscribe());
        }
        let over = self.stop.child_token();
        let feed = Feed::start(&self.feeds, item, sale, demo.cloned(), over);
        feeds.insert(item.clone(), Arc::clone(&feed));
        let latest = feed.subscribe();
        (feed, latest)
    }
}

/// The stream of an item.
pub(super) async fn events(
    State(app): State<Arc<AppState>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let [item] = params::parse(query.as_deref(), ["item"])?;
    let item = params::item(item.as_deref())?;
    let events = &app.events;
    if events.stop.is_cancelled() {
        return Err(Problem::new(ProblemType::Stopping, "this instance is stopping"));
    }
    let place = Arc::clone(&events.places).try_acquire_owned().map_err(|_| {
        let detail = format!("{} watch at this instance already, and no more may", events.most);
        Problem::new(ProblemType::TooManyWatchers, detail)
    })?;
    let (feed, latest) = events.subscribe(&item, &app.sale, app.demo.as_ref());
    let stream = client::stream(feed, latest, place);
    let mut response = Response::new(Body::from_stream(stream));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // a proxy that buffers would show everything too late
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}
