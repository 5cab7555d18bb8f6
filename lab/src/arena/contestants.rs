//! The locks of the arena, all that differs between them, and their servers. A lock of the library takes part by its row in
//! [`demo::locks`]; another one is a [`Contestant`] like `SET_NX`.

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use demo::locks::{AnyLock, LockMode, LockServers, Server};
use fenced_lock::{Promises, Session, SessionOptions};
use futures_util::future::join_all;
use testkit::OwnedDir;

use crate::articles::{OneKey, connect};
use crate::clients::{Clients, clients_of};

/// A lock of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contestant {
    pub(super) name: &'static str,
    pub(super) server: Server,
    /// The lock of the library, which guards sales as well.
    pub(super) guard: Option<LockMode>,
}

/// The plainest one of the articles: `SET NX PX` on one Redis. It guards no sale.
const SET_NX: Contestant =
    Contestant { name: "redis-set-nx", server: Server::Redis { nodes: 1 }, guard: None };

impl Contestant {
    /// The locks that take part by default: those of the library.
    pub(super) fn usual() -> impl Iterator<Item = Self> + Clone {
        LockMode::shared().map(|lock| Self {
            name: lock.name(),
            server: lock.server(),
            guard: Some(lock),
        })
    }

    /// Parses the name of any lock.
    pub(super) fn parser() -> impl TypedValueParser<Value = Self> {
        let all = Self::usual().chain([SET_NX]);
        PossibleValuesParser::new(all.clone().map(|one| one.name)).map(move |name| {
            let found = all.clone().find(|one| one.name == name);
            found.expect("the name is one of the possible ones")
        })
    }

    /// Opens a session of the lock at these addresses, as a process of its own would.
    pub(super) async fn open(self, addresses: &[String], ttl: Duration) -> Result<Clients> {
        let Some(lock) = self.guard else {
            // without a session: nothing is renewed
            let redis = connect(&addresses.concat()).await?;
            let client = move |name: &str| OneKey::set_nx(redis.clone(), name, ttl);
            return Ok(Box::new(move |name| Ok(Box::new(client(name)))));
        };
        let options = SessionOptions::new(ttl);
        Ok(match AnyLock::at(lock, addresses)? {
            AnyLock::Fenced(lock) => clients_of(Session::open(lock, options).await?),
            AnyLock::Unfenced(lock) => clients_of(Session::open(lock, options).await?),
        })
    }
}

/// The private servers of a lock.
pub(super) struct Servers {
    pub(super) lock: Contestant,
    pub(super) promises: Promises,
    pub(super) all: LockServers,
    pub(super) dir: OwnedDir,
}

impl Servers {
    /// Starts them. `members` counts for etcd and ZooKeeper only.
    pub(super) async fn start(lock: Contestant, members: usize, parent: &OwnedDir) -> Result<Self> {
        let dir = OwnedDir::create_in(parent).context("no temporary directory could be made")?;
        let all = LockServers::start_members(lock.server, members, &dir).await?;
        let promises = match lock.guard {
            Some(lock) => AnyLock::at(lock, &all.addresses())?.promises(),
            None => Promises::LEAST,
        };
        Ok(Self { lock, promises, all, dir })
    }

    /// How many requests all servers have received so far, by their own counters; `None` without such counters. The
    /// number includes the requests of this function, the same number each time.
    pub(super) async fn requests(&self) -> Option<u64> {
        // where the lock is on Redis: not the commands that a script calls
        let commands: &[_] = if self.lock == SET_NX { &["evalsha", "set"] } else { &["evalsha"] };
        let counts = self.all.members.iter().map(|one| one.requests(commands));
        let counts = join_all(counts).await;
        counts.into_iter().reduce(|sum, count| Some(sum? + count?))?
    }

    /// Stops them and removes their files.
    pub(super) async fn stop(self) -> Result<()> {
        let removed = self.all.remove().await.and(self.dir.remove().await);
        removed.context("a server or its directory cannot be removed")
    }
}
