//! All guards of a sale. To add a lock, add a variant of [`LockMode`], its server, and a line in `open`.

use std::sync::LazyLock;
#[cfg(feature = "other-locks")]
use std::{sync::Arc, time::Duration};

#[cfg(feature = "other-locks")]
use anyhow::{Result, bail};
use clap::ValueEnum;
use clap::builder::PossibleValue;
#[cfg(feature = "other-locks")]
use fenced_lock::{
    Backend, FileBackend, FileOptions, PostgresAdvisoryBackend, PostgresBackend, PostgresOptions,
    RedisBackend, RedisOptions, RedlockBackend, Token, ZooKeeperBackend, ZooKeeperOptions,
};
use flash_sale::sale::GuardStatus;
use serde::{Deserialize, Serialize};
use testkit::PrivateZooKeeper;

#[cfg(feature = "other-locks")]
use super::AnyLock;

/// What guards the sale. The words of each guard are in `--help`, and in sentences such as "guard of the sale: ...".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
    #[serde(rename = "zookeeper")]
    ZooKeeper,
    /// the lock in a directory
    #[value(alias = "embedded")]
    File,
    /// a lock in each instance
    Local,
    /// no lock
    NoLock,
    /// the lock recipe of Go's etcd client
    EtcdRecipe,
    /// etcd's Lock call
    EtcdRpc,
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
    /// Its name, if this machine lacks it.
    pub fn missing(self) -> Option<&'static str> {
        match self {
            Self::Postgres if !testkit::postgres::is_installed() => Some("PostgreSQL"),
            Self::ZooKeeper if !PrivateZooKeeper::is_installed() => Some("ZooKeeper"),
            _ => None,
        }
    }
}

/// The names and the words of the guards.
static VALUES: LazyLock<Vec<PossibleValue>> = LazyLock::new(|| {
    LockMode::value_variants().iter().filter_map(LockMode::to_possible_value).collect()
});

impl LockMode {
    /// The locks of the library that all instances share.
    pub fn shared() -> impl Iterator<Item = Self> + Clone {
        Self::value_variants().iter().copied().filter(|lock| lock.is_shared())
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        VALUES[self as usize].get_name()
    }

    /// Its description, for a sentence like "guarded by ...".
    pub fn words(self) -> String {
        VALUES[self as usize].get_help().map(ToString::to_string).unwrap_or_default()
    }

    /// The server that it needs besides the stock.
    pub fn server(self) -> Server {
        match self {
            Self::Etcd | Self::EtcdRecipe | Self::EtcdRpc => Server::Etcd,
            Self::Redis => Server::Redis { nodes: 1 },
            Self::Redlock => Server::Redis { nodes: 3 },
            Self::Postgres | Self::PostgresAdvisory => Server::Postgres,
            Self::ZooKeeper => Server::ZooKeeper,
            Self::File => Server::Directory,
            Self::Local | Self::NoLock | Self::BatchedScript | Self::AtomicScript => Server::None,
        }
    }

    /// Whether it is a lock of the library that all instances share.
    pub fn is_shared(self) -> bool {
        !matches!(self, Self::EtcdRecipe | Self::EtcdRpc) && self.server() != Server::None
    }

    /// Whether the ledger has the orders with their ids. It has none under a guard that only writes the stock step by step.
    pub fn keeps_ledger(self) -> bool {
        !matches!(self, Self::Local | Self::NoLock | Self::EtcdRpc)
    }

    /// The fence of a sale under this lock: `asked` if there is one, else the lock's own if it has tokens, else the store's.
    pub fn fence(self, asked: Option<Fence>) -> Fence {
        asked.unwrap_or(if self == Self::Redlock { Fence::Store } else { Fence::Lock })
    }

    /// How many members of etcd a demo under this guard starts.
    pub fn etcd_members(self) -> usize {
        usize::from(self.server() == Server::Etcd)
    }

    /// The text behind a verdict that says why this guard oversells, if it does.
    pub fn flaw(self) -> Option<&'static str> {
        match self {
            Self::Local => Some(
                "That is what happens without a lock between the instances: each one guards the stock only against itself.",
            ),
            Self::NoLock => Some(
                "That is what happens without a lock, when reading, deciding and writing are three steps.",
            ),
            _ => None,
        }
    }

    /// The status of a sale under this guard, for the page.
    pub(crate) fn status(self) -> GuardStatus {
        let (description, warning) = match self {
            Self::Local => (
                "a lock in each instance",
                Some(
                    "Each instance guards the stock against itself alone: two of them sell units twice.",
                ),
            ),
            Self::NoLock => ("nothing", Some("Nothing guards the stock: units are sold twice.")),
            Self::AtomicScript | Self::BatchedScript => ("the store's script alone", None),
            _ => ("the lock", None),
        };
        let warnings = warning.map(|warning| ("no-lock", warning)).into_iter().collect();
        GuardStatus { name: self.name(), description, without: Vec::new(), warnings }
    }
}

/// Small beside the TTL of a demo, because a key on one node outlives its session by as much.
#[cfg(feature = "other-locks")]
const REDLOCK_TIMEOUT: Duration = Duration::from_millis(150);

/// The lock of this kind at these addresses. There must be at least one.
#[cfg(feature = "other-locks")]
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

/// What refuses the writes of a holder that was overtaken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fence {
    /// The store compares the tokens of the lock.
    Lock,
    /// The store counts the tenures itself: for a lock without tokens.
    Store,
    /// Nothing: a holder that was paused can undo what others have sold.
    None,
}

impl Fence {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Store => "store",
            Self::None => "none",
        }
    }
}
