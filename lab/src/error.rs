//! Why there is no result.

use std::io;

use fenced_lock::LockError;
use testkit::ServerError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The ports of the instances would be beyond 65535.
    #[error("{instances} instances, 10 ports apart, need a --port of {highest} or lower")]
    PortsTooHigh {
        /// How many instances were asked for.
        instances: u16,
        /// The highest first port with which all of them have one.
        highest: u16,
    },
    /// A lock beside itself.
    #[error("{0} is given twice: choose another lock with --beside")]
    SameLock(&'static str),
    /// A baseline beside a lock.
    #[error(
        "{0} is no lock that instances share, so it cannot stand beside another: choose two of {locks}; the page \
         offers no-lock and local on both sides",
        locks = crate::baselines::LockMode::SHARED.map(crate::baselines::LockMode::name).join(", ")
    )]
    NotBeside(&'static str),
    /// Another program listens where an instance should.
    #[error("port {0} is taken: stop what listens there or choose another with --port")]
    PortTaken(u16),
    /// The system refuses the port.
    #[error("port {port} cannot be used ({source}): choose another with --port")]
    PortRefused {
        /// The port.
        port: u16,
        /// The system's reason.
        source: io::Error,
    },
    /// There is no such scenario.
    #[error("there is no scenario {0:?}: `lab chaos --list` lists them")]
    NoSuchScenario(String),
    /// A server or an instance did not start.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The load test, or its checker, ended without a report.
    #[error("the load test ended without a report ({status}); the end of its log:\n{tail}")]
    NoReport {
        /// How it ended.
        status: std::process::ExitStatus,
        /// The end of its log.
        tail: String,
    },
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
    NotAsTold(&'static str),
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

impl LabError {
    pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
