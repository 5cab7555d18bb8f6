//! Why there is no result.

use std::io;

use testkit::ServerError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// The flags, or this machine, do not allow it.
    #[error("{0}")]
    Refused(String),
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
    /// A system call failed.
    #[error("{what}")]
    System {
        /// The failed operation.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

impl DemoError {
    /// Names the operation that the system refused.
    pub fn system(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
