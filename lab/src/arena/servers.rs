//! The servers of a lock, proxies to them, and what they count.

use std::time::Duration;

use demo::locks::LockServers;
use fenced_lock::Promises;
use futures_util::future::join_all;
use testkit::OwnedDir;

use super::contestants::Contestant;
use crate::clients::LockSession;
use crate::error::LabError;

/// The private servers of a lock.
pub(super) struct Servers {
    pub(super) lock: Contestant,
    pub(super) all: LockServers,
    pub(super) dir: OwnedDir,
}

impl Servers {
    /// Starts them. `members` counts for etcd and ZooKeeper only.
    pub(super) async fn start(
        lock: Contestant,
        members: usize,
        parent: &OwnedDir,
    ) -> Result<Self, LabError> {
        let dir = OwnedDir::create_in(parent)
            .map_err(LabError::system("no temporary directory could be made"))?;
        let all = LockServers::start_members(lock.server(), members, &dir).await?;
        Ok(Self { lock, all, dir })
    }

    /// Starts one server of each kind that counts requests.
    pub(super) async fn counting(lock: Contestant, parent: &OwnedDir) -> Result<Self, LabError> {
        let mut servers = Self::start(lock, 1, parent).await?;
        for member in &mut servers.all.members {
            member.count_requests().await?;
        }
        Ok(servers)
    }

    pub(super) fn addresses(&self) -> Vec<String> {
        self.all.addresses()
    }

    /// A session, as a process of its own would have one.
    pub(super) async fn session(
        &self,
        addresses: &[String],
        ttl: Duration,
    ) -> Result<Box<dyn LockSession>, LabError> {
        self.lock.open(addresses, ttl).await
    }

    pub(super) fn promises(&self) -> Result<Promises, LabError> {
        self.lock.promises(&self.addresses())
    }

    /// How many requests all servers have received so far, by their own counters; `None` without such counters. The
    /// number includes the requests of this function, the same number each time.
    pub(super) async fn requests(&self) -> Option<u64> {
        let counts = self.all.members.iter().map(|one| one.requests(self.lock.redis_commands()));
        let counts = join_all(counts).await;
        counts.into_iter().reduce(|sum, count| Some(sum? + count?))?
    }

    /// Stops them and removes their files.
    pub(super) async fn stop(self) -> Result<(), LabError> {
        let Self { mut all, dir, .. } = self;
        let stops = all.children().into_iter().map(|(_, server)| server.stop());
        let stopped: Result<Vec<_>, _> = join_all(stops).await.into_iter().collect();
        stopped.map_err(LabError::system("a server does not stop"))?;
        let removed = all.remove().await.and(dir.remove().await);
        removed.map_err(LabError::system("a directory cannot be removed"))
    }
}
