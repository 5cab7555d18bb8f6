//! One watch stream with several watchers on it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, WatchOptions, WatchRequestSender, WatchResponse, WatchResponseStream};
use futures_util::StreamExt as _;
use tokio::time::{Instant, timeout};

use super::endpoints::Endpoints;
use super::failure::{backend_error, malformed};
use super::keys;
use crate::BackendError;

/// How long etcd may take to make a watcher.
const CREATED_WITHIN: Duration = Duration::from_secs(5);

/// How many watchers etcd is asked to make, and to cancel, at a time: the requests must not fill what lies between, or both
/// sides would wait for the other one to read.
const MAX_ASKED: usize = 64;

/// One stream, and a watcher on it for each of some locks' queues.
pub(super) struct WatchedStream {
    pub(super) is_broken: bool,
    sender: WatchRequestSender,
    responses: WatchResponseStream,
    names: HashMap<i64, Arc<str>>,
    /// The watchers that etcd has not answered for yet. It does so in their order, and a refusal does
    /// not name the watcher.
    asked: VecDeque<(i64, Instant)>,
    /// The watchers that are being cancelled, and since when.
    cancelled: HashMap<i64, Instant>,
}

impl WatchedStream {
    /// Opens a stream, which begins with its first watcher; see [`watch`](Self::watch).
    pub(super) async fn open(
        endpoints: &Endpoints,
        id: i64,
        name: Arc<str>,
    ) -> Result<Self, BackendError> {
        let open = |client: Client| {
            let prefix = keys::prefix(&name);
            async move { client.watch_client().watch(prefix, Some(watch_options(id))).await }
        };
        let (sender, responses) = endpoints.ask(open).await?.value.split();
        let asked = VecDeque::from([(id, Instant::now())]);
        let names = HashMap::from([(id, name)]);
        let cancelled = HashMap::new();
        Ok(Self { is_broken: false, sender, responses, names, asked, cancelled })
    }

    /// The next answer of any watcher.
    pub(super) async fn next(&mut self) -> Result<WatchResponse, BackendError> {
        match self.responses.next().await {
            Some(response) => response.map_err(backend_error),
            None => Err(malformed("the watch stream ended")),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.asked.len() < MAX_ASKED
    }

    /// Asks for a watcher of this id.
    pub(super) async fn watch(&mut self, id: i64, name: Arc<str>) {
        let prefix = keys::prefix(&name);
        self.asked.push_back((id, Instant::now()));
        self.names.insert(id, name);
        let sent = self.sender.watch(prefix, Some(watch_options(id)));
        self.is_broken |= !matches!(timeout(CREATED_WITHIN, sent).await, Ok(Ok(())));
    }

    /// The watcher for which the next answer to a request is.
    pub(super) fn answered(&mut self) -> Option<(i64, Arc<str>)> {
        let (id, _) = self.asked.pop_front()?;
        Some((id, self.name_of(id)?))
    }

    /// How many watchers may be cancelled now.
    pub(super) fn room_to_cancel(&self) -> usize {
        MAX_ASKED.saturating_sub(self.cancelled.len())
    }

    pub(super) async fn cancel(&mut self, id: i64) {
        if self.forget(id).is_some() {
            self.cancelled.insert(id, Instant::now());
            let sent = self.sender.cancel(id);
            self.is_broken |= !matches!(timeout(CREATED_WITHIN, sent).await, Ok(Ok(())));
        }
    }

    /// Notes that the watcher has ended. Its name, unless that was asked for.
    pub(super) fn ended(&mut self, id: i64) -> Option<Arc<str>> {
        self.cancelled.remove(&id);
        self.forget(id)
    }

    pub(super) fn forget(&mut self, id: i64) -> Option<Arc<str>> {
        let name = self.names.remove(&id);
        crate::watched::shrink(&mut self.names);
        name
    }

    pub(super) fn name_of(&self, id: i64) -> Option<Arc<str>> {
        self.names.get(&id).cloned()
    }

    /// Whether etcd has not answered for a watcher for a while: the stream does not get through.
    pub(super) fn is_overdue(&self) -> bool {
        let asked = self.asked.front().map(|(_, asked_at)| asked_at);
        asked.into_iter().chain(self.cancelled.values()).any(|at| at.elapsed() >= CREATED_WITHIN)
    }
}

/// No start revision: see `standing_watch`. The id is chosen here, so that the watcher has one before etcd answers.
fn watch_options(id: i64) -> WatchOptions {
    WatchOptions::new().with_prefix().with_watch_id(id)
}
