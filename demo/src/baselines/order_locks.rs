//! Locks that each order takes for itself: the two usual ways on [`etcd`](super::etcd), and locks within one process.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Client, Error, LockOptions};
use fenced_lock::{ClusterId, EtcdOptions, LockError, Token};
use flash_sale::sale::{BoxError, SaleError};
use flash_sale::serve::etcd_client;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::etcd::{Claim, KeptLease};
use super::per_order::Turn;

/// A lock that one order holds at a time.
pub(super) enum OrderLock {
    None,
    /// A mutex in this process for each name.
    Local(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>),
    /// The recipe of Go's etcd client.
    Recipe(Recipe),
    /// The server's own `Lock` call.
    Call(Etcd),
}

impl OrderLock {
    /// Takes the lock `name` for this turn, and releases it after the turn.
    ///
    /// # Errors
    /// The lock was not granted. No claim on it is left, if the lock service answers.
    pub(super) async fn hold(&self, name: &str, turn: Turn) -> Result<(), SaleError> {
        match self {
            Self::None => turn.take(async { Ok((None, ())) }).await,
            Self::Local(mutexes) => {
                let mutex = Arc::clone(mutexes.lock().entry(name.to_owned()).or_default());
                turn.take(async { Ok((None, mutex.lock().await)) }).await.map(drop)
            }
            Self::Recipe(recipe) => recipe.hold(name, turn).await,
            Self::Call(etcd) => hold_by_call(etcd, name, turn).await,
        }
    }

    /// Ends the session of the recipe once no order is in progress.
    pub(super) async fn close(&self) {
        if let Self::Recipe(Recipe { etcd, session, .. }) = self
            && let Some(session) = session.lock().await.take()
        {
            etcd.revoke(&session).await;
        }
    }
}

/// What the two usual ways to lock with etcd share.
pub(super) struct Etcd {
    client: Client,
    ttl: Duration,
    /// The time limit of a request that does not wait for a lock.
    limit: Duration,
}

impl Etcd {
    pub(super) async fn connect(options: &EtcdOptions, ttl: Duration) -> Result<Self, BoxError> {
        let client = etcd_client(options, &options.endpoints).await?;
        let limit = options.request_timeout;
        Ok(Self { client, ttl, limit })
    }

    async fn ask<T>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, SaleError> {
        match tokio::time::timeout(self.limit, request).await {
            Ok(answer) => answer.map_err(unavailable),
            Err(elapsed) => Err(unavailable(elapsed)),
        }
    }

    /// A lease, renewed every third of its TTL, as Go's client does.
    async fn lease(&self) -> Result<KeptLease, SaleError> {
        self.ask(KeptLease::grant(&self.client, self.ttl, self.ttl / 3)).await
    }

    /// Ends the lease. If that fails, the lease expires with all its keys.
    async fn revoke(&self, lease: &KeptLease) {
        if let Err(error) = self.ask(lease.revoke()).await {
            tracing::debug!(lease = lease.id, ?error, "a lease was not revoked");
        }
    }
}

/// The recipe of Go's etcd client, `concurrency.Mutex`. There the key is the lease of the session, so a session has one claim on
/// a lock. Here many orders share a session, so a number follows the lease: otherwise all these orders would hold the lock at
/// once.
pub(super) struct Recipe {
    etcd: Etcd,
    /// Opened on first use, and again after a loss.
    session: tokio::sync::Mutex<Option<Arc<KeptLease>>>,
    next_number: AtomicU64,
}

impl Recipe {
    pub(super) fn new(etcd: Etcd) -> Self {
        Self { etcd, session: tokio::sync::Mutex::default(), next_number: AtomicU64::new(1) }
    }

    async fn session(&self) -> Result<Arc<KeptLease>, SaleError> {
        let mut session = self.session.lock().await;
        if let Some(open) = &*session {
            return Ok(Arc::clone(open));
        }
        Ok(Arc::clone(session.insert(Arc::new(self.etcd.lease().await?))))
    }

    /// Makes the next order open another session. A claim that may be left expires with the lease of this one.
    async fn give_up(&self, lost: &Arc<KeptLease>) {
        self.session.lock().await.take_if(|session| Arc::ptr_eq(session, lost));
    }

    async fn hold(&self, name: &str, turn: Turn) -> Result<(), SaleError> {
        let asked_at = Instant::now();
        let (etcd, client, session) = (&self.etcd, &self.etcd.client, self.session().await?);
        let key = format!("{:x}-{}", session.id, self.next_number.fetch_add(1, Ordering::Relaxed));
        let claim = match etcd.ask(Claim::make(client, name, &key, session.id)).await {
            Ok(claim) => claim,
            Err(error) => {
                self.give_up(&session).await;
                return Err(error);
            }
        };
        let granted = async {
            claim.wait(client).await.map_err(unavailable)?;
            if etcd.ask(claim.is_there(client)).await? {
                let token = Token::new(ClusterId(claim.cluster), claim.revision);
                return Ok((Some(token), ()));
            }
            self.give_up(&session).await;
            Err(unavailable(LockError::Lost { name: name.into(), after: asked_at.elapsed() }))
        };
        let held = turn.take(granted).await;
        if let Err(error) = etcd.ask(client.kv_client().delete(&*claim.key, None)).await {
            tracing::warn!(?error, "a claim was not deleted: the session is given up");
            self.give_up(&session).await;
        }
        held
    }
}

/// Takes the lock by the server's own `Lock` call, under a lease for each order, as in etcd's documentation of `v3lock` and the
/// examples of client libraries. This lock has no token, so a sale under it has no order ids and no ledger: a retry buys again,
/// and a holder that was paused can oversell.
async fn hold_by_call(etcd: &Etcd, name: &str, turn: Turn) -> Result<(), SaleError> {
    let lease = etcd.lease().await?;
    let granted = async {
        let options = LockOptions::new().with_lease(lease.id);
        let lock = etcd.client.lock_client().lock(name, Some(options)).await;
        Ok((None, lock.map_err(unavailable)?.key().to_vec()))
    };
    let held = turn.take(granted).await;
    if let Ok(key) = &held
        && let Err(error) = etcd.ask(etcd.client.lock_client().unlock(key.clone())).await
    {
        tracing::warn!(?error, "the lock was not released: it ends with its lease");
    }
    etcd.revoke(&lease).await;
    held.map(drop)
}

pub(super) fn unavailable<E: Into<BoxError>>(source: E) -> SaleError {
    SaleError::LockUnavailable { source: source.into() }
}
