//! The ways of [`etcd`](super::etcd) to lock, as locks of a sale.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Client, Error, GetOptions, LockOptions, ResponseHeader, SortOrder, SortTarget};
use fenced_lock::{ClusterId, EtcdOptions, LockError, QueueEntry, Token};
use flash_sale::sale::SaleError;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::etcd::{Claim, KeptLease};
use super::per_order::OrderLock;

/// etcd, as both use it.
struct Etcd {
    client: Client,
    ttl: Duration,
    /// How long a request may take that does not wait for a lock.
    limit: Duration,
}

impl Etcd {
    async fn connect(options: &EtcdOptions, ttl: Duration) -> Result<Self, Error> {
        let client = options.connect().await?;
        Ok(Self { client, ttl, limit: options.request_timeout })
    }

    async fn ask<T>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, SaleError> {
        match timeout(self.limit, request).await {
            Ok(answer) => answer.map_err(unavailable),
            Err(elapsed) => Err(unavailable(elapsed)),
        }
    }

    /// A lease, renewed every third of its TTL, as Go's client does.
    async fn lease(&self) -> Result<KeptLease, SaleError> {
        self.ask(KeptLease::grant(&self.client, self.ttl, self.ttl / 3)).await
    }

    /// Whatever it held expires with its TTL if that fails.
    async fn revoke(&self, lease: &KeptLease) {
        if let Err(error) = self.ask(lease.revoke()).await {
            tracing::debug!(lease = lease.id, ?error, "a lease was not revoked");
        }
    }

    /// The claims on the lock `name`, the holder first.
    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, SaleError> {
        let by_age =
            GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
        let prefix = format!("{name}/");
        let found = self.ask(self.client.kv_client().get(&*prefix, Some(by_age))).await?;
        let cluster = found.header().map_or(0, ResponseHeader::cluster_id);
        // what has another slash is a claim on another lock
        let claims = found.kvs().iter().filter(|kv| !kv.key()[prefix.len()..].contains(&b'/'));
        let entry = |kv: &etcd_client::KeyValue| QueueEntry {
            token: Some(Token::new(ClusterId(cluster), kv.create_revision())),
            key: String::from_utf8_lossy(kv.key()).into_owned(),
            lease: kv.lease(),
            label: None,
            age: None,
        };
        Ok(claims.map(entry).collect())
    }
}

/// The recipe of Go's etcd client, `concurrency.Mutex`. Its key is the lease of the session, so a session has one claim
/// on a lock; many orders of one process need a number behind it, or they would all hold the lock at once.
pub(super) struct Recipe {
    etcd: Etcd,
    /// Opened on first use, and again after a loss.
    session: Mutex<Option<Arc<KeptLease>>>,
    next_number: AtomicU64,
}

impl Recipe {
    pub(super) async fn connect(options: &EtcdOptions, ttl: Duration) -> Result<Self, Error> {
        let etcd = Etcd::connect(options, ttl).await?;
        Ok(Self { etcd, session: Mutex::new(None), next_number: AtomicU64::new(1) })
    }

    async fn session(&self) -> Result<Arc<KeptLease>, SaleError> {
        let mut session = self.session.lock().await;
        if let Some(open) = &*session {
            return Ok(Arc::clone(open));
        }
        Ok(Arc::clone(session.insert(Arc::new(self.etcd.lease().await?))))
    }

    /// The next order opens another one. A claim that may be left expires with this one's lease.
    async fn give_up(&self, lost: &Arc<KeptLease>) {
        self.session.lock().await.take_if(|session| Arc::ptr_eq(session, lost));
    }
}

impl OrderLock for Recipe {
    type Claim = (Arc<KeptLease>, Claim);

    async fn claim(&self, name: &str) -> Result<Self::Claim, SaleError> {
        let session = self.session().await?;
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let key = format!("{:x}-{number}", session.id);
        match self.etcd.ask(Claim::make(&self.etcd.client, name, &key, session.id)).await {
            Ok(claim) => Ok((session, claim)),
            Err(error) => {
                self.give_up(&session).await;
                Err(error)
            }
        }
    }

    async fn wait(&self, (session, claim): &mut Self::Claim) -> Result<Option<Token>, SaleError> {
        claim.wait(&self.etcd.client).await.map_err(unavailable)?;
        if self.etcd.ask(claim.is_there(&self.etcd.client)).await? {
            return Ok(Some(Token::new(ClusterId(claim.cluster), claim.revision)));
        }
        self.give_up(session).await;
        Err(unavailable(LockError::Lost))
    }

    async fn withdraw(&self, (session, claim): Self::Claim) {
        if let Err(error) =
            self.etcd.ask(self.etcd.client.kv_client().delete(claim.key, None)).await
        {
            tracing::warn!(?error, "a claim was not deleted: the session is given up");
            self.give_up(&session).await;
        }
    }

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, SaleError> {
        self.etcd.queue(name).await
    }

    async fn close(&self) {
        if let Some(session) = self.session.lock().await.take() {
            self.etcd.revoke(&session).await;
        }
    }
}

/// The server's own `Lock` call, under a lease for each order: the etcd documentation of `v3lock`, and the examples of
/// client libraries.
pub(super) struct LockCall {
    etcd: Etcd,
}

impl LockCall {
    pub(super) async fn connect(options: &EtcdOptions, ttl: Duration) -> Result<Self, Error> {
        Ok(Self { etcd: Etcd::connect(options, ttl).await? })
    }
}

/// A claim by the `Lock` call.
pub(super) struct Called {
    lease: KeptLease,
    name: String,
    /// Once it has the lock.
    key: Option<Vec<u8>>,
}

impl OrderLock for LockCall {
    type Claim = Called;

    async fn claim(&self, name: &str) -> Result<Called, SaleError> {
        Ok(Called { lease: self.etcd.lease().await?, name: name.to_owned(), key: None })
    }

    async fn wait(&self, called: &mut Called) -> Result<Option<Token>, SaleError> {
        let options = LockOptions::new().with_lease(called.lease.id);
        let lock = self.etcd.client.lock_client().lock(&*called.name, Some(options)).await;
        called.key = Some(lock.map_err(unavailable)?.key().to_vec());
        Ok(None)
    }

    async fn withdraw(&self, called: Called) {
        if let Some(key) = called.key
            && let Err(error) = self.etcd.ask(self.etcd.client.lock_client().unlock(key)).await
        {
            tracing::warn!(?error, "the lock was not released: it goes with its lease");
        }
        self.etcd.revoke(&called.lease).await;
    }

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, SaleError> {
        self.etcd.queue(name).await
    }

    /// Each order has ended its own lease.
    async fn close(&self) {}
}

pub(super) fn unavailable(
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> SaleError {
    SaleError::LockUnavailable { source: source.into() }
}
