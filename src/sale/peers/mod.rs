//! Other ways to guard the same sale, to compare with: the ones that are in use elsewhere, each as its
//! own author would tune it.
//!
//! | peer | what one order costs |
//! |---|---|
//! | [`Peer::recipe`] | one claim in etcd: two commits, and for who waits a read and a watcher as well |
//! | [`Peer::rpc`] | one lease in etcd: four commits; GET, SET and INCRBY in Redis |
//! | [`Peer::unguarded`] | no lock: one script in Redis |
//!
//! They share with the product what is not the lock: the plain read before the wait, the waiting
//! room, the time that an order may wait, the store's connection, and (except for the second) the
//! script with its order ids and its ledger. An order is answered before its lock is released, as in
//! the product.

mod connection;
mod lease;
mod limit;
mod recipe;
mod rpc;
mod turn;
mod watchers;

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{BackendError, EtcdBackend, EtcdOptions, Token};

use self::limit::Limit;
use self::recipe::Recipe;
use self::rpc::Rpc;
use super::tenure::lock_name;
use super::{LockMode, QueuedClaim, SaleError};
use crate::inventory::Item;

/// Another way to guard the sale. Clones share everything.
#[derive(Clone)]
pub struct Peer(Kind);

#[derive(Clone)]
enum Kind {
    Recipe(Arc<Recipe>),
    Rpc(Arc<Rpc>),
    Unguarded,
}

/// A lock that one order holds.
enum Hold {
    Recipe(recipe::Hold),
    Rpc(rpc::Hold),
}

impl Peer {
    /// The lock recipe of Go's etcd client, `concurrency.Mutex`: one session, one claim for each order,
    /// and each waiter watches its predecessor.
    ///
    /// # Errors
    /// An endpoint is no URL.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn recipe(etcd: EtcdOptions, ttl: Duration) -> Result<Self, BackendError> {
        EtcdBackend::new(etcd.clone())?;
        Ok(Self(Kind::Recipe(Arc::new(Recipe::new(etcd, ttl)))))
    }

    /// The flow of many an article: for each order a lease of its own, the server's `Lock` call, GET,
    /// SET and INCRBY, `Unlock`, and the lease is revoked. It has no token, no order ids and no ledger,
    /// so a retry buys again and a holder that was paused can oversell.
    ///
    /// # Errors
    /// An endpoint is no URL.
    pub fn rpc(etcd: EtcdOptions, ttl: Duration) -> Result<Self, BackendError> {
        EtcdBackend::new(etcd.clone())?;
        Ok(Self(Kind::Rpc(Arc::new(Rpc::new(etcd, ttl)))))
    }

    /// No lock, and the same script with one order a call. It does not oversell: the script is one
    /// atomic step. It is what the lock is measured against.
    pub fn unguarded() -> Self {
        Self(Kind::Unguarded)
    }

    /// The name of the lock of `item`, if there is a lock.
    pub(super) fn lock_name(&self, base: &str, item: &Item) -> Option<String> {
        match self.0 {
            Kind::Recipe(_) | Kind::Rpc(_) => Some(lock_name(base, item)),
            Kind::Unguarded => None,
        }
    }

    pub(super) fn mode(&self) -> LockMode {
        match self.0 {
            Kind::Recipe(_) => LockMode::EtcdRecipe,
            Kind::Rpc(_) => LockMode::EtcdRpc,
            Kind::Unguarded => LockMode::Unguarded,
        }
    }

    /// The claims on the lock `name`, the holder first; an answer that a majority of etcd agrees on.
    pub(super) async fn queue(&self, name: &str) -> Result<Vec<QueuedClaim>, SaleError> {
        match &self.0 {
            Kind::Recipe(recipe) => recipe.connection().queue(name).await,
            Kind::Rpc(rpc) => rpc.connection().queue(name).await,
            Kind::Unguarded => Ok(Vec::new()),
        }
    }

    /// Gives up the lease, once no order is under way any more.
    pub(super) async fn close(&self) {
        if let Kind::Recipe(recipe) = &self.0 {
            recipe.close().await;
        }
    }

    /// Takes the lock `name`. Whatever it fails with, nothing stays in the queue.
    async fn take(&self, name: &str, limit: &Limit) -> Result<Option<Hold>, SaleError> {
        Ok(match &self.0 {
            Kind::Recipe(recipe) => Some(Hold::Recipe(recipe.take(name, limit).await?)),
            Kind::Rpc(rpc) => Some(Hold::Rpc(rpc.take(name, limit).await?)),
            Kind::Unguarded => None,
        })
    }

    async fn release(&self, hold: Hold) {
        match (&self.0, hold) {
            (Kind::Recipe(recipe), Hold::Recipe(hold)) => recipe.release(&hold).await,
            (Kind::Rpc(rpc), Hold::Rpc(hold)) => rpc.release(hold).await,
            _ => unreachable!("a peer takes holds of its own kind"),
        }
    }

    /// Whether there is no wait that a look at the stock could spare an order: the script says just as
    /// soon that nothing is left.
    pub(super) fn is_one_call(&self) -> bool {
        matches!(self.0, Kind::Unguarded)
    }

    /// Whether it sells in single steps that only the lock keeps together.
    fn is_naive(&self) -> bool {
        matches!(self.0, Kind::Rpc(_))
    }
}

impl Hold {
    fn token(&self) -> Option<Token> {
        match self {
            Self::Recipe(hold) => Some(hold.token()),
            Self::Rpc(_) => None,
        }
    }
}
