//! The locks on etcd.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use etcd_client::{Client as Etcd, Error, GetOptions, LockOptions};
use fenced_lock::Token;
use uuid::Uuid;

use super::{Article, Part, Role};
use crate::clients::Client;
use crate::etcd::{Claim, KeptLease};

/// The TTL of a lease that ends during a story, or needs renewal. The articles have 10 to 30 s.
const SHORT: Duration = Duration::from_secs(2);

/// The TTL of other leases.
const LONG: Duration = Duration::from_mins(1);

/// The locks that are a key under a lease.
///
/// - `etcd-lock-call`: etcd's own `Lock` call: "etcd：一款比Redis更骚的分布式锁的实现方式！" (a lock "cooler than Redis"), a flash sale of 300
///   units with a Redis stock under jetcd, and its many copies. One request renews the lease every 80 % of its TTL, whatever its
///   answer; and `lock` only logs a failure, so that it returns as if it had the lock.
/// - `etcd-own-key`: a key for each client, in the order of their revisions; each client watches its predecessor: the flow that
///   the same article describes before it takes the `Lock` call, and the first way of "基于 Etcd 的分布式锁实现原理及方案" (how locks on etcd
///   work). When the predecessor goes, the lock counts as acquired, though the client's own key may have gone meanwhile. The
///   server itself had this fault: etcd#11456, "Locks return without checking whether the lease is still held".
pub(super) struct LeasedKey {
    article: Article,
    etcd: Box<Etcd>,
    name: String,
    ttl: Duration,
    lease: Option<KeptLease>,
    key: Option<Vec<u8>>,
}

impl LeasedKey {
    pub(super) async fn open(part: &Part<'_>) -> Result<Self> {
        // boxed because it is large
        let etcd = Box::new(Box::pin(Etcd::connect(&part.at, None)).await?);
        let is_call = part.article == Article::EtcdLockCall;
        let ttl = if is_call || part.role == Role::First { SHORT } else { LONG };
        let (article, name) = (part.article, part.lock.to_owned());
        Ok(Self { article, etcd, name, ttl, lease: None, key: None })
    }

    async fn call(&mut self) -> Result<(), Error> {
        let lease = KeptLease::grant(&self.etcd, self.ttl, self.ttl.mul_f64(0.8)).await?;
        let options = LockOptions::new().with_lease(lease.id);
        self.lease = Some(lease);
        self.key = Some(self.etcd.lock(&*self.name, Some(options)).await?.key().to_vec());
        Ok(())
    }

    async fn wait_in_row(&mut self) -> Result<(), Error> {
        // a waiter loses its lease, as if its heartbeats were lost
        let lease = KeptLease::grant(&self.etcd, self.ttl, LONG).await?;
        let key = Uuid::new_v4().to_string();
        let claim = Claim::make(&self.etcd, &self.name, &key, lease.id).await?;
        self.lease = Some(lease);
        claim.wait(&self.etcd).await?;
        self.key = Some(claim.key.into_bytes());
        Ok(())
    }
}

#[async_trait]
impl Client for LeasedKey {
    async fn lock(&mut self) -> Result<Option<Token>> {
        if self.article == Article::EtcdOwnKey {
            self.wait_in_row().await?;
        } else if let Err(error) = self.call().await {
            tracing::debug!(%error, "lock failed");
        }
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<()> {
        if let Some((lease, key)) = self.lease.take().zip(self.key.take()) {
            // this deletes the claim's key
            self.etcd.unlock(key).await?;
            lease.revoke().await?;
        }
        Ok(())
    }

    fn has_noticed_outage(&self) -> bool {
        self.lease.as_ref().is_none_or(|lease| lease.failed_renewals() > 0)
    }

    async fn queue_length(&mut self) -> Result<usize> {
        let all = GetOptions::new().with_prefix().with_count_only();
        let count = self.etcd.get(format!("{}/", self.name), Some(all)).await?.count();
        Ok(usize::try_from(count).unwrap_or_default())
    }
}
