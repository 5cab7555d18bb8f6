//! Why a row could not be run to its end.

use std::io;

use fenced_lock::LockError;
use testkit::ServerError;

use crate::demo::DemoError;

/// Why there is nothing to judge. Each one says what to do or what is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChaosError {
    /// An instance does not run, or the load test is missing.
    #[error(transparent)]
    Demo(#[from] DemoError),
    /// A server does not run.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// There is no such row.
    #[error("there is no row {0:?}: `lab chaos --list` shows those that there are")]
    NoSuchRow(String),
    /// The load test ended without a report.
    #[error("the load test came to no report; its last words:\n{0}")]
    NoReport(String),
    /// The checker ended without a report.
    #[error("the checker came to no report; its last words:\n{0}")]
    NotChecked(String),
    /// Something that the fault needs did not come about.
    #[error("not within {seconds} s: {what}")]
    NotInTime {
        /// What was waited for.
        what: &'static str,
        /// For how long.
        seconds: u64,
    },
    /// etcd refused something that the fault needs.
    #[error("etcd did not do what the fault needs")]
    Etcd(#[source] Box<etcd_client::Error>),
    /// The lock could not be held.
    #[error("a lock beside the sale's could not be held")]
    Lock(#[from] LockError),
    /// Redis refused something that the fault needs.
    #[error("Redis did not do what the fault needs")]
    Redis(#[from] redis::RedisError),
    /// The system refused something.
    #[error("{what}")]
    System {
        /// What could not be done.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

impl From<etcd_client::Error> for ChaosError {
    fn from(error: etcd_client::Error) -> Self {
        Self::Etcd(Box::new(error))
    }
}

impl ChaosError {
    pub(super) fn system(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
