//! The stream of one watcher.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures_util::stream::{self, Stream, StreamExt as _};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::timeout;

use super::feed::{Change, Feed};

/// After this silence a comment shows that the connection lives.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The first message: how long to wait before a reconnect.
const RETRY: Bytes = Bytes::from_static(b"retry: 1000\n\n");
const COMMENT: Bytes = Bytes::from_static(b": still here\n\n");

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
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let client = Client { feed, latest, version: 0, _place: place };
    let messages = stream::unfold(client, |mut client| async {
        let over = client.feed.over.clone();
        let next = over.run_until_cancelled(client.next()).await??;
        Some((Ok(next), client))
    });
    stream::iter([Ok(RETRY)]).chain(messages)
}

impl Client {
    async fn next(&mut self) -> Option<Bytes> {
        let version = self.version;
        let newer = self.latest.wait_for(|change| change.version > version);
        let change = match timeout(HEARTBEAT, newer).await {
            Ok(change) => change.ok()?.clone(),
            Err(_) => return Some(COMMENT),
        };
        let (version, text) = if version > 0 && change.version == version + 1 {
            (change.version, change.text)
        } else {
            self.feed.snapshot()
        };
        self.version = version;
        Some(text)
    }
}
