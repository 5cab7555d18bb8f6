//! The locks of the library that can guard a sale, and private servers for them.

mod decorated;
mod lock_server;
mod registry;
mod servers;
mod store_fence;

use std::sync::Arc;

use anyhow::{Result, bail};
use fenced_lock::{
    Backend, Ends, EtcdBackend, EtcdOptions, Loss, Order, Promises, Token, TokenLife, Unfenced,
    Wake,
};
use flash_sale::inventory::Inventory;

pub use self::decorated::{Decorated, Decoration};
pub use self::lock_server::LockServer;
pub use self::registry::{Fence, LockMode, Server};
pub(crate) use self::servers::{Servers, open};
pub use self::store_fence::{STORE, StoreFence};

/// A lock, with or without tokens.
pub enum AnyLock {
    Fenced(Arc<dyn Backend<Token = Token>>),
    Unfenced(Arc<dyn Backend<Token = Unfenced>>),
}

impl AnyLock {
    /// The lock at these addresses. Refuses etcd, which has separate flags.
    pub fn at(lock: LockMode, addresses: &[String]) -> Result<Self> {
        let name = lock.name();
        if addresses.is_empty() {
            bail!("the lock {name} needs its addresses: --lock-at");
        }
        match lock {
            LockMode::Etcd => {
                Ok(Self::Fenced(Arc::new(EtcdBackend::new(EtcdOptions::new(addresses))?)))
            }
            _ => registry::open(lock, addresses),
        }
    }

    /// The promises of the lock itself, without tokens that a store adds.
    pub fn promises(&self) -> Promises {
        match self {
            Self::Fenced(lock) => lock.promises(),
            Self::Unfenced(lock) => lock.promises(),
        }
    }

    /// The lock with the tokens of this fence, which are the lock's own or come from the store.
    pub fn fenced_by(
        self,
        fence: Option<Fence>,
        inventory: &Inventory,
        name: &str,
    ) -> Result<Arc<dyn Backend<Token = Token>>> {
        let inventory = inventory.clone();
        Ok(match self {
            Self::Unfenced(_) if fence == Some(Fence::Lock) => {
                bail!("this lock has no tokens: choose --fence store or none")
            }
            Self::Fenced(lock) if fence == Some(Fence::Store) => {
                Arc::new(StoreFence::new(lock, inventory, name))
            }
            Self::Fenced(lock) => lock,
            Self::Unfenced(lock) => Arc::new(StoreFence::new(lock, inventory, name)),
        })
    }
}

/// The promises of a lock, in a few words each, for the page and the tables.
pub fn in_words(promises: Promises) -> [&'static str; 5] {
    let Promises { order, wake, token, ends, loss, .. } = promises;
    [
        match order {
            Order::Fifo => "in order",
            Order::Arrival => "in order of arrival",
            _ => "no order",
        },
        match wake {
            Wake::Pushed => "waiters told at once",
            Wake::ServerWait => "waiters wait at the server",
            _ => "waiters ask again",
        },
        match token {
            TokenLife::Durable => "durable tokens",
            TokenLife::Volatile => "volatile tokens",
            _ => "no tokens",
        },
        match ends {
            Ends::Process => "ends with its process",
            _ => "ends with its lease",
        },
        match loss {
            Loss::Pushed => "loss told at once",
            Loss::AtRenewal => "loss told at renewal",
            _ => "loss not told",
        },
    ]
}
