//! Why there is no result.

use std::io;

use demo::DemoError;
use fenced_lock::LockError;
use testkit::ServerError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// There is no such scenario.
    #[error("there is no scenario {0:?}: `lab chaos --list` lists them")]
    NoSuchScenario(String),
    /// A cluster or a load test did not start, or gave no result.
    #[error(transparent)]
    Demo(#[from] DemoError),
    /// A condition did not come true in time.
    #[error("not within {seconds} s: {what}")]
    NotInTime {
        /// The condition.
        what: &'static str,
        /// The time limit.
        seconds: u64,
    },
    /// The accident of a story did not happen.
    #[error("a story went another way: it needs that {0}")]
    NotAsExpected(&'static str),
    /// A request to etcd failed.
    #[error("a request to etcd failed")]
    Etcd(#[source] Box<etcd_client::Error>),
    /// A request to Redis failed.
    #[error("a request to Redis failed")]
    Redis(#[from] redis::RedisError),
    /// A request to PostgreSQL failed.
    #[error("a request to PostgreSQL failed")]
    Postgres(#[from] tokio_postgres::Error),
    /// A request to ZooKeeper failed.
    #[error("a request to ZooKeeper failed")]
    ZooKeeper(#[from] zookeeper_client::Error),
    /// The lock could not be held.
    #[error("the lock could not be held")]
    Lock(#[from] LockError),
    /// A system call failed.
    #[error("{what}")]
    System {
        /// The failed operation.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

impl From<etcd_client::Error> for LabError {
    fn from(error: etcd_client::Error) -> Self {
        Self::Etcd(Box::new(error))
    }
}

impl From<io::Error> for LabError {
    fn from(source: io::Error) -> Self {
        Self::System { what: "a process or a file is not as it should be", source }
    }
}

impl From<ServerError> for LabError {
    fn from(error: ServerError) -> Self {
        Self::Demo(error.into())
    }
}

impl LabError {
    pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
