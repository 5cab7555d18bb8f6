//! The two usual ways to lock with etcd, in their plainest form. The bench and the locks of the articles use them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use etcd_client::{
    Client, Error, EventType, GetOptions, PutOptions, ResponseHeader, SortOrder, SortTarget, Txn,
    TxnOp, TxnOpResponse, WatchOptions,
};
use tokio::time::{Instant, interval_at};
use tokio_util::task::AbortOnDropHandle;

/// A lease, and a task that keeps renewing it, even after a renewal failed.
pub(crate) struct KeptLease {
    pub(crate) id: i64,
    client: Client,
    failed_renewals: Arc<AtomicU32>,
    _renewal: AbortOnDropHandle<()>,
}

impl KeptLease {
    pub(crate) async fn grant(
        client: &Client,
        ttl: Duration,
        every: Duration,
    ) -> Result<Self, Error> {
        let seconds = i64::try_from(ttl.as_secs().max(1)).unwrap_or(i64::MAX);
        let id = client.lease_client().grant(seconds, None).await?.id();
        let failed_renewals = Arc::<AtomicU32>::default();
        let (own, failed) = (client.clone(), Arc::clone(&failed_renewals));
        let renewal = tokio::spawn(async move {
            let mut ticks = interval_at(Instant::now() + every, every);
            loop {
                ticks.tick().await;
                if renew(&own, id).await.is_err() {
                    failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let renewal = AbortOnDropHandle::new(renewal);
        Ok(Self { id, client: client.clone(), failed_renewals, _renewal: renewal })
    }

    pub(crate) fn failed_renewals(&self) -> u32 {
        self.failed_renewals.load(Ordering::Relaxed)
    }

    /// Ends the lease, and deletes the keys that are attached to it.
    pub(crate) async fn revoke(&self) -> Result<(), Error> {
        self.client.lease_client().revoke(self.id).await.map(drop)
    }
}

async fn renew(client: &Client, lease: i64) -> Result<(), Error> {
    let (mut keeper, mut answers) = client.lease_client().keep_alive(lease).await?;
    keeper.keep_alive().await?;
    answers.message().await.map(drop)
}

/// A claim by the recipe of etcd's Go client, `concurrency.Mutex`: a key under a lease. The oldest key of a name holds the lock.
pub(crate) struct Claim {
    pub(crate) key: String,
    prefix: String,
    /// The revision at which the key was made: the claim's token.
    pub(crate) revision: i64,
    pub(crate) cluster: u64,
    is_first: bool,
}

impl Claim {
    /// Makes the claim, whose key must be new, and reads which claim is first.
    pub(crate) async fn make(
        client: &Client,
        name: &str,
        key: &str,
        lease: i64,
    ) -> Result<Self, Error> {
        let prefix = format!("{name}/");
        let key = format!("{prefix}{key}");
        let put = TxnOp::put(&*key, "", Some(PutOptions::new().with_lease(lease)));
        let first = TxnOp::get(&*prefix, Some(one_of(SortOrder::Ascend)));
        let made = client.kv_client().txn(Txn::new().and_then([put, first])).await?;
        let header = made.header().map(|header| (header.cluster_id(), header.revision()));
        let (cluster, revision) = header.unwrap_or_default();
        let is_first = made.op_responses().iter().any(|answer| match answer {
            TxnOpResponse::Get(first) => {
                first.kvs().iter().any(|kv| kv.create_revision() == revision)
            }
            _ => false,
        });
        Ok(Self { key, prefix, revision, cluster, is_first })
    }

    /// Waits until no older claim is left: watches the youngest older claim, and looks again when it is gone.
    pub(crate) async fn wait(&self, client: &Client) -> Result<(), Error> {
        if self.is_first {
            return Ok(());
        }
        let older = one_of(SortOrder::Descend).with_max_create_revision(self.revision - 1);
        loop {
            let found = client.kv_client().get(&*self.prefix, Some(older.clone())).await?;
            let Some(before) = found.kvs().first() else { return Ok(()) };
            // as in Go's client, a revision in the past: etcd serves such a watcher only every 100 ms
            let read_at = found.header().map_or(0, ResponseHeader::revision);
            let options = WatchOptions::new().with_start_revision(read_at);
            let mut watch = client.watch_client().watch(before.key(), Some(options)).await?;
            while let Some(change) = watch.message().await? {
                if change.events().iter().any(|event| event.event_type() == EventType::Delete) {
                    break;
                }
            }
        }
    }

    pub(crate) async fn is_there(&self, client: &Client) -> Result<bool, Error> {
        Ok(!client.kv_client().get(&*self.key, None).await?.kvs().is_empty())
    }
}

/// One claim, the oldest or the youngest.
fn one_of(order: SortOrder) -> GetOptions {
    GetOptions::new().with_prefix().with_sort(SortTarget::Create, order).with_limit(1)
}
