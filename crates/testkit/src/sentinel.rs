//! Redis Sentinel: replicas of a Redis, and the sentinels that watch them all.

use std::collections::HashMap;
use std::time::Duration;
use std::{fs, io};

use redis::{RedisError, RedisResult};

use super::certificates::text;
use super::child::Child;
use super::dir::OwnedDir;
use super::ports::free_ports;
use super::redis::{PrivateRedis, Redis, RedisOptions, follow};
use super::replication::Follow as _;
use super::server::{Launch, START_TIMEOUT, ServerError};
use super::wait::until;

/// The sentinels' name for the primary.
pub const PRIMARY_NAME: &str = "sale";

/// The number of sentinels. Two of them decide.
const SENTINELS: usize = 3;
const QUORUM: usize = 2;

/// After this silence, in milliseconds, a sentinel takes a server for dead: longer than a busy machine makes a process wait.
const DOWN_AFTER: u32 = 2000;

/// How long, in milliseconds, a sentinel waits before it tries a failed failover again, or corrects a replica that follows
/// another server.
const FAILOVER_TIMEOUT: u32 = 3000;

/// How long a failover may take: if no sentinel wins the election, or after a pause of the machine, they rest for 30 s.
const FAILOVER_LIMIT: Duration = Duration::from_mins(1);

/// Replicas of a Redis, and three sentinels that watch them all. Not for secured servers.
#[derive(Debug)]
pub struct Sentinels {
    /// The servers besides the primary.
    pub replicas: Vec<PrivateRedis>,
    /// The sentinels: each is a Redis in another mode.
    pub sentinels: Vec<PrivateRedis>,
}

impl Sentinels {
    /// Starts this many replicas of `primary`, and the sentinels, with their directories in `parent`, and waits until a failover
    /// could succeed.
    ///
    /// # Errors
    /// As [`PrivateRedis::start`], or when they do not find each other within [`START_TIMEOUT`].
    pub async fn start_in(
        parent: &OwnedDir,
        primary: &PrivateRedis,
        replicas: usize,
    ) -> Result<Self, ServerError> {
        let mut all = Self { replicas: Vec::new(), sentinels: Vec::new() };
        let no_start = ServerError::system("Redis");
        for _ in 0..replicas {
            let replica = PrivateRedis::start_in(parent, RedisOptions::default()).await?;
            follow(&replica, primary, primary.port()).await.map_err(&no_start)?;
            all.replicas.push(replica);
        }
        for _ in 0..SENTINELS {
            all.sentinels.push(primary.start_sentinel_in(parent).await?);
        }
        all.until_whole().await.map_err(&no_start)?;
        Ok(all)
    }

    /// The address of the primary, in the service's form.
    pub fn url(&self) -> String {
        let at = |sentinel: &PrivateRedis| format!("127.0.0.1:{}", sentinel.port());
        let at: Vec<_> = self.sentinels.iter().map(at).collect();
        format!("redis-sentinel://{}#{PRIMARY_NAME}", at.join(","))
    }

    /// Waits until all sentinels know one another, and that all replicas follow.
    ///
    /// # Errors
    /// When a server does not answer, or that takes longer than [`START_TIMEOUT`].
    async fn until_whole(&self) -> RedisResult<()> {
        until("the sentinels agree", START_TIMEOUT, async || {
            for sentinel in &self.sentinels {
                let ask = |what| format!("SENTINEL {what} {PRIMARY_NAME}");
                // an error means that there are too few
                let quorum: RedisResult<String> = sentinel.run(&ask("CKQUORUM")).await;
                let has_all = format!("OK {} usable", self.sentinels.len());
                let replicas: Vec<HashMap<String, String>> = sentinel.run(&ask("REPLICAS")).await?;
                let follows = |replica: &HashMap<String, String>| {
                    replica["flags"] == "slave" && replica["master-link-status"] == "ok"
                };
                if !quorum.is_ok_and(|answer| answer.starts_with(&has_all))
                    || replicas.len() != self.replicas.len()
                    || !replicas.iter().all(follows)
                {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await
    }

    /// Waits until all sentinels name another server than `primary`, and exchanges the two: `primary` is then the new primary.
    /// Returns the former one, which is now among the replicas.
    ///
    /// # Errors
    /// When a sentinel does not answer, or that takes longer than a minute.
    pub async fn until_failed_over(
        &mut self,
        primary: &mut PrivateRedis,
    ) -> RedisResult<&mut PrivateRedis> {
        let former = Some(primary.port());
        until("the sentinels promote a replica", FAILOVER_LIMIT, async || {
            for sentinel in &self.sentinels {
                if self.named_by(sentinel).await? == former {
                    return Ok(false);
                }
            }
            Ok::<_, RedisError>(true)
        })
        .await?;
        let port = self.named_by(&self.sentinels[0]).await?;
        let promoted = self.replicas.iter_mut().find(|replica| Some(replica.port()) == port);
        let unknown = || io::Error::other("the sentinels promoted an unknown server");
        let promoted = promoted.ok_or_else(unknown)?;
        std::mem::swap(primary, promoted);
        Ok(promoted)
    }

    /// Waits until all sentinels watch `primary`, and none leads a failover any more.
    ///
    /// # Errors
    /// When a sentinel does not answer, or that takes longer than a minute.
    pub async fn until_settled(&self, primary: &PrivateRedis) -> RedisResult<()> {
        let port = primary.port().to_string();
        until("the failover is over", FAILOVER_LIMIT, async || {
            for sentinel in &self.sentinels {
                let ask = format!("SENTINEL MASTER {PRIMARY_NAME}");
                let watched: HashMap<String, String> = sentinel.run(&ask).await?;
                if watched["port"] != port || watched["flags"] != "master" {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await
    }

    /// From now on the replicas get nothing, after they have got all writes so far: they look for their primary elsewhere. The
    /// sentinels correct that after some seconds.
    ///
    /// # Errors
    /// When a server does not answer, or a replica does not catch up within [`START_TIMEOUT`].
    pub async fn hold_writes_back(&self, primary: &PrivateRedis) -> RedisResult<()> {
        for replica in &self.replicas {
            Redis::until_caught_up(replica, primary).await?;
        }
        for replica in &self.replicas {
            replica.run::<()>("REPLICAOF 127.0.0.1 1").await?;
        }
        Ok(())
    }

    /// All processes.
    pub fn children(&mut self) -> impl Iterator<Item = &mut Child> {
        self.sentinels.iter_mut().chain(&mut self.replicas).map(PrivateRedis::child)
    }

    /// The port of the primary that this sentinel names.
    async fn named_by(&self, sentinel: &PrivateRedis) -> RedisResult<Option<u16>> {
        let ask = format!("SENTINEL GET-MASTER-ADDR-BY-NAME {PRIMARY_NAME}");
        let address: Option<(String, u16)> = sentinel.run(&ask).await?;
        Ok(address.map(|(_, port)| port))
    }
}

impl PrivateRedis {
    /// Starts a sentinel that watches this Redis, with its directory in `parent`. If this Redis is secured, the sentinel is too,
    /// with the same certificates and passwords; it then names this Redis but cannot log in to it.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_sentinel_in(&self, parent: &OwnedDir) -> Result<Self, ServerError> {
        Self::start_one(async |_| {
            let dir = OwnedDir::create_in(parent)?;
            let [port] = free_ports()?;
            let file = dir.path().join("sentinel.conf");
            let settings = [
                "bind 127.0.0.1".to_owned(),
                format!("dir {}", dir.path().display()),
                format!("sentinel monitor {PRIMARY_NAME} 127.0.0.1 {} {QUORUM}", self.port()),
                format!("sentinel down-after-milliseconds {PRIMARY_NAME} {DOWN_AFTER}"),
                format!("sentinel failover-timeout {PRIMARY_NAME} {FAILOVER_TIMEOUT}"),
            ];
            // the sentinel keeps its state in the same file
            fs::write(&file, settings.join("\n"))?;
            let kind = self.launch.kind.for_sentinel_in(dir.path())?;
            let mut args = vec![text(&file), "--sentinel".to_owned()];
            args.extend(kind.flags(port));
            Ok(Launch { args, dir, port, kind })
        })
        .await
    }
}
