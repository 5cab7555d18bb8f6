//! One watch stream with several watchers on it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Client, Error, WatchOptions, WatchRequestSender, WatchResponse, WatchResponseStream,
};
use tokio::time::Instant;

use super::endpoints::Endpoints;
use super::failure::backend_error;
use super::keys;
use crate::lock::BackendError;

/// How long etcd may take to make a watcher.
const CREATED_WITHIN: Duration = Duration::from_secs(5);

/// One stream, and a watcher on it for each lock's queue.
pub(super) struct WatchedStream {
    sender: WatchRequestSender,
    responses: WatchResponseStream,
    watchers: HashMap<i64, Watcher>,
    next_watch_id: i64,
}

struct Watcher {
    name: Arc<str>,
    /// Whether etcd has said that it exists. From then on it misses nothing.
    is_created: bool,
    asked_at: Instant,
}

impl Watcher {
    fn asked(name: Arc<str>) -> Self {
        Self { name, is_created: false, asked_at: Instant::now() }
    }
}

impl WatchedStream {
    /// Opens a stream, which begins with its first watcher; see [`watch`](Self::watch) for `from`.
    pub(super) async fn open(
        endpoints: &Endpoints,
        first: &Arc<str>,
        from: Option<i64>,
    ) -> Result<Self, BackendError> {
        let open = |client: Client| {
            let prefix = keys::prefix(first);
            async move { client.watch_client().watch(prefix, Some(watch_options(1, from))).await }
        };
        let (sender, responses) = endpoints.ask(open).await?.value.split();
        let watchers = HashMap::from([(1, Watcher::asked(Arc::clone(first)))]);
        Ok(Self { sender, responses, watchers, next_watch_id: 2 })
    }

    /// The next answer of any watcher.
    pub(super) async fn next(&mut self) -> Result<Option<WatchResponse>, Error> {
        self.responses.message().await
    }

    /// Adds a watcher, unless there is one for this name. It begins now, or at the revision `from`.
    pub(super) async fn watch(
        &mut self,
        name: Arc<str>,
        from: Option<i64>,
    ) -> Result<(), BackendError> {
        if self.watchers.values().any(|watcher| watcher.name == name) {
            return Ok(());
        }
        let watch_id = self.next_watch_id;
        self.next_watch_id += 1;
        let options = Some(watch_options(watch_id, from));
        self.sender.watch(keys::prefix(&name), options).await.map_err(backend_error)?;
        self.watchers.insert(watch_id, Watcher::asked(name));
        Ok(())
    }

    pub(super) async fn cancel(&mut self, watch_id: i64) -> Result<(), BackendError> {
        self.forget(watch_id);
        self.sender.cancel(watch_id).await.map_err(backend_error)
    }

    /// Notes that etcd has ended the watcher.
    pub(super) fn forget(&mut self, watch_id: i64) {
        self.watchers.remove(&watch_id);
    }

    pub(super) fn set_created(&mut self, watch_id: i64) {
        if let Some(watcher) = self.watchers.get_mut(&watch_id) {
            watcher.is_created = true;
        }
    }

    /// Whether etcd has been asked for the watcher a while ago and has not made it: the stream does not
    /// get through, or the credentials that it was opened with count no more.
    pub(super) fn is_overdue(&self, watch_id: i64) -> bool {
        let watcher = self.watchers.get(&watch_id);
        watcher.is_some_and(|w| !w.is_created && w.asked_at.elapsed() >= CREATED_WITHIN)
    }

    pub(super) fn name_of(&self, watch_id: i64) -> Option<Arc<str>> {
        self.watchers.get(&watch_id).map(|watcher| Arc::clone(&watcher.name))
    }

    /// All watchers: their ids, the locks' names, and whether etcd has said that they exist.
    pub(super) fn watchers(&self) -> Vec<(i64, Arc<str>, bool)> {
        let watchers = self.watchers.iter();
        watchers.map(|(id, watcher)| (*id, Arc::clone(&watcher.name), watcher.is_created)).collect()
    }
}

/// Usually no start revision: see `standing_watch`. The id is ours, so that answers can be told apart before
/// the first one has come.
fn watch_options(watch_id: i64, from: Option<i64>) -> WatchOptions {
    let options = WatchOptions::new().with_prefix().with_watch_id(watch_id);
    from.map_or(options.clone(), |from| options.with_start_revision(from))
}
