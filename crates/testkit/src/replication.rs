//! A Redis with a replica, and a failover by hand.

use std::io;

use redis::RedisResult;

use super::dir::OwnedDir;
use super::proxy::{Direction, Proxy};
use super::redis::{PrivateRedis, RedisOptions};
use super::server::{START_TIMEOUT, ServerError, until};

/// A primary, a replica that follows it, and the address of the primary for its clients. Not for secured servers.
#[derive(Debug)]
pub struct ReplicatedRedis {
    /// The primary, until [`fail_over`](Self::fail_over).
    pub primary: PrivateRedis,
    /// The replica, until then.
    pub replica: PrivateRedis,
    /// What the clients connect to.
    pub address: Proxy,
    /// What the replica connects to.
    replication: Proxy,
}

impl ReplicatedRedis {
    /// Starts both, with their directories in `parent`, and waits until the replica follows.
    ///
    /// # Errors
    /// As [`PrivateRedis::start`], or when the replica does not follow within [`START_TIMEOUT`].
    pub async fn start_in(parent: &OwnedDir, options: RedisOptions) -> Result<Self, ServerError> {
        let no_proxy = ServerError::system("Redis");
        let start = || PrivateRedis::start_in(parent, options.clone());
        let (primary, replica) = tokio::try_join!(start(), start())?;
        let address = Proxy::to(primary.port()).await.map_err(&no_proxy)?;
        let replication = Proxy::to(primary.port()).await.map_err(&no_proxy)?;
        let follows = follow(&replica, &primary, replication.port()).await;
        follows.map_err(ServerError::system("Redis"))?;
        Ok(Self { primary, replica, address, replication })
    }

    /// Where clients find the primary, also after a failover.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.address.port())
    }

    /// From now on the replica gets nothing, once it has all that was written before.
    ///
    /// # Errors
    /// When one of the two does not answer, or the replica does not catch up within [`START_TIMEOUT`].
    pub async fn hold_writes_back(&self) -> RedisResult<()> {
        until_caught_up(&self.replica, &self.primary).await?;
        self.replication.hold(Direction::ToClient);
        Ok(())
    }

    /// Promotes the replica, cuts the clients off, and leads them to it. The former primary may run on.
    ///
    /// # Errors
    /// When the replica does not answer.
    pub async fn fail_over(&self) -> RedisResult<()> {
        self.replica.run::<()>("REPLICAOF NO ONE").await?;
        self.address.redirect_to(self.replica.port());
        self.address.cut();
        Ok(())
    }

    /// Stops both and removes their directories.
    ///
    /// # Errors
    /// As [`PrivateRedis::stop`].
    pub async fn stop(self) -> io::Result<()> {
        self.primary.stop().await?;
        self.replica.stop().await
    }
}

/// Makes `replica` follow `primary`, which it reaches at `port`, and waits until it does.
///
/// # Errors
/// When one of the two does not answer, or that takes longer than [`START_TIMEOUT`].
pub async fn follow(replica: &PrivateRedis, primary: &PrivateRedis, port: u16) -> RedisResult<()> {
    // the default waits 5 s for more replicas
    primary.run::<()>("CONFIG SET repl-diskless-sync-delay 0").await?;
    replica.run::<()>(&format!("REPLICAOF 127.0.0.1 {port}")).await?;
    until_caught_up(replica, primary).await
}

/// Waits until `replica` has all that `primary` has now.
pub(crate) async fn until_caught_up(
    replica: &PrivateRedis,
    primary: &PrivateRedis,
) -> RedisResult<()> {
    let written = offset(&primary.run::<String>("INFO replication").await?, "master_repl_offset:");
    until("the replica does not follow", START_TIMEOUT, async || {
        let known: String = replica.run("INFO replication").await?;
        let is_up = known.contains("master_link_status:up");
        Ok(is_up && offset(&known, "slave_repl_offset:") >= written)
    })
    .await
}

/// How much of the replication was written, or read.
fn offset(info: &str, name: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix(name))?.parse().ok()
}
