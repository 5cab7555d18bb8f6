//! The private servers of all locks.

use std::io;
use std::path::Path;

use futures_util::future::LocalBoxFuture;
use hyper::Method;
use testkit::etcd::Etcd;
use testkit::postgres::{Postgres, PostgresOptions};
use testkit::redis::Redis;
use testkit::server::{Kind, Private};
use testkit::zookeeper::{ZooKeeper, ZooKeeperOptions};
use testkit::{
    Child, EtcdOptions, OwnedDir, PrivateEtcd, PrivatePostgres, PrivateRedis, PrivateZooKeeper,
    RedisOptions, ServerError, probe,
};

use super::Server;
use super::servers::{LockServer, LockServers};
use crate::error::DemoError;

impl LockServers {
    /// Starts this server, in a directory in `parent`. `members` counts for etcd and ZooKeeper only.
    pub async fn start_members(
        server: Server,
        members: usize,
        parent: &OwnedDir,
    ) -> Result<Self, DemoError> {
        Ok(match server {
            Server::None => Self::default(),
            Server::Directory => {
                let directory = parent.path().join("locks").display().to_string();
                Self { directory: Some(directory), ..Self::default() }
            }
            Server::Etcd => {
                let options = EtcdOptions::default();
                Self::of(PrivateEtcd::start_cluster_in(parent, members, options).await?)
            }
            Server::Redis { nodes } => {
                let mut all = Vec::new();
                for _ in 0..nodes {
                    all.push(PrivateRedis::start_in(parent, RedisOptions::default()).await?);
                }
                Self::of(all)
            }
            Server::Postgres => {
                let options = PostgresOptions { own_data: true, ..PostgresOptions::default() };
                Self::of([PrivatePostgres::start(options).await?])
            }
            Server::ZooKeeper => {
                let options = ZooKeeperOptions::default();
                Self::of(PrivateZooKeeper::start_ensemble_in(parent, members, options).await?)
            }
        })
    }
}

impl Server {
    /// Its name if this machine lacks it.
    pub fn missing(self) -> Option<&'static str> {
        match self {
            Self::Postgres if !testkit::postgres::is_installed() => Some("PostgreSQL"),
            Self::ZooKeeper if !PrivateZooKeeper::is_installed() => Some("ZooKeeper"),
            _ => None,
        }
    }
}

/// What differs between the servers of locks.
trait LockKind: Kind + std::fmt::Debug + Send + Sync + Sized + 'static {
    const TITLE: &str;

    fn address(server: &Private<Self>) -> String;

    async fn kill(server: &mut Private<Self>) -> io::Result<()> {
        server.kill().await
    }

    async fn is_leader(_: &Private<Self>) -> bool {
        false
    }

    async fn count_requests(_: &mut Private<Self>) -> Result<(), ServerError> {
        Ok(())
    }

    async fn requests(server: &Private<Self>, redis_commands: &[&str]) -> Option<u64>;
}

impl<K: LockKind> LockServer for Private<K> {
    fn name(&self) -> &'static str {
        K::TITLE
    }

    fn address(&self) -> String {
        K::address(self)
    }

    fn child(&mut self) -> &mut Child {
        self.child()
    }

    fn dir(&self) -> &Path {
        self.dir()
    }

    fn kill(&mut self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(K::kill(self))
    }

    fn restart(&mut self) -> LocalBoxFuture<'_, Result<(), ServerError>> {
        Box::pin(self.restart())
    }

    fn restart_under<'a>(
        &'a mut self,
        launcher: &'a [String],
    ) -> LocalBoxFuture<'a, Result<(), ServerError>> {
        Box::pin(self.restart_under(launcher))
    }

    fn is_leader(&self) -> LocalBoxFuture<'_, bool> {
        Box::pin(K::is_leader(self))
    }

    fn count_requests(&mut self) -> LocalBoxFuture<'_, Result<(), ServerError>> {
        Box::pin(K::count_requests(self))
    }

    fn requests<'a>(&'a self, redis_commands: &'a [&'a str]) -> LocalBoxFuture<'a, Option<u64>> {
        Box::pin(K::requests(self, redis_commands))
    }

    fn remove(self: Box<Self>) -> LocalBoxFuture<'static, io::Result<()>> {
        Box::pin((*self).stop())
    }
}

impl LockKind for Etcd {
    const TITLE: &str = "the lock's etcd";

    fn address(server: &Private<Self>) -> String {
        server.endpoint()
    }

    async fn is_leader(server: &Private<Self>) -> bool {
        server.is_leader().await
    }

    /// Messages from its clients, also those on open streams.
    async fn requests(server: &Private<Self>, _: &[&str]) -> Option<u64> {
        let (_, metrics) = probe::http(Method::GET, server.port(), "/metrics", "").await.ok()?;
        let lines = metrics.lines().filter(|line| line.starts_with("grpc_server_msg_received"));
        Some(lines.filter_map(|line| number(line.rsplit(' ').next()?)).sum())
    }
}

impl LockKind for Redis {
    const TITLE: &str = "the lock's Redis";

    fn address(server: &Private<Self>) -> String {
        server.url()
    }

    async fn requests(server: &Private<Self>, redis_commands: &[&str]) -> Option<u64> {
        let info = probe::redis(server.port(), "INFO commandstats").await.ok()?;
        let calls = |command: &&str| {
            let calls = info.split(&format!("cmdstat_{command}:calls=")).nth(1);
            number(calls.unwrap_or("0").split([',', '\r', '\n']).next()?)
        };
        redis_commands.iter().map(calls).sum()
    }
}

impl LockKind for Postgres {
    const TITLE: &str = "PostgreSQL";

    fn address(server: &Private<Self>) -> String {
        server.url()
    }

    /// All of its processes.
    async fn kill(server: &mut Private<Self>) -> io::Result<()> {
        server.crash().await
    }

    async fn count_requests(server: &mut Private<Self>) -> Result<(), ServerError> {
        let failed = ServerError::system(Self::TITLE);
        let load = "ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'";
        server.run(load).await.map_err(&failed)?;
        server.restart().await?;
        server.run("CREATE EXTENSION pg_stat_statements").await.map_err(&failed)?;
        Ok(())
    }

    /// Statements.
    async fn requests(server: &Private<Self>, _: &[&str]) -> Option<u64> {
        number(&server.run("SELECT sum(calls) FROM pg_stat_statements").await.ok()?)
    }
}

impl LockKind for ZooKeeper {
    const TITLE: &str = "ZooKeeper";

    fn address(server: &Private<Self>) -> String {
        server.address()
    }

    async fn is_leader(server: &Private<Self>) -> bool {
        server.is_leader().await
    }

    /// Packets.
    async fn requests(server: &Private<Self>, _: &[&str]) -> Option<u64> {
        let state = probe::zookeeper(server.port(), "mntr").await.ok()?;
        number(state.lines().find_map(|line| line.strip_prefix("zk_packets_received"))?)
    }
}

/// A count, which Prometheus may write as 1.5e+06.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count is no fraction"
)]
fn number(text: &str) -> Option<u64> {
    text.trim().parse::<f64>().ok().map(|count| count as u64)
}
