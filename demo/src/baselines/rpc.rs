//! The flow of many articles on locks with etcd: a lease and a call of the server's own `Lock` for
//! each order.
//!
//! Its sources are the etcd documentation of the `v3lock` service (`Lock`, `Unlock`) and the examples
//! of its client libraries. For each order: grant a lease, keep it alive, `Lock` under that lease, GET,
//! SET and INCRBY, `Unlock`, revoke.
//!
//! Why it is slow: four commits for each order (grant, claim, unlock, revoke), and the server waits in
//! the same way as the [recipe](super::recipe), with a watcher for each waiter that is served every
//! 100 ms. While it waits, each call has a stream of its own. So many of them on one connection keep the
//! calls of the holder waiting; they go through a second connection here.
//!
//! The keep-alive of a lease begins with its first renewal, after a third of the TTL: an order that was
//! served by then needs none.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, LockOptions};
use fenced_lock::{EtcdOptions, QueueEntry, Token};
use flash_sale::sale::SaleError;

use super::connection::{Connection, unavailable};
use super::lease::KeptLease;
use super::per_order::{Limit, OrderLock};

/// The classic flow, for one process.
pub(super) struct Rpc {
    /// For the calls that wait.
    waiting: Connection,
    /// For all others.
    control: Arc<Connection>,
    ttl: Duration,
}

/// The lock, held by one order.
pub(super) struct Hold {
    lease: KeptLease,
    key: Vec<u8>,
}

impl Rpc {
    pub(super) fn new(etcd: EtcdOptions, ttl: Duration) -> Self {
        let control = Arc::new(Connection::new(etcd.clone()));
        Self { waiting: Connection::new(etcd), control, ttl }
    }
}

impl OrderLock for Rpc {
    type Hold = Hold;

    async fn take(&self, name: &str, limit: &Limit) -> Result<Hold, SaleError> {
        let lease = KeptLease::grant(&self.control, self.ttl).await?;
        let options = LockOptions::new().with_lease(lease.id());
        let lock = async {
            let mut client = self.waiting.client().await.map_err(unavailable)?;
            client.lock(name, Some(options)).await.map_err(unavailable)
        };
        match limit.wait(lock).await {
            Ok(locked) => Ok(Hold { lease, key: locked.key().to_vec() }),
            Err(error) => {
                // the claim goes with its lease
                lease.end().await;
                Err(error)
            }
        }
    }

    async fn release(&self, hold: Hold) {
        let Hold { lease, key } = hold;
        let unlock = |mut client: Client| async move { client.unlock(key).await };
        if let Err(error) = self.control.ask(unlock).await {
            tracing::warn!(?error, "the lock was not released: it goes with its lease");
        }
        lease.end().await;
    }

    fn token(_: &Hold) -> Option<Token> {
        None
    }

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, SaleError> {
        self.control.queue(name).await
    }

    /// Each order has ended its own lease.
    async fn close(&self) {}
}
