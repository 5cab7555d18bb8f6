//! All guards of a sale, in one table: another lock is a variant of [`LockMode`], a row of it, and a line of `open`.

#[cfg(feature = "other-locks")]
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValue;
#[cfg(feature = "other-locks")]
use fenced_lock::{
    BackendError, BackendErrorKind, FileBackend, FileOptions, PostgresAdvisoryBackend,
    PostgresBackend, PostgresOptions, RedisBackend, RedisOptions, RedlockBackend, ZooKeeperBackend,
    ZooKeeperOptions,
};
use flash_sale::sale::GuardStatus;

#[cfg(feature = "other-locks")]
use super::AnyLock;
use crate::baselines::Fence;

/// What guards the sale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockMode {
    #[default]
    Etcd,
    Redis,
    Redlock,
    Postgres,
    PostgresAdvisory,
    ZooKeeper,
    File,
    Local,
    NoLock,
    EtcdRecipe,
    EtcdRpc,
    AtomicScript,
}

/// What a guard needs besides the stock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    None,
    Etcd,
    Redis { nodes: usize },
    Postgres,
    ZooKeeper,
    Directory,
}

/// All that differs between the guards.
struct Guard {
    /// On the command line.
    name: &'static str,
    /// In a sentence: "guarded by ...".
    words: &'static str,
    server: Server,
    /// Whether it is a lock of the library that all instances share.
    is_shared: bool,
    /// What it oversells for: in a status, as its warning, and after the verdict.
    flaw: Option<[&'static str; 3]>,
}

const ALL: [LockMode; 12] = [
    LockMode::Etcd,
    LockMode::Redis,
    LockMode::Redlock,
    LockMode::Postgres,
    LockMode::PostgresAdvisory,
    LockMode::ZooKeeper,
    LockMode::File,
    LockMode::Local,
    LockMode::NoLock,
    LockMode::EtcdRecipe,
    LockMode::EtcdRpc,
    LockMode::AtomicScript,
];

impl LockMode {
    fn guard(self) -> Guard {
        let lock = |name, words, server| Guard { name, words, server, is_shared: true, flaw: None };
        let baseline =
            |name, words, server, flaw| Guard { name, words, server, is_shared: false, flaw };
        match self {
            Self::Etcd => lock("etcd", "the lock in etcd", Server::Etcd),
            Self::Redis => lock("redis", "the lock in Redis", Server::Redis { nodes: 1 }),
            Self::Redlock => lock("redlock", "Redlock", Server::Redis { nodes: 3 }),
            Self::Postgres => lock("postgres", "the lock in PostgreSQL", Server::Postgres),
            Self::PostgresAdvisory => {
                lock("postgres-advisory", "PostgreSQL's advisory lock", Server::Postgres)
            }
            Self::ZooKeeper => lock("zookeeper", "the lock in ZooKeeper", Server::ZooKeeper),
            Self::File => lock("file", "the lock in a directory", Server::Directory),
            Self::Local => baseline(
                "local",
                "a lock in each instance",
                Server::None,
                Some([
                    "a lock in each instance",
                    "Each instance guards the stock against itself alone: two of them sell units twice.",
                    "That is what happens without a lock between the instances: each one guards the stock only against itself.",
                ]),
            ),
            Self::NoLock => baseline(
                "no-lock",
                "no lock",
                Server::None,
                Some([
                    "nothing",
                    "Nothing guards the stock: units are sold twice.",
                    "That is what happens without a lock.",
                ]),
            ),
            Self::EtcdRecipe => {
                baseline("etcd-recipe", "the lock recipe of Go's etcd client", Server::Etcd, None)
            }
            Self::EtcdRpc => baseline("etcd-rpc", "etcd's Lock call", Server::Etcd, None),
            Self::AtomicScript => {
                baseline("atomic-script", "no lock, one atomic script", Server::None, None)
            }
        }
    }

    /// The locks of the library that all instances share.
    pub fn shared() -> impl Iterator<Item = Self> + Clone {
        ALL.into_iter().filter(|lock| lock.is_shared())
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        self.guard().name
    }

    /// What it is, in a sentence: "guarded by ...".
    pub fn words(self) -> &'static str {
        self.guard().words
    }

    /// What it needs besides the stock.
    pub fn server(self) -> Server {
        self.guard().server
    }

    /// Whether it is a lock of the library that all instances share.
    pub fn is_shared(self) -> bool {
        self.guard().is_shared
    }

    /// The fence of a sale under this lock if `asked` is the one that was asked for: the lock's own, if it has tokens.
    pub fn fence(self, asked: Option<Fence>) -> Fence {
        asked.unwrap_or(if self == Self::Redlock { Fence::Store } else { Fence::Lock })
    }

    /// How many members of etcd a demo under this guard starts.
    pub fn etcd_members(self) -> usize {
        usize::from(self == Self::Etcd || !self.is_shared())
    }

    /// Why this guard oversells, if it does.
    pub fn flaw(self) -> Option<&'static str> {
        self.guard().flaw.map(|[_, _, explanation]| explanation)
    }

    /// The status of a sale under this guard, for the page.
    pub(crate) fn status(self) -> GuardStatus {
        let flaw = self.guard().flaw;
        GuardStatus {
            name: self.name(),
            description: flaw.map_or("the lock", |[description, ..]| description),
            without: Vec::new(),
            warnings: flaw.map(|[_, warning, _]| ("no-lock", warning)).into_iter().collect(),
        }
    }
}

impl ValueEnum for LockMode {
    fn value_variants<'a>() -> &'a [Self] {
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let oversells = if self.flaw().is_some() { "; oversells" } else { "" };
        let value = PossibleValue::new(self.name()).help(format!("{}{oversells}", self.words()));
        Some(if *self == Self::File { value.alias("embedded") } else { value })
    }
}

/// Small beside the TTL of a demo: a key on one node outlives its session by as much.
#[cfg(feature = "other-locks")]
const REDLOCK_TIMEOUT: Duration = Duration::from_millis(150);

/// The lock of this kind at these addresses, of which there is at least one.
#[cfg(feature = "other-locks")]
pub(super) fn open(lock: LockMode, at: &[String]) -> Result<AnyLock, BackendError> {
    let first = &at[0];
    match lock {
        LockMode::Redis => AnyLock::fenced(RedisBackend::new(RedisOptions::new(first))),
        LockMode::Redlock => {
            let request_timeout = REDLOCK_TIMEOUT;
            let node = |url| RedisOptions { request_timeout, ..RedisOptions::new(url) };
            AnyLock::unfenced(RedlockBackend::new(at.iter().map(node)))
        }
        LockMode::Postgres => AnyLock::fenced(PostgresBackend::new(&PostgresOptions::new(first))),
        LockMode::PostgresAdvisory => {
            AnyLock::fenced(PostgresAdvisoryBackend::new(&PostgresOptions::new(first)))
        }
        LockMode::ZooKeeper => {
            AnyLock::fenced(ZooKeeperBackend::new(ZooKeeperOptions::new(at.join(","))))
        }
        LockMode::File => AnyLock::fenced(FileBackend::new(FileOptions::new(first))),
        _ => {
            let what = "it is no lock that instances share";
            Err(BackendError::new(BackendErrorKind::Permanent, what))
        }
    }
}
