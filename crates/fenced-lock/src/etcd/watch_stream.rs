//! One watch stream with several watchers on it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, WatchOptions, WatchRequestSender, WatchResponse, WatchResponseStream};
use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::endpoints::Endpoints;
use super::failure::backend_error;
use super::keys;
use crate::BackendError;

/// How long etcd may take to make a watcher, or to cancel one.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// How many watchers etcd is asked to make and to cancel at a time: fewer than the client has room for (100), so that
/// no request waits while nobody reads the answers.
const MAX_ASKED: usize = 64;

/// One stream with the watchers of several queues.
pub(super) struct WatchedStream {
    sender: WatchRequestSender,
    responses: WatchResponseStream,
    names: HashMap<i64, Arc<str>>,
    /// The watchers that etcd was asked to make or cancel, in the order of the requests, and when it was asked. etcd answers in
    /// that order, and its refusal does not name the watcher.
    asked: VecDeque<(i64, Instant)>,
    /// The watchers that nobody needs. Each is cancelled when there is room for the request.
    unneeded: Vec<i64>,
}

impl WatchedStream {
    /// Opens a stream, which begins with its first watcher; see [`watch`](Self::watch).
    pub(super) async fn open(
        endpoints: &Endpoints,
        id: i64,
        name: &Arc<str>,
    ) -> Result<Self, BackendError> {
        let open = |client: Client| {
            let prefix = keys::prefix(name);
            async move { client.watch_client().watch(prefix, Some(watch_options(id))).await }
        };
        let (sender, responses) = endpoints.ask(open).await?.value.split();
        let asked = VecDeque::from([(id, Instant::now())]);
        let names = HashMap::from([(id, Arc::clone(name))]);
        Ok(Self { sender, responses, names, asked, unneeded: Vec::new() })
    }

    /// The next answer of any watcher.
    pub(super) async fn next(&mut self) -> Result<WatchResponse, BackendError> {
        match self.responses.next().await {
            Some(response) => response.map_err(backend_error),
            None => Err(BackendError::transient("the watch stream ended")),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.asked.len() < MAX_ASKED
    }

    /// Asks for a watcher of this id.
    pub(super) async fn watch(&mut self, id: i64, name: Arc<str>) -> Result<(), BackendError> {
        let prefix = keys::prefix(&name);
        self.asked.push_back((id, Instant::now()));
        self.names.insert(id, name);
        self.sender.watch(prefix, Some(watch_options(id))).await.map_err(backend_error)
    }

    /// The watcher that etcd's answer is about: the first that it has not answered yet.
    pub(super) fn answered(&mut self) -> Option<(i64, Arc<str>)> {
        let is_new = |(id, _): &(i64, Instant)| self.names.contains_key(id);
        let (id, _) = self.asked.remove(self.asked.iter().position(is_new)?)?;
        Some((id, self.name_of(id)?))
    }

    /// Notes that a watcher is not needed any more.
    pub(super) fn give_up(&mut self, id: i64) {
        self.ended(id);
        self.unneeded.push(id);
    }

    /// Cancels watchers that are not needed any more, as fast as etcd answers.
    pub(super) async fn cancel_unneeded(&mut self) -> Result<(), BackendError> {
        while self.has_room()
            && let Some(id) = self.unneeded.pop()
        {
            self.asked.push_back((id, Instant::now()));
            self.sender.cancel(id).await.map_err(backend_error)?;
        }
        Ok(())
    }

    /// Notes that the watcher has ended. Returns the name of its queue, unless the watcher was given up before.
    pub(super) fn ended(&mut self, id: i64) -> Option<Arc<str>> {
        self.asked.retain(|(asked, _)| *asked != id);
        let name = self.names.remove(&id);
        crate::watched::shrink(&mut self.names);
        name
    }

    pub(super) fn name_of(&self, id: i64) -> Option<Arc<str>> {
        self.names.get(&id).cloned()
    }

    /// Whether an answer of etcd about a watcher is overdue: then the stream no longer carries messages.
    pub(super) fn is_overdue(&self) -> bool {
        self.asked.front().is_some_and(|(_, asked_at)| asked_at.elapsed() >= ANSWERED_WITHIN)
    }
}

/// Without a start revision, see `standing_watch`. This backend chooses the id, so that it knows the id before etcd answers.
fn watch_options(id: i64) -> WatchOptions {
    WatchOptions::new().with_prefix().with_watch_id(id)
}
