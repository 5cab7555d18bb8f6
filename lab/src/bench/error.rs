//! Why there are no results.

use std::io;

use fenced_lock::LockError;
use testkit::ServerError;

use crate::demo::DemoError;

/// Why the bench could not be run to its end. Each one says what to do or what is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// An instance does not run, or the load test is missing.
    #[error(transparent)]
    Demo(#[from] DemoError),
    /// A server does not run.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The load test ended without a report.
    #[error("the load test on {what} came to no report:\n{log}")]
    NoReport {
        /// What was measured.
        what: String,
        /// The end of what it said.
        log: String,
    },
    /// The outside claim on the lock failed.
    #[error("the lock could not be held while orders wait")]
    Lock(#[from] LockError),
    /// The orders that should wait did not come to rest.
    #[error("{waiting} waiting orders did not come to rest within {seconds} s")]
    NoRest {
        /// How many should wait.
        waiting: usize,
        /// How long that was waited for.
        seconds: u64,
    },
    /// The cost of a commit could not be measured.
    #[error("etcd did not answer while the cost of a commit was measured")]
    Etcd(#[from] Box<etcd_client::Error>),
    /// The system refused something.
    #[error("{what}")]
    System {
        /// What could not be done.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

impl BenchError {
    pub(super) fn system(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
