//! The private servers of a lock, and sessions of it, for arena and articles. A lock takes part by its row in
//! [`crate::locks`].

use std::time::Duration;

use crate::locks::{AnyLock, LockMode, LockServer, LockServers};
use anyhow::{Context as _, Result};
use fenced_lock::{Promises, Session, SessionOptions};
use futures_util::future::join_all;
use testkit::OwnedDir;

use crate::clients::{Clients, clients_of};

/// Opens a session of the lock at these addresses, as a separate process would.
pub(crate) async fn open(lock: LockMode, addresses: &[String], ttl: Duration) -> Result<Clients> {
    let options = SessionOptions::new(ttl);
    Ok(match AnyLock::at(lock, addresses)? {
        AnyLock::Fenced(lock) => clients_of(Session::open(lock, options).await?),
        AnyLock::Unfenced(lock) => clients_of(Session::open(lock, options).await?),
    })
}

/// The private servers of a lock.
pub(crate) struct Servers {
    pub(crate) lock: LockMode,
    pub(crate) promises: Promises,
    pub(crate) all: LockServers,
    pub(crate) dir: OwnedDir,
}

impl Servers {
    /// Starts the servers. `members` matters only for etcd and ZooKeeper.
    pub(crate) async fn start(lock: LockMode, members: usize, parent: &OwnedDir) -> Result<Self> {
        let dir = OwnedDir::create_in(parent).context("no temporary directory could be made")?;
        let all = LockServers::start_members(lock.server(), members, &dir).await?;
        let promises = AnyLock::at(lock, &all.addresses())?.promises();
        Ok(Self { lock, promises, all, dir })
    }

    /// How many requests all servers have received so far, by their own counters; `None` without such counters. This includes the
    /// requests of this function, the same number each time.
    pub(crate) async fn requests(&self) -> Option<u64> {
        let counts = join_all(self.all.members.iter().map(LockServer::requests)).await;
        counts.into_iter().reduce(|sum, count| Some(sum? + count?))?
    }

    /// Stops them and removes their files.
    pub(crate) async fn stop(self) -> Result<()> {
        let removed = self.all.remove().await.and(self.dir.remove().await);
        removed.context("a server or its directory cannot be removed")
    }
}
