//! The private servers of a lock.

use std::io;

use anyhow::Result;
use testkit::{
    Child, EtcdOptions, OwnedDir, PostgresOptions, PrivateEtcd, PrivatePostgres, PrivateRedis,
    PrivateZooKeeper, RedisOptions, ZooKeeperOptions,
};

use super::lock_server::LockServer;
use super::{LockMode, Server};

/// The private servers of a lock.
#[derive(Debug, Default)]
pub struct LockServers {
    pub members: Vec<LockServer>,
    /// The directory of a lock without servers.
    directory: Option<String>,
}

impl LockServers {
    /// Servers of one kind that run already.
    pub fn of<S>(kind: fn(S) -> LockServer, servers: Vec<S>) -> Self {
        Self { members: servers.into_iter().map(kind).collect(), directory: None }
    }

    /// Starts the servers that a sale under this lock needs besides etcd, in a directory in `parent`.
    pub async fn start(lock: LockMode, parent: &OwnedDir) -> Result<Self> {
        match lock.server() {
            Server::Etcd => Ok(Self::default()),
            server => Self::start_members(server, 1, parent).await,
        }
    }

    /// Starts this server, in a directory in `parent`. `members` matters only for etcd and ZooKeeper.
    pub async fn start_members(server: Server, members: usize, parent: &OwnedDir) -> Result<Self> {
        Ok(match server {
            Server::None => Self::default(),
            Server::Directory => {
                let directory = parent.path().join("locks").display().to_string();
                Self { directory: Some(directory), ..Self::default() }
            }
            Server::Etcd => {
                let options = EtcdOptions::default();
                let all = PrivateEtcd::start_cluster_in(parent, members, options).await?;
                Self::of(LockServer::Etcd, all)
            }
            Server::Redis { nodes } => {
                let mut all = Vec::new();
                for _ in 0..nodes {
                    all.push(PrivateRedis::start_in(parent, RedisOptions::default()).await?);
                }
                Self::of(LockServer::Redis, all)
            }
            Server::Postgres => {
                let options = PostgresOptions { own_data: true, ..PostgresOptions::default() };
                Self::of(LockServer::Postgres, vec![PrivatePostgres::start(options).await?])
            }
            Server::ZooKeeper => {
                let options = ZooKeeperOptions::default();
                let all = PrivateZooKeeper::start_ensemble_in(parent, members, options).await?;
                Self::of(LockServer::ZooKeeper, all)
            }
        })
    }

    /// Their addresses, in the form of `--lock-at`.
    pub fn addresses(&self) -> Vec<String> {
        self.members.iter().map(LockServer::address).chain(self.directory.clone()).collect()
    }

    /// Their processes, with their names.
    pub fn children(&mut self) -> impl Iterator<Item = (&'static str, &mut Child)> {
        self.members.iter_mut().map(LockServer::named_child)
    }

    /// Waits until their processes and files are gone.
    pub async fn remove(self) -> io::Result<()> {
        for server in self.members {
            server.remove().await?;
        }
        Ok(())
    }
}
