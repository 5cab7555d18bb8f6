//! The lock recipe of etcd's own client library, for one process.
//!
//! Whose recipe: `concurrency.Mutex` and `concurrency.Session` of etcd's Go client
//! (`go.etcd.io/etcd/client/v3/concurrency`), written anew for this client library. A process has one
//! session. An order makes one claim, by one transaction that also reads who is first. Who is not,
//! reads its predecessor (the youngest claim that is older), watches that key from the revision of the
//! read, and when it is gone looks again; and in the end whether its own claim is still there.
//!
//! There, a session has one claim on a lock at a time, since the key is the lease alone; many orders of
//! one process need a number behind it, or they would all hold the lock at once.
//!
//! Why it is slow: two commits for each order, one after the other, since the next holder learns of the
//! first commit only from its watcher; two reads and a watcher for each wait; and the watcher begins at
//! a revision that is no longer in the future, so etcd puts it among those that lag behind, which it
//! serves every 100 ms.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, GetOptions, GetResponse, PutOptions, SortOrder, SortTarget, Txn,
    TxnOp, TxnOpResponse,
};
use fenced_lock::{EtcdOptions, LockError, QueueEntry, Token};
use flash_sale::sale::SaleError;
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::connection::{Connection, prefix, token, unavailable};
use super::lease::KeptLease;
use super::per_order::{Limit, OrderLock};
use super::watchers::Watchers;

/// How long to wait before the queue is read again after a watcher has failed.
const WATCH_PAUSE: Duration = Duration::from_millis(50);

/// The recipe, for one process.
pub(super) struct Recipe {
    connection: Arc<Connection>,
    watchers: Watchers,
    ttl: Duration,
    /// Opened on first use, and again after a loss.
    session: Mutex<Option<Arc<KeptLease>>>,
    next_number: AtomicU64,
}

/// An order's claim: the lock, or a place in its queue.
pub(super) struct Hold {
    session: Arc<KeptLease>,
    key: String,
    token: Token,
}

impl OrderLock for Recipe {
    type Hold = Hold;

    async fn take(&self, name: &str, limit: &Limit) -> Result<Hold, SaleError> {
        let session = limit.wait(self.session()).await?;
        let prefix = prefix(name);
        let (hold, is_first) = self.enter(session, &prefix).await?;
        if !is_first && let Err(error) = limit.wait(self.turn(&hold, &prefix)).await {
            self.release(hold).await;
            return Err(error);
        }
        Ok(hold)
    }

    /// Deletes the claim. If that fails, the session is given up, so that the claim expires with the
    /// lease and does not block the queue.
    async fn release(&self, hold: Hold) {
        let Hold { session, key, .. } = hold;
        let delete = |mut client: Client| async move { client.delete(key, None).await };
        if let Err(error) = self.connection.ask(delete).await {
            tracing::warn!(?error, "a claim was not deleted: the session is given up");
            session.give_up();
        }
    }

    fn token(hold: &Hold) -> Option<Token> {
        Some(hold.token)
    }

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, SaleError> {
        self.connection.queue(name).await
    }

    async fn close(&self) {
        if let Some(session) = self.session.lock().await.take() {
            session.end().await;
        }
    }
}

impl Recipe {
    pub(super) fn new(etcd: EtcdOptions, ttl: Duration) -> Self {
        let connection = Arc::new(Connection::new(etcd));
        let watchers = Watchers::start(Arc::clone(&connection));
        let next_number = AtomicU64::new(1);
        Self { connection, watchers, ttl, session: Mutex::new(None), next_number }
    }

    async fn session(&self) -> Result<Arc<KeptLease>, SaleError> {
        let mut current = self.session.lock().await;
        if let Some(session) = current.as_ref().filter(|session| !session.is_ended()) {
            return Ok(Arc::clone(session));
        }
        let session = Arc::new(KeptLease::grant(&self.connection, self.ttl).await?);
        Ok(Arc::clone(current.insert(session)))
    }

    /// Makes the claim, and returns whether it is the first. It cannot be cancelled half-way: the key could
    /// appear after its withdrawal.
    async fn enter(
        &self,
        session: Arc<KeptLease>,
        prefix: &str,
    ) -> Result<(Hold, bool), SaleError> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let key = format!("{prefix}{:x}-{number}", session.id());
        let put = TxnOp::put(key.as_str(), "", Some(PutOptions::new().with_lease(session.id())));
        let own = TxnOp::get(key.as_str(), None);
        let first = first_of(SortOrder::Ascend);
        let first = TxnOp::get(prefix, Some(first));
        let txn = Txn::new()
            .when([Compare::create_revision(key.as_str(), CompareOp::Equal, 0)])
            .and_then([put, own.clone(), first.clone()])
            .or_else([own, first]);
        let entered =
            self.connection.ask(|mut client: Client| async move { client.txn(txn).await });
        let entered = entered.await.inspect_err(|_| {
            // the claim may exist, or the lease is gone
            session.give_up();
        })?;
        let reads: Vec<_> = entered
            .op_responses()
            .into_iter()
            .filter_map(|answer| match answer {
                TxnOpResponse::Get(range) => created_at(&range),
                _ => None,
            })
            .collect();
        let [revision, first] = reads[..] else {
            session.give_up();
            return Err(unavailable("an answer without the claim"));
        };
        let token = token(entered.header(), revision).inspect_err(|_| session.give_up())?;
        Ok((Hold { session, key, token }, first == revision))
    }

    /// Waits until no older claim is left.
    async fn turn(&self, hold: &Hold, prefix: &str) -> Result<(), SaleError> {
        let older =
            first_of(SortOrder::Descend).with_max_create_revision(hold.token.revision() - 1);
        loop {
            let (prefix, older) = (prefix.to_owned(), older.clone());
            let read = |mut client: Client| async move { client.get(prefix, Some(older)).await };
            let mut found = self.connection.ask(read).await?;
            let Some(predecessor) = found.take_kvs().pop() else { break };
            let read_at = found.header().map_or(0, etcd_client::ResponseHeader::revision);
            let (key, _) = predecessor.into_key_value();
            if self.watchers.deleted(key, read_at).await.is_err() {
                sleep(WATCH_PAUSE).await;
            }
        }
        let key = hold.key.clone();
        let own = |mut client: Client| async move { client.get(key, None).await };
        match created_at(&self.connection.ask(own).await?) {
            Some(_) => Ok(()),
            None => Err(unavailable(LockError::Lost)),
        }
    }
}

/// One claim, the oldest or the youngest.
fn first_of(order: SortOrder) -> GetOptions {
    GetOptions::new().with_prefix().with_sort(SortTarget::Create, order).with_limit(1)
}

fn created_at(range: &GetResponse) -> Option<i64> {
    range.kvs().first().map(etcd_client::KeyValue::create_revision)
}
