//! Why there is no result.

use std::io;

use testkit::ServerError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// For the reason that this sentence gives.
    #[error("{0}")]
    Sentence(String),
    /// A server or an instance did not start.
    #[error(transparent)]
    Server(#[from] ServerError),
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
