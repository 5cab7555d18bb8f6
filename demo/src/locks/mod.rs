//! The locks of the library that a sale can run under, and private servers for them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{
    Backend, BackendError, BackendErrorKind, Ends, EtcdBackend, EtcdOptions, Loss, Order, Promises,
    Token, TokenLife, Unfenced, Wake,
};
#[cfg(feature = "other-locks")]
use fenced_lock::{
    FileBackend, FileOptions, PostgresAdvisoryBackend, PostgresBackend, PostgresOptions,
    PostgresRowBackend, RedisBackend, RedisOptions, RedlockBackend, ZooKeeperBackend,
    ZooKeeperOptions,
};
use flash_sale::inventory::Inventory;
use testkit::postgres::{PostgresOptions as PostgresServer, PrivatePostgres, is_installed};
use testkit::zookeeper::{PrivateZooKeeper, ZooKeeperOptions as ZooKeeperServer};
use testkit::{
    Child, EtcdOptions as EtcdServer, OwnedDir, PrivateEtcd, PrivateRedis, Proxy,
    RedisOptions as RedisServer, ServerError,
};

use crate::baselines::{Fence, LockMode};
use crate::error::DemoError;
use crate::store_fence::StoreFence;

/// The nodes of a private Redlock.
const REDLOCK_NODES: usize = 3;

/// Small beside the TTL of a demo: a key on one node outlives its session by as much.
#[cfg(feature = "other-locks")]
const REDLOCK_TIMEOUT: Duration = Duration::from_millis(150);

/// A lock, with or without tokens.
pub enum AnyLock {
    Fenced(Arc<dyn Backend<Token = Token>>),
    Unfenced(Arc<dyn Backend<Token = Unfenced>>),
}

impl AnyLock {
    /// The lock at these addresses. Not for a sale under etcd, which has flags of its own.
    pub fn at(lock: LockMode, addresses: &[String]) -> Result<Self, BackendError> {
        if addresses.is_empty() {
            let what = format!("the lock {} needs its addresses: --lock-at", lock.name());
            return Err(BackendError::new(BackendErrorKind::Permanent, what));
        }
        Ok(match lock {
            LockMode::Etcd => {
                Self::Fenced(Arc::new(EtcdBackend::new(EtcdOptions::new(addresses))?))
            }
            #[cfg(feature = "other-locks")]
            lock => Self::other(lock, addresses)?,
            #[cfg(not(feature = "other-locks"))]
            lock => {
                let what = format!("this program was built without the lock {}", lock.name());
                return Err(BackendError::new(BackendErrorKind::Permanent, what));
            }
        })
    }

    #[cfg(feature = "other-locks")]
    fn other(lock: LockMode, addresses: &[String]) -> Result<Self, BackendError> {
        let first = &addresses[0];
        Ok(match lock {
            LockMode::Redis => Self::Fenced(Arc::new(RedisBackend::new(RedisOptions::new(first))?)),
            LockMode::Redlock => {
                let node = |url: &String| RedisOptions {
                    request_timeout: REDLOCK_TIMEOUT,
                    ..RedisOptions::new(url)
                };
                let nodes: Vec<_> = addresses.iter().map(node).collect();
                Self::Unfenced(Arc::new(RedlockBackend::new(nodes)?))
            }
            LockMode::Postgres => {
                Self::Fenced(Arc::new(PostgresBackend::new(&PostgresOptions::new(first))?))
            }
            LockMode::PostgresAdvisory => {
                Self::Fenced(Arc::new(PostgresAdvisoryBackend::new(&PostgresOptions::new(first))?))
            }
            LockMode::PostgresRow => {
                Self::Fenced(Arc::new(PostgresRowBackend::new(&PostgresOptions::new(first))?))
            }
            LockMode::ZooKeeper => {
                let options = ZooKeeperOptions::new(addresses.join(","));
                Self::Fenced(Arc::new(ZooKeeperBackend::new(options)?))
            }
            _ => Self::Fenced(Arc::new(FileBackend::new(FileOptions::new(first))?)),
        })
    }

    /// What the lock promises, without the tokens that a store adds.
    pub fn promises(&self) -> Promises {
        match self {
            Self::Fenced(lock) => lock.promises(),
            Self::Unfenced(lock) => lock.promises(),
        }
    }

    /// The lock with the tokens of this fence: its own ones if it has any, unless the store's are asked for.
    pub fn fenced_by(
        self,
        fence: Option<Fence>,
        inventory: &Inventory,
        name: &str,
    ) -> Result<Arc<dyn Backend<Token = Token>>, BackendError> {
        let inventory = inventory.clone();
        Ok(match self {
            Self::Unfenced(_) if fence == Some(Fence::Lock) => {
                let what = "this lock has no tokens: choose --fence store or none";
                return Err(BackendError::new(BackendErrorKind::Permanent, what));
            }
            Self::Fenced(lock) if fence == Some(Fence::Store) => {
                Arc::new(StoreFence::new(lock, inventory, name))
            }
            Self::Fenced(lock) => lock,
            Self::Unfenced(lock) => Arc::new(StoreFence::new(lock, inventory, name)),
        })
    }
}

/// The promises of a lock in a few words each, for the page and the tables.
pub fn in_words(promises: Promises) -> [&'static str; 5] {
    let Promises { order, wake, token, ends, loss, .. } = promises;
    [
        match order {
            Order::Fifo => "in order",
            Order::Arrival => "in order of arrival",
            Order::Unordered => "no order",
        },
        match wake {
            Wake::Pushed => "waiters told at once",
            Wake::ServerWait => "waiters wait at the server",
            Wake::Polled => "waiters ask again",
        },
        match token {
            TokenLife::Durable => "durable tokens",
            TokenLife::Volatile => "volatile tokens",
            TokenLife::None => "no tokens",
        },
        match ends {
            Ends::Lease(_) => "ends with its lease",
            Ends::Process => "ends with its process",
        },
        match loss {
            Loss::Pushed => "loss told at once",
            Loss::AtRenewal => "loss told at renewal",
            Loss::Never => "loss not told",
        },
    ]
}

/// The private servers of a lock.
#[derive(Debug)]
pub enum LockServers {
    /// The sale has its etcd, or the lock needs no server.
    None(Vec<String>),
    Etcd(Vec<PrivateEtcd>),
    Redis(Vec<PrivateRedis>),
    Postgres(Box<PrivatePostgres>),
    ZooKeeper(Vec<PrivateZooKeeper>),
}

impl LockServers {
    /// Starts what a sale under this lock needs besides its etcd, in a directory in `parent`.
    pub async fn start(lock: LockMode, parent: &OwnedDir) -> Result<Self, DemoError> {
        match lock {
            LockMode::Etcd => Ok(Self::None(Vec::new())),
            _ => Self::start_members(lock, 1, parent).await,
        }
    }

    /// Starts what this lock needs. `members` counts for etcd and ZooKeeper only.
    pub async fn start_members(
        lock: LockMode,
        members: usize,
        parent: &OwnedDir,
    ) -> Result<Self, DemoError> {
        Ok(match lock {
            LockMode::Etcd => {
                let options = EtcdServer::default();
                Self::Etcd(PrivateEtcd::start_cluster_in(parent, members, options).await?)
            }
            LockMode::Redis | LockMode::RedisSetNx => Self::Redis(vec![redis(parent).await?]),
            LockMode::Redlock => {
                let mut nodes = Vec::new();
                for _ in 0..REDLOCK_NODES {
                    nodes.push(redis(parent).await?);
                }
                Self::Redis(nodes)
            }
            _ if lock.is_postgres() => {
                Self::Postgres(Box::new(PrivatePostgres::start(PostgresServer::default()).await?))
            }
            LockMode::ZooKeeper => {
                let options = ZooKeeperServer::default();
                Self::ZooKeeper(
                    PrivateZooKeeper::start_ensemble_in(parent, members, options).await?,
                )
            }
            LockMode::File => Self::None(vec![parent.path().join("locks").display().to_string()]),
            _ => Self::None(Vec::new()),
        })
    }

    /// The server that this lock needs and this machine lacks.
    pub fn missing(lock: LockMode) -> Option<&'static str> {
        match lock {
            _ if lock.is_postgres() && !is_installed() => Some("PostgreSQL"),
            LockMode::ZooKeeper if !PrivateZooKeeper::is_installed() => Some("ZooKeeper"),
            _ => None,
        }
    }

    /// Where it is, as for `--lock-at`.
    pub fn addresses(&self) -> Vec<String> {
        match self {
            Self::None(addresses) => addresses.clone(),
            Self::Etcd(members) => members.iter().map(PrivateEtcd::endpoint).collect(),
            Self::Redis(nodes) => {
                nodes.iter().map(|node| format!("redis://127.0.0.1:{}", node.port())).collect()
            }
            Self::Postgres(server) => vec![server.url()],
            Self::ZooKeeper(members) => members.iter().map(PrivateZooKeeper::address).collect(),
        }
    }

    /// Waits until their processes and files are gone.
    pub async fn remove(self) -> io::Result<()> {
        match self {
            // in the directory in which they were started
            Self::None(_) | Self::Etcd(_) | Self::Redis(_) | Self::ZooKeeper(_) => Ok(()),
            Self::Postgres(server) => server.stop().await,
        }
    }

    /// Their processes, with their names.
    pub fn children(&mut self) -> Vec<(&'static str, &mut Child)> {
        match self {
            Self::None(_) => Vec::new(),
            Self::Etcd(members) => {
                members.iter_mut().map(|member| ("the lock's etcd", member.child())).collect()
            }
            Self::Redis(nodes) => {
                nodes.iter_mut().map(|node| ("the lock's Redis", node.child())).collect()
            }
            Self::Postgres(server) => vec![("PostgreSQL", server.child())],
            Self::ZooKeeper(members) => {
                members.iter_mut().map(|member| ("ZooKeeper", member.child())).collect()
            }
        }
    }
}

/// A way to a server on which a process can be paused or cut off: it sends nothing while the proxy holds everything up.
pub async fn proxy_to(port: u16) -> Result<Proxy, DemoError> {
    Proxy::to(port).await.map_err(DemoError::system("a proxy has no port"))
}

async fn redis(parent: &OwnedDir) -> Result<PrivateRedis, ServerError> {
    PrivateRedis::start_in(parent, RedisServer::default()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a lock without its addresses is refused, with the flag that gives them.
    #[test]
    fn addresses_are_needed() {
        for lock in LockMode::SHARED {
            let refused = AnyLock::at(lock, &[]).err().expect("there is no address");
            assert!(refused.to_string().contains("--lock-at"), "{refused}");
        }
    }
}
