//! The locks of the arena: all that differs between them. A lock of the library takes part by its row in
//! [`demo::locks`]; another one is a variant of [`Contestant`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use demo::locks::{AnyLock, LockMode, Server};
use fenced_lock::{
    Clock, Ends, Loss, Order, Promises, QueueView, Session, SessionOptions, TokenLife, Wake,
};
use redis::aio::MultiplexedConnection;

use crate::articles::{SetNx, connect};
use crate::clients::{Client, LockSession};

/// How often a waiter of the plainest lock asks: the default of `Lock` in `redis-py`, which is this lock.
const PAUSE: Duration = Duration::from_millis(100);

/// A lock of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contestant {
    /// One of the library.
    Library(LockMode),
    /// The plainest one of the articles: `SET NX PX` on one Redis. It guards no sale.
    SetNx,
}

impl Contestant {
    /// The locks that take part by default.
    pub(super) fn usual() -> impl Iterator<Item = Self> + Clone {
        LockMode::shared().map(Self::Library)
    }

    /// Parses the name of any lock.
    pub(super) fn parser() -> impl TypedValueParser<Value = Self> {
        let all = Self::usual().chain([Self::SetNx]);
        PossibleValuesParser::new(all.clone().map(Self::name)).map(move |name| {
            all.clone()
                .find(|one| one.name() == name)
                .expect("the name is one of the possible ones")
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Library(lock) => lock.name(),
            Self::SetNx => "redis-set-nx",
        }
    }

    /// The guard of a sale under this lock, if there is one.
    pub(super) fn guard(self) -> Option<LockMode> {
        match self {
            Self::Library(lock) => Some(lock),
            Self::SetNx => None,
        }
    }

    pub(super) fn server(self) -> Server {
        match self {
            Self::Library(lock) => lock.server(),
            Self::SetNx => Server::Redis { nodes: 1 },
        }
    }

    /// The commands that count as requests, if the lock is on Redis.
    pub(super) fn redis_commands(self) -> &'static [&'static str] {
        match self {
            Self::Library(_) => &["evalsha"],
            Self::SetNx => &["evalsha", "set"],
        }
    }

    pub(super) fn promises(self, addresses: &[String]) -> Result<Promises> {
        match self {
            Self::Library(lock) => Ok(AnyLock::at(lock, addresses)?.promises()),
            Self::SetNx => Ok(Promises {
                order: Order::Unordered,
                wake: Wake::Polled,
                token: TokenLife::None,
                ends: Ends::Lease(Clock::Wall),
                loss: Loss::Never,
                queue: QueueView::HolderOnly,
            }),
        }
    }

    /// Opens a session of the lock at these addresses, as a process of its own would.
    pub(super) async fn open(
        self,
        addresses: &[String],
        ttl: Duration,
    ) -> Result<Box<dyn LockSession>> {
        let Self::Library(lock) = self else {
            let redis = connect(&addresses.concat()).await?;
            return Ok(Box::new(SetNxSession { redis, ttl, has_failed: Arc::default() }));
        };
        let options = SessionOptions::new(ttl);
        Ok(match AnyLock::at(lock, addresses)? {
            AnyLock::Fenced(lock) => Box::new(Session::open(lock, options).await?),
            AnyLock::Unfenced(lock) => Box::new(Session::open(lock, options).await?),
        })
    }
}

/// A process that takes the plainest lock. It renews nothing.
struct SetNxSession {
    redis: MultiplexedConnection,
    ttl: Duration,
    /// Whether a request failed: the connection may be gone.
    has_failed: Arc<AtomicBool>,
}

#[async_trait]
impl LockSession for SetNxSession {
    fn client(&self, name: &str) -> Result<Box<dyn Client>> {
        let mut client = SetNx::new(self.redis.clone(), name, self.ttl, PAUSE);
        client.has_failed = Arc::clone(&self.has_failed);
        Ok(Box::new(client))
    }

    fn is_lost(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
