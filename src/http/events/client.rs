//! The stream of one watcher.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, StreamExt as _};
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::feed::{Change, Feed};

/// How long a client waits before it reconnects.
const RETRY: Duration = Duration::from_secs(1);

/// After this silence a comment shows that the connection lives.
const HEARTBEAT: Duration = Duration::from_secs(10);

struct Client {
    feed: Arc<Feed>,
    latest: watch::Receiver<Change>,
    /// The version that was sent last; 0: none.
    version: u64,
    _place: OwnedSemaphorePermit,
}

/// Sends a snapshot, then each change; after a missed change, another snapshot. A message is chosen only when the
/// reader is ready, so nothing is buffered for a slow reader. The stream ends with the feed.
pub(super) fn stream(
    feed: Arc<Feed>,
    latest: watch::Receiver<Change>,
    place: OwnedSemaphorePermit,
) -> impl IntoResponse {
    let client = Client { feed, latest, version: 0, _place: place };
    let messages = stream::unfold(client, |mut client| async {
        let over = client.feed.over.clone();
        let next = over.run_until_cancelled(client.next()).await??;
        Some((Ok::<_, Infallible>(next), client))
    });
    let retry = stream::iter([Ok(Event::default().retry(RETRY))]);
    let keep_alive = KeepAlive::new().interval(HEARTBEAT).text("still here");
    Sse::new(retry.chain(messages)).keep_alive(keep_alive)
}

impl Client {
    async fn next(&mut self) -> Option<Event> {
        let version = self.version;
        let change = self.latest.wait_for(|change| change.version > version).await.ok()?.clone();
        let (version, message) = if version > 0 && change.version == version + 1 {
            (change.version, change.message)
        } else {
            self.feed.snapshot()
        };
        self.version = version;
        Some(message)
    }
}
