//! `GET /events`: the state of a sale and its changes, as server-sent events.
//!
//! While an item has watchers, one task of this instance polls it for all of them (`feed`). A poll costs the store one bounded
//! command, over a connection that orders do not use. The queue comes from the lock's own watch. The `projection` combines the
//! readings. Its whole state is one message, encoded once for all watchers. A watcher takes the latest message when it is ready.

mod alerts;
mod feed;
mod projection;

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, Uri, header};
use axum::response::{IntoResponse as _, Response};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::feed::{Feed, Watcher};
use super::access::Role;
use super::params;
use super::problem::{Problem, ProblemType};
use super::state::AppState;
use crate::inventory::{Inventory, Item};

/// The feeds of the watched items.
pub(super) struct Events {
    /// Reads the stock over a connection of its own, so that no order waits behind these reads.
    inventory: Inventory,
    feeds: Mutex<HashMap<Item, Arc<Feed>>>,
    places: Arc<Semaphore>,
    most: usize,
}

impl Events {
    pub(super) fn new(inventory: &Inventory, most: usize) -> Self {
        let most = most.min(Semaphore::MAX_PERMITS);
        Self {
            inventory: inventory.over_another_connection(),
            feeds: Mutex::default(),
            places: Arc::new(Semaphore::new(most)),
            most,
        }
    }

    /// A place for a client that waits for events, until the permit is dropped.
    ///
    /// # Errors
    /// `too-many-watchers`.
    pub(super) fn take_place(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let detail = format!("{} clients watch this instance, which is the limit", self.most);
            Problem::new(ProblemType::TOO_MANY_WATCHERS, detail)
        })
    }
}

/// A watcher of `item`. Starts the item's feed if necessary.
fn watcher(app: &Arc<AppState>, item: &Item, place: OwnedSemaphorePermit) -> Watcher {
    let mut feeds = app.events.feeds.lock();
    if let Some(feed) = feeds.get(item).filter(|feed| !feed.over.is_cancelled()) {
        return Watcher::of(feed, place);
    }
    // there are at most as many feeds as places: remove a feed without watchers
    if feeds.len() >= app.events.most {
        let alone =
            feeds.iter().find(|(_, feed)| feed.is_unwatched()).map(|(item, _)| item.clone());
        if let Some(feed) = alone.and_then(|item| feeds.remove(&item)) {
            feed.over.cancel();
        }
    }
    let feed = Feed::start(app, item, app.stop.child_token());
    let watcher = Watcher::of(&feed, place);
    feeds.insert(item.clone(), feed);
    watcher
}

/// The event stream of an item. The default item needs no sale, so that the page can wait for a sale to start.
pub(super) async fn events(
    State(app): State<Arc<AppState>>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    app.require(Role::Shop, &headers)?;
    let item = params::only_item(&uri)?;
    if app.stop.is_cancelled() {
        return Err(Problem::new(ProblemType::STOPPING, "this instance is stopping"));
    }
    let place = app.events.take_place()?;
    app.sale.reads().check(&item).await?;
    let watcher = watcher(&app, &item, place);
    let messages = watcher.messages(move || app.require(Role::Shop, &headers).is_ok());
    let headers = [
        (header::CACHE_CONTROL, "no-store"),
        // a proxy must not buffer the stream
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, messages).into_response())
}
