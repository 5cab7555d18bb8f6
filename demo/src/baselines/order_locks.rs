//! Locks that each order takes for itself: the usual ways on [`etcd`](super::etcd), one of the library, and those
//! within one process.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error, LockOptions};
use fenced_lock::{
    Backend as _, ClusterId, EtcdBackend, EtcdOptions, Guard, LockError, QueueEntry, SessionKeeper,
    Token,
};
use flash_sale::sale::{BoxError, SaleError};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::timeout;

use super::etcd::{Claim, KeptLease};
use super::per_order::OrderLock;

/// etcd, as the usual ways use it.
struct Etcd {
    client: Client,
    /// Reads the queue.
    library: EtcdBackend,
    ttl: Duration,
    /// How long a request may take that does not wait for a lock.
    limit: Duration,
}

impl Etcd {
    async fn connect(options: EtcdOptions, ttl: Duration) -> Result<Self, BoxError> {
        let limit = options.request_timeout;
        let mut connect =
            ConnectOptions::new().with_connect_timeout(limit).with_require_leader(true);
        if let Some(user) = &options.user {
            let (name, password) = user.credentials().await?;
            connect = connect.with_user(name, password).with_auto_token_refresh(true);
        }
        let client = Client::connect(&options.endpoints, Some(connect)).await?;
        Ok(Self { client, library: EtcdBackend::new(options)?, ttl, limit })
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

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, SaleError> {
        self.library.queue(name).await.map_err(unavailable)
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
    pub(super) async fn connect(options: EtcdOptions, ttl: Duration) -> Result<Self, BoxError> {
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
/// client libraries. It has no token, so a sale under it has no order ids and no ledger: a retry buys again, and a
/// holder that was paused can oversell.
pub(super) struct LockCall(Etcd);

impl LockCall {
    pub(super) async fn connect(options: EtcdOptions, ttl: Duration) -> Result<Self, BoxError> {
        Ok(Self(Etcd::connect(options, ttl).await?))
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
        Ok(Called { lease: self.0.lease().await?, name: name.to_owned(), key: None })
    }

    async fn wait(&self, called: &mut Called) -> Result<Option<Token>, SaleError> {
        let options = LockOptions::new().with_lease(called.lease.id);
        let lock = self.0.client.lock_client().lock(&*called.name, Some(options)).await;
        called.key = Some(lock.map_err(unavailable)?.key().to_vec());
        Ok(None)
    }

    async fn withdraw(&self, called: Called) {
        if let Some(key) = called.key
            && let Err(error) = self.0.ask(self.0.client.lock_client().unlock(key)).await
        {
            tracing::warn!(?error, "the lock was not released: it goes with its lease");
        }
        self.0.revoke(&called.lease).await;
    }

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, SaleError> {
        self.0.queue(name).await
    }

    /// Each order has ended its own lease.
    async fn close(&self) {}
}

/// A lock of the library, taken for each order: shows what it costs without combining.
pub(super) struct EachOrder(pub(super) SessionKeeper);

impl OrderLock for EachOrder {
    /// The name of the lock, and the hold once it is granted.
    type Claim = (String, Option<Guard>);

    async fn claim(&self, name: &str) -> Result<Self::Claim, SaleError> {
        Ok((name.to_owned(), None))
    }

    async fn wait(&self, (name, hold): &mut Self::Claim) -> Result<Option<Token>, SaleError> {
        Ok(Some(hold.insert(take(&self.0, name).await?).token()))
    }

    async fn withdraw(&self, (_, hold): Self::Claim) {
        if let Some(guard) = hold
            && let Err(error) = guard.unlock().await
        {
            tracing::debug!(?error, "the release is unknown: the session repeats it");
        }
    }

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, SaleError> {
        let queue = async { self.0.session().await?.mutex(name)?.queue().await };
        queue.await.map_err(unavailable::<LockError>)
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

/// Takes the lock `name` of the library.
pub(super) async fn take(sessions: &SessionKeeper, name: &str) -> Result<Guard, SaleError> {
    let take = async { sessions.session().await?.mutex(name)?.lock().await };
    take.await.map_err(unavailable::<LockError>)
}

/// No lock between the instances: a mutex in this one for each name, or nothing.
pub(super) enum InProcess {
    Mutexes(Mutex<HashMap<String, Arc<Mutex<()>>>>),
    Nothing,
}

impl OrderLock for InProcess {
    /// The mutex, and the hold once it is granted.
    type Claim = Option<(Arc<Mutex<()>>, Option<OwnedMutexGuard<()>>)>;

    async fn claim(&self, name: &str) -> Result<Self::Claim, SaleError> {
        let Self::Mutexes(all) = self else { return Ok(None) };
        let mutex = Arc::clone(all.lock().await.entry(name.to_owned()).or_default());
        Ok(Some((mutex, None)))
    }

    async fn wait(&self, claim: &mut Self::Claim) -> Result<Option<Token>, SaleError> {
        if let Some((mutex, hold)) = claim {
            *hold = Some(Arc::clone(mutex).lock_owned().await);
        }
        Ok(None)
    }

    async fn withdraw(&self, _: Self::Claim) {}

    async fn queue(&self, _: &str) -> Result<Vec<QueueEntry>, SaleError> {
        Ok(Vec::new())
    }

    async fn close(&self) {}
}

fn unavailable<E: Into<BoxError>>(source: E) -> SaleError {
    SaleError::LockUnavailable { source: source.into() }
}
