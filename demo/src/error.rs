//! Why there is no result.

use std::io;

use testkit::ServerError;

use crate::locks::LockMode;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
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
        locks = shared_locks()
    )]
    NotBeside(&'static str),
    /// A lock that this program was built without.
    #[error(
        "this program was built for a sale under etcd, without {0}: `make demo ARGS='--lock {0}'` builds it in"
    )]
    NotBuilt(&'static str),
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

fn shared_locks() -> String {
    LockMode::shared().map(LockMode::name).collect::<Vec<_>>().join(", ")
}

impl DemoError {
    /// Names the operation that the system refused.
    pub fn system(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
