//! Many watchers on one stream, as Go's client has them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use etcd_client::{Error, EventType, WatchOptions, WatchResponse};
use tokio::sync::{mpsc, oneshot};

use super::connection::Connection;

/// The watchers of one process. A task has the stream; its drop ends it.
pub(super) struct Watchers {
    /// As long as there are waiters, whose number the waiting room bounds.
    commands: mpsc::UnboundedSender<Command>,
    next_id: AtomicI64,
}

enum Command {
    Watch(Watch),
    Cancel { id: i64 },
}

struct Watch {
    id: i64,
    key: Vec<u8>,
    revision: i64,
    deleted: oneshot::Sender<()>,
}

/// The watcher has failed; the key may be there or not.
#[derive(Debug)]
pub(super) struct WatcherFailed;

impl Watchers {
    pub(super) fn start(connection: Arc<Connection>) -> Self {
        let (commands, queue) = mpsc::unbounded_channel();
        tokio::spawn(run(connection, queue));
        Self { commands, next_id: AtomicI64::new(1) }
    }

    /// Waits until `key` is deleted, at `revision` or later.
    ///
    /// # Cancel safety
    /// Safe: the watcher is cancelled.
    pub(super) async fn deleted(&self, key: Vec<u8>, revision: i64) -> Result<(), WatcherFailed> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (deleted, is_deleted) = oneshot::channel();
        let watch = Watch { id, key, revision, deleted };
        self.commands.send(Command::Watch(watch)).map_err(|_| WatcherFailed)?;
        let _cancel = Cancel { watchers: self, id };
        is_deleted.await.map_err(|_| WatcherFailed)
    }
}

struct Cancel<'a> {
    watchers: &'a Watchers,
    id: i64,
}

impl Drop for Cancel<'_> {
    fn drop(&mut self) {
        // an error means that the task has ended, and all watchers with it
        drop(self.watchers.commands.send(Command::Cancel { id: self.id }));
    }
}

type Waiters = HashMap<i64, oneshot::Sender<()>>;

async fn run(connection: Arc<Connection>, mut commands: mpsc::UnboundedReceiver<Command>) {
    let mut waiters = Waiters::new();
    while let Some(command) = commands.recv().await {
        // there is no stream, so there is nothing to cancel
        let Command::Watch(first) = command else { continue };
        if let Err(error) = stream(&connection, first, &mut commands, &mut waiters).await {
            tracing::debug!(?error, "the watch stream ended");
        }
        // all of them read the queue again
        waiters.clear();
    }
}

/// Serves one stream until it fails.
async fn stream(
    connection: &Connection,
    first: Watch,
    commands: &mut mpsc::UnboundedReceiver<Command>,
    waiters: &mut Waiters,
) -> Result<(), Error> {
    let options = options(&first);
    waiters.insert(first.id, first.deleted);
    let client = connection.client().await?;
    let opened = client.watch_client().watch(first.key, Some(options)).await?;
    let (mut sender, mut responses) = opened.split();
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                None => return Ok(()),
                Some(Command::Watch(watch)) => {
                    let options = self::options(&watch);
                    waiters.insert(watch.id, watch.deleted);
                    sender.watch(watch.key, Some(options)).await?;
                }
                Some(Command::Cancel { id }) => {
                    waiters.remove(&id);
                    sender.cancel(id).await?;
                }
            },
            response = responses.message() => match response? {
                None => return Ok(()),
                Some(response) => note(&response, waiters),
            },
        }
    }
}

fn options(watch: &Watch) -> WatchOptions {
    WatchOptions::new().with_watch_id(watch.id).with_start_revision(watch.revision)
}

fn note(response: &WatchResponse, waiters: &mut Waiters) {
    let is_deleted = response.events().iter().any(|event| event.event_type() == EventType::Delete);
    if is_deleted && let Some(waiter) = waiters.remove(&response.watch_id()) {
        // it may have gone
        let _ = waiter.send(());
    }
    if response.canceled() {
        waiters.remove(&response.watch_id());
    }
}
