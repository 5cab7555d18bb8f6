//! A lock that each order takes for itself, by the recipe of Go's etcd client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Client, Error};
use fenced_lock::{ClusterId, EtcdOptions, LockError, Token};
use flash_sale::sale::{BoxError, SaleError};
use flash_sale::serve::etcd_client;
use tokio::time::Instant;

use super::guards::Turn;
use crate::etcd::{Claim, KeptLease};

/// The recipe of Go's etcd client, `concurrency.Mutex`. There, the lease of the session is the whole key, so a session has one
/// claim on a lock. Here many orders share a session, so each key has a number after the lease: otherwise all these orders
/// would hold the lock at once.
pub(super) struct Recipe {
    client: Client,
    ttl: Duration,
    /// The time limit of a request that does not wait for a lock.
    limit: Duration,
    /// The session, opened on first use and after a loss.
    session: tokio::sync::Mutex<Option<Arc<KeptLease>>>,
    next_number: AtomicU64,
}

impl Recipe {
    pub(super) async fn connect(options: &EtcdOptions, ttl: Duration) -> Result<Self, BoxError> {
        let client = etcd_client(options, &options.endpoints).await?;
        let (session, next_number) = (tokio::sync::Mutex::default(), AtomicU64::new(1));
        Ok(Self { client, ttl, limit: options.request_timeout, session, next_number })
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

    async fn session(&self) -> Result<Arc<KeptLease>, SaleError> {
        let mut session = self.session.lock().await;
        if let Some(open) = &*session {
            return Ok(Arc::clone(open));
        }
        // renewed every third of its TTL, as Go's client does
        let lease = self.ask(KeptLease::grant(&self.client, self.ttl, self.ttl / 3)).await?;
        Ok(Arc::clone(session.insert(Arc::new(lease))))
    }

    /// Makes the next order open another session. A claim that is left behind expires with the lease of this session.
    async fn give_up(&self, lost: &Arc<KeptLease>) {
        self.session.lock().await.take_if(|session| Arc::ptr_eq(session, lost));
    }

    /// Ends the session once no order is in progress. If that fails, the lease expires with all its keys.
    pub(super) async fn close(&self) {
        if let Some(session) = self.session.lock().await.take()
            && let Err(error) = self.ask(session.revoke()).await
        {
            tracing::debug!(lease = session.id, ?error, "a lease was not revoked");
        }
    }

    /// Takes the lock `name` for this turn, and releases it after the turn.
    ///
    /// # Errors
    /// The lock was not granted. No claim on it is left, if the lock service answers.
    pub(super) async fn hold(&self, name: &str, turn: Turn) -> Result<(), SaleError> {
        let asked_at = Instant::now();
        let (client, session) = (&self.client, self.session().await?);
        let key = format!("{:x}-{}", session.id, self.next_number.fetch_add(1, Ordering::Relaxed));
        let claim = match self.ask(Claim::make(client, name, &key, session.id)).await {
            Ok(claim) => claim,
            Err(error) => {
                self.give_up(&session).await;
                return Err(error);
            }
        };
        let granted = async {
            claim.wait(client).await.map_err(unavailable)?;
            if self.ask(claim.is_there(client)).await? {
                let token = Token::new(ClusterId(claim.cluster), claim.revision);
                return Ok(token);
            }
            self.give_up(&session).await;
            Err(unavailable(LockError::Lost { name: name.into(), after: asked_at.elapsed() }))
        };
        let held = turn.take(granted).await;
        if let Err(error) = self.ask(client.kv_client().delete(&*claim.key, None)).await {
            tracing::warn!(?error, "a claim was not deleted: the session is given up");
            self.give_up(&session).await;
        }
        held
    }
}

pub(super) fn unavailable<E: Into<BoxError>>(source: E) -> SaleError {
    SaleError::LockUnavailable { source: source.into() }
}
