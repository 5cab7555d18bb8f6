//! The private servers of a lock, and sessions of it, for arena and articles.

use std::time::Duration;

use anyhow::{Context as _, Result};
use fenced_lock::{Promises, Session, SessionOptions};
use futures_util::future::join_all;
use testkit::{
    EtcdOptions, OwnedDir, PostgresOptions, PrivateEtcd, PrivatePostgres, PrivateRedis,
    PrivateZooKeeper, RedisOptions, ZooKeeperOptions,
};

use super::{AnyLock, LockMode, LockServer, Server};
use crate::clients::{Clients, clients_of};

/// Opens a session of the lock at these addresses, as a separate process would.
pub(crate) async fn open(lock: LockMode, addresses: &[String], ttl: Duration) -> Result<Clients> {
    let options = SessionOptions::new(ttl);
    Ok(match AnyLock::at(lock, addresses)? {
        AnyLock::Fenced(lock) => clients_of(Session::open(lock, options).await?),
        AnyLock::Unfenced(lock) => clients_of(Session::open(lock, options).await?),
    })
}

pub(crate) struct Servers {
    pub(crate) lock: LockMode,
    pub(crate) promises: Promises,
    pub(crate) members: Vec<LockServer>,
    addresses: Vec<String>,
    pub(crate) dir: OwnedDir,
}

impl Servers {
    /// Starts the servers. `members` matters only for etcd and ZooKeeper.
    pub(crate) async fn start(lock: LockMode, members: usize, parent: &OwnedDir) -> Result<Self> {
        fn of<S>(kind: fn(S) -> LockServer, servers: Vec<S>) -> Vec<LockServer> {
            servers.into_iter().map(kind).collect()
        }
        let dir = OwnedDir::create_in(parent).context("no temporary directory could be made")?;
        let members = match lock.server() {
            Server::None | Server::Directory => Vec::new(),
            Server::Etcd => {
                let options = EtcdOptions::default();
                let all = PrivateEtcd::start_cluster_in(&dir, members, options).await?;
                of(LockServer::Etcd, all)
            }
            Server::Redis { nodes } => {
                let mut all = Vec::new();
                for _ in 0..nodes {
                    all.push(PrivateRedis::start_in(&dir, RedisOptions::default()).await?);
                }
                of(LockServer::Redis, all)
            }
            Server::Postgres => {
                let options = PostgresOptions { own_data: true, ..PostgresOptions::default() };
                of(LockServer::Postgres, vec![PrivatePostgres::start(options).await?])
            }
            Server::ZooKeeper => {
                let options = ZooKeeperOptions::default();
                let all = PrivateZooKeeper::start_ensemble_in(&dir, members, options).await?;
                of(LockServer::ZooKeeper, all)
            }
        };
        let mut addresses: Vec<_> = members.iter().map(LockServer::address).collect();
        if lock.server() == Server::Directory {
            addresses.push(dir.path().join("locks").display().to_string());
        }
        let promises = AnyLock::at(lock, &addresses)?.promises();
        Ok(Self { lock, promises, members, addresses, dir })
    }

    /// Their addresses, in the form of `--lock-at`.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    /// How many requests all servers have received so far, by their own counters; `None` without such counters. This includes the
    /// requests of this function, the same number each time.
    pub(crate) async fn requests(&self) -> Option<u64> {
        let counts = join_all(self.members.iter().map(LockServer::requests)).await;
        counts.into_iter().reduce(|sum, count| Some(sum? + count?))?
    }

    pub(crate) async fn stop(self) -> Result<()> {
        for server in self.members {
            server.remove().await.context("a server cannot be removed")?;
        }
        self.dir.remove().await.context("the directory of a server cannot be removed")
    }
}
