//! All guards of a sale, in one table: another lock is a row of it, and a variant of [`LockMode`].

use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use fenced_lock::{BackendError, EtcdBackend, EtcdOptions};
use flash_sale::sale::GuardStatus;

#[cfg(not(feature = "other-locks"))]
use self::not_built as other;
use super::AnyLock;
#[cfg(feature = "other-locks")]
use super::other;
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
    PostgresRow,
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

/// Opens a lock at these addresses, of which there is at least one.
type Open = fn(&[String]) -> Result<AnyLock, BackendError>;

struct Guard {
    mode: LockMode,
    /// On the command line.
    name: &'static str,
    /// In a sentence: "guarded by ...".
    words: &'static str,
    server: Server,
    /// `None`: it is no lock of the library that all instances share.
    open: Option<Open>,
    oversells: Option<Oversells>,
}

/// A guard under which units are sold twice.
struct Oversells {
    /// The guard in a status.
    description: &'static str,
    warning: &'static str,
    /// After the verdict.
    explanation: &'static str,
}

impl Guard {
    const fn lock(
        mode: LockMode,
        name: &'static str,
        words: &'static str,
        server: Server,
        open: Open,
    ) -> Self {
        Self { mode, name, words, server, open: Some(open), oversells: None }
    }

    const fn baseline(
        mode: LockMode,
        name: &'static str,
        words: &'static str,
        server: Server,
        oversells: Option<Oversells>,
    ) -> Self {
        Self { mode, name, words, server, open: None, oversells }
    }
}

static GUARDS: [Guard; 13] = [
    Guard::lock(LockMode::Etcd, "etcd", "the lock in etcd", Server::Etcd, |at| {
        AnyLock::fenced(EtcdBackend::new(EtcdOptions::new(at)))
    }),
    Guard::lock(
        LockMode::Redis,
        "redis",
        "the lock in Redis",
        Server::Redis { nodes: 1 },
        other::redis,
    ),
    Guard::lock(
        LockMode::Redlock,
        "redlock",
        "Redlock",
        Server::Redis { nodes: 3 },
        other::redlock,
    ),
    Guard::lock(
        LockMode::Postgres,
        "postgres",
        "the lock in PostgreSQL",
        Server::Postgres,
        other::postgres,
    ),
    Guard::lock(
        LockMode::PostgresAdvisory,
        "postgres-advisory",
        "PostgreSQL's advisory lock",
        Server::Postgres,
        other::postgres_advisory,
    ),
    Guard::lock(
        LockMode::PostgresRow,
        "postgres-row",
        "PostgreSQL's row lock",
        Server::Postgres,
        other::postgres_row,
    ),
    Guard::lock(
        LockMode::ZooKeeper,
        "zookeeper",
        "the lock in ZooKeeper",
        Server::ZooKeeper,
        other::zookeeper,
    ),
    Guard::lock(LockMode::File, "file", "the lock in a directory", Server::Directory, other::file),
    Guard::baseline(
        LockMode::Local,
        "local",
        "a lock in each instance",
        Server::None,
        Some(Oversells {
            description: "a lock in each instance",
            warning: "Each instance guards the stock against itself alone: two of them sell units twice.",
            explanation: "That is what happens without a lock between the instances: each one guards the \
                          stock only against itself.",
        }),
    ),
    Guard::baseline(
        LockMode::NoLock,
        "no-lock",
        "no lock",
        Server::None,
        Some(Oversells {
            description: "nothing",
            warning: "Nothing guards the stock: units are sold twice.",
            explanation: "That is what happens without a lock.",
        }),
    ),
    Guard::baseline(
        LockMode::EtcdRecipe,
        "etcd-recipe",
        "the lock recipe of Go's etcd client",
        Server::Etcd,
        None,
    ),
    Guard::baseline(LockMode::EtcdRpc, "etcd-rpc", "etcd's Lock call", Server::Etcd, None),
    Guard::baseline(
        LockMode::AtomicScript,
        "atomic-script",
        "no lock, one atomic script",
        Server::None,
        None,
    ),
];

impl LockMode {
    fn row(self) -> &'static Guard {
        GUARDS.iter().find(|guard| guard.mode == self).expect("each guard has its row")
    }

    /// The locks of the library that all instances share.
    pub fn shared() -> impl Iterator<Item = Self> + Clone {
        GUARDS.iter().filter(|guard| guard.open.is_some()).map(|guard| guard.mode)
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// What it is, in a sentence: "guarded by ...".
    pub fn words(self) -> &'static str {
        self.row().words
    }

    /// What it needs besides the stock.
    pub fn server(self) -> Server {
        self.row().server
    }

    pub(super) fn open(self) -> Option<Open> {
        self.row().open
    }

    /// Whether it is a lock of the library that all instances share.
    pub fn is_shared(self) -> bool {
        self.row().open.is_some()
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
        self.row().oversells.as_ref().map(|oversells| oversells.explanation)
    }

    /// The status of a sale under this guard, for the page.
    pub(crate) fn status(self) -> GuardStatus {
        let oversells = self.row().oversells.as_ref();
        GuardStatus {
            name: self.name(),
            description: oversells.map_or("the lock", |oversells| oversells.description),
            without: Vec::new(),
            warnings: oversells.map(|it| ("no-lock", it.warning)).into_iter().collect(),
        }
    }
}

impl ValueEnum for LockMode {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<LockMode>> =
            LazyLock::new(|| GUARDS.iter().map(|guard| guard.mode).collect());
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let oversells = if self.flaw().is_some() { "; oversells" } else { "" };
        let value = PossibleValue::new(self.name()).help(format!("{}{oversells}", self.words()));
        Some(if *self == Self::File { value.alias("embedded") } else { value })
    }
}

/// The locks that this program was built without.
#[cfg(not(feature = "other-locks"))]
mod not_built {
    use fenced_lock::{BackendError, BackendErrorKind};

    use super::AnyLock;

    fn refused(_: &[String]) -> Result<AnyLock, BackendError> {
        let what = "this program was built without this lock";
        Err(BackendError::new(BackendErrorKind::Permanent, what))
    }

    pub(super) use self::{
        refused as file, refused as postgres, refused as postgres_advisory,
        refused as postgres_row, refused as redis, refused as redlock, refused as zookeeper,
    };
}
