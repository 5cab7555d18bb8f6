//! The stream of one watcher.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures_util::stream::{self, Stream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::feed::{Change, Feed};

/// The shortest time between two messages: ten a second.
const GAP: Duration = Duration::from_millis(100);

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
    sent_at: Option<Instant>,
    is_new: bool,
    _place: OwnedSemaphorePermit,
}

/// A snapshot, then each change; another snapshot if one was missed. A message is chosen only when the reader
/// is ready, so none is buffered for a slow reader. Ends with the feed.
pub(super) fn stream(
    feed: Arc<Feed>,
    latest: watch::Receiver<Change>,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let client = Client { feed, latest, version: 0, sent_at: None, is_new: true, _place: place };
    stream::unfold(client, |mut client| async {
        let over = client.feed.over.clone();
        let next = tokio::select! {
            biased;
            () = over.cancelled() => return None,
            next = client.next() => next?,
        };
        Some((Ok(next), client))
    })
}

impl Client {
    async fn next(&mut self) -> Option<Bytes> {
        if std::mem::take(&mut self.is_new) {
            return Some(RETRY);
        }
        let version = self.version;
        let wanted = self.latest.wait_for(|change| change.version > version);
        match timeout(HEARTBEAT, wanted).await {
            Ok(changed) => drop(changed.ok()?),
            Err(_) => return Some(COMMENT),
        }
        if let Some(sent_at) = self.sent_at {
            sleep_until(sent_at + GAP).await;
        }
        let change = self.latest.borrow_and_update().clone();
        let (version, text) = if self.version > 0 && change.version == self.version + 1 {
            (change.version, change.text)
        } else {
            self.feed.snapshot()
        };
        self.version = version;
        self.sent_at = Some(Instant::now());
        Some(text)
    }
}
