//! A private server of a lock.

use std::io;

use hyper::Method;
use testkit::{
    Child, PrivateEtcd, PrivatePostgres, PrivateRedis, PrivateZooKeeper, ServerError, probe,
};

#[derive(Debug)]
pub enum LockServer {
    Etcd(PrivateEtcd),
    Redis(PrivateRedis),
    Postgres(PrivatePostgres),
    ZooKeeper(PrivateZooKeeper),
}

impl LockServer {
    /// The server's address, in the form of `--lock-at`.
    pub fn address(&self) -> String {
        match self {
            Self::Etcd(server) => server.endpoint(),
            Self::Redis(server) => server.url(),
            Self::Postgres(server) => server.url(),
            Self::ZooKeeper(server) => server.address(),
        }
    }

    pub fn child(&mut self) -> &mut Child {
        match self {
            Self::Etcd(server) => server.child(),
            Self::Redis(server) => server.child(),
            Self::Postgres(server) => server.child(),
            Self::ZooKeeper(server) => server.child(),
        }
    }

    /// Kills all of the server's processes. Its data stay.
    pub async fn kill(&mut self) -> io::Result<()> {
        match self {
            Self::Postgres(server) => server.crash().await,
            other => other.child().kill().await.map(drop),
        }
    }

    /// Starts the server again, and waits until it answers.
    pub async fn restart(&mut self) -> Result<(), ServerError> {
        match self {
            Self::Etcd(server) => server.restart().await,
            Self::Redis(server) => server.restart().await,
            Self::Postgres(server) => server.restart().await,
            Self::ZooKeeper(server) => server.restart().await,
        }
    }

    /// Whether it is the leader of its group of servers.
    pub async fn is_leader(&self) -> bool {
        match self {
            Self::Etcd(server) => server.is_leader().await,
            Self::ZooKeeper(server) => server.is_leader().await,
            _ => false,
        }
    }

    /// Makes the server count requests, if it does not count them by itself. Ends its connections.
    pub async fn count_requests(&mut self) -> Result<(), ServerError> {
        let Self::Postgres(server) = self else { return Ok(()) };
        let failed = ServerError::system("PostgreSQL");
        let load = "ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'";
        server.run(load).await.map_err(&failed)?;
        server.restart().await?;
        server.run("CREATE EXTENSION pg_stat_statements").await.map_err(&failed)?;
        Ok(())
    }

    /// How many requests the server has received so far, by its own counters; `None` without such a counter. This includes the
    /// requests of this function, the same number each time. At a Redis only runs of scripts count, because a lock makes no other
    /// requests.
    pub async fn requests(&self) -> Option<u64> {
        match self {
            // messages from its clients, including those on open streams
            Self::Etcd(server) => {
                let metrics = probe::http(Method::GET, server.port(), "/metrics", "").await;
                let (_, metrics) = metrics.ok()?;
                let lines = metrics.lines();
                let counts = lines.filter(|line| line.starts_with("grpc_server_msg_received"));
                Some(counts.filter_map(|line| number(line.rsplit(' ').next()?)).sum())
            }
            Self::Redis(server) => {
                let info: String = server.run("INFO commandstats").await.ok()?;
                let calls = info.split("cmdstat_evalsha:calls=").nth(1).unwrap_or("0");
                number(calls.split(',').next()?)
            }
            // statements
            Self::Postgres(server) => {
                number(&server.run("SELECT sum(calls) FROM pg_stat_statements").await.ok()?)
            }
            // packets
            Self::ZooKeeper(server) => {
                let state = probe::zookeeper(server.port(), "mntr").await.ok()?;
                number(state.lines().find_map(|line| line.strip_prefix("zk_packets_received"))?)
            }
        }
    }

    /// Stops it, and removes its files.
    pub async fn remove(self) -> io::Result<()> {
        match self {
            Self::Etcd(server) => server.stop().await,
            Self::Redis(server) => server.stop().await,
            Self::Postgres(server) => server.stop().await,
            Self::ZooKeeper(server) => server.stop().await,
        }
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
