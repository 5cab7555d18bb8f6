//! The servers of a lock, and what they count.

use anyhow::{Context as _, Result};
use demo::locks::LockServers;
use futures_util::future::join_all;
use testkit::OwnedDir;

use super::contestants::Contestant;

/// The private servers of a lock.
pub(super) struct Servers {
    pub(super) lock: Contestant,
    pub(super) all: LockServers,
    pub(super) dir: OwnedDir,
}

impl Servers {
    /// Starts them. `members` counts for etcd and ZooKeeper only.
    pub(super) async fn start(lock: Contestant, members: usize, parent: &OwnedDir) -> Result<Self> {
        let dir = OwnedDir::create_in(parent).context("no temporary directory could be made")?;
        let all = LockServers::start_members(lock.server(), members, &dir).await?;
        Ok(Self { lock, all, dir })
    }

    /// How many requests all servers have received so far, by their own counters; `None` without such counters. The
    /// number includes the requests of this function, the same number each time.
    pub(super) async fn requests(&self) -> Option<u64> {
        let counts = self.all.members.iter().map(|one| one.requests(self.lock.redis_commands()));
        let counts = join_all(counts).await;
        counts.into_iter().reduce(|sum, count| Some(sum? + count?))?
    }

    /// Stops them and removes their files.
    pub(super) async fn stop(self) -> Result<()> {
        let removed = self.all.remove().await.and(self.dir.remove().await);
        removed.context("a server or its directory cannot be removed")
    }
}
