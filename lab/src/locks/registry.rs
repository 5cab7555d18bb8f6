//! All guards of a sale. To add a lock, add a variant of [`LockMode`], its server, and a line in `open`.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use clap::builder::PossibleValue;
use fenced_lock::{
    Backend, FileBackend, FileOptions, PostgresAdvisoryBackend, PostgresBackend, PostgresOptions,
    RedisBackend, RedisOptions, RedlockBackend, Token, ZooKeeperBackend, ZooKeeperOptions,
};
use testkit::PrivateZooKeeper;

use super::AnyLock;

/// A guard of the sale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LockMode {
    /// the lock in etcd
    #[default]
    Etcd,
    /// the lock in Redis
    Redis,
    /// Redlock
    Redlock,
    /// the lock in PostgreSQL
    Postgres,
    /// PostgreSQL's advisory lock
    PostgresAdvisory,
    /// the lock in ZooKeeper
    #[value(name = "zookeeper")]
    ZooKeeper,
    /// the lock in a directory
    #[value(alias = "embedded")]
    File,
    /// the lock recipe of Go's etcd client
    EtcdRecipe,
    /// no lock, one atomic script for each batch
    BatchedScript,
    /// no lock, one atomic script
    AtomicScript,
}

/// The server that a guard needs besides the stock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    None,
    Etcd,
    Redis { nodes: usize },
    Postgres,
    ZooKeeper,
    Directory,
}

impl Server {
    /// The server's name, if this machine lacks it.
    pub fn missing(self) -> Option<&'static str> {
        match self {
            Self::Postgres if !testkit::postgres::is_installed() => Some("PostgreSQL"),
            Self::ZooKeeper if !PrivateZooKeeper::is_installed() => Some("ZooKeeper"),
            _ => None,
        }
    }
}

static VALUES: LazyLock<Vec<PossibleValue>> = LazyLock::new(|| {
    LockMode::value_variants().iter().filter_map(LockMode::to_possible_value).collect()
});

impl LockMode {
    /// The locks of the library that all instances share.
    pub fn shared() -> impl Iterator<Item = Self> + Clone {
        Self::value_variants().iter().copied().filter(|lock| lock.is_shared())
    }

    /// The guard's name on the command line.
    pub fn name(self) -> &'static str {
        VALUES[self as usize].get_name()
    }

    /// The server that the guard needs besides the stock.
    pub fn server(self) -> Server {
        match self {
            Self::Etcd | Self::EtcdRecipe | Self::AtomicScript => Server::Etcd,
            Self::Redis => Server::Redis { nodes: 1 },
            Self::Redlock => Server::Redis { nodes: 3 },
            Self::Postgres | Self::PostgresAdvisory => Server::Postgres,
            Self::ZooKeeper => Server::ZooKeeper,
            Self::File => Server::Directory,
            Self::BatchedScript => Server::None,
        }
    }

    /// Whether it is a lock of the library that all instances share.
    pub fn is_shared(self) -> bool {
        !matches!(self, Self::EtcdRecipe | Self::AtomicScript | Self::BatchedScript)
    }

    /// The fence of a sale under this lock: the one that was asked for, else the lock's own if it has tokens, else the store's.
    pub fn fence(self, asked: Option<Fence>) -> Fence {
        asked.unwrap_or(if self == Self::Redlock { Fence::Store } else { Fence::Lock })
    }

    /// How many members of etcd a sale under this guard needs.
    pub fn etcd_members(self) -> usize {
        usize::from(self.server() == Server::Etcd)
    }
}

/// Short compared with the TTL of a demo, because a key on one node outlives its session by this time.
const REDLOCK_TIMEOUT: Duration = Duration::from_millis(150);

/// The lock of this kind at these addresses. There must be at least one.
pub(super) fn open(lock: LockMode, at: &[String]) -> Result<AnyLock> {
    let first = &at[0];
    let lock: Arc<dyn Backend<Token = Token>> = match lock {
        LockMode::Redis => Arc::new(RedisBackend::new(RedisOptions::new(first))?),
        LockMode::Redlock => {
            let node = |url| {
                let mut options = RedisOptions::new(url);
                options.request_timeout = REDLOCK_TIMEOUT;
                options
            };
            return Ok(AnyLock::Unfenced(Arc::new(RedlockBackend::new(at.iter().map(node))?)));
        }
        LockMode::Postgres => Arc::new(PostgresBackend::new(&PostgresOptions::new(first))?),
        LockMode::PostgresAdvisory => {
            Arc::new(PostgresAdvisoryBackend::new(&PostgresOptions::new(first))?)
        }
        LockMode::ZooKeeper => {
            Arc::new(ZooKeeperBackend::new(ZooKeeperOptions::new(at.join(",")))?)
        }
        LockMode::File => Arc::new(FileBackend::new(FileOptions::new(first))?),
        _ => bail!("it is no lock that instances share"),
    };
    Ok(AnyLock::Fenced(lock))
}

/// The fence that refuses the writes of an overtaken holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fence {
    /// The store compares the tokens of the lock.
    Lock,
    /// The store counts the tenures itself, for a lock without tokens.
    Store,
    /// No fence: a paused holder can undo the sales of others.
    None,
}

impl Fence {
    /// The fence's name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Store => "store",
            Self::None => "none",
        }
    }
}
