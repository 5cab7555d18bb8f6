//! Why there is no verdict.

use std::io;

use testkit::server::ServerError;

/// Why the demo could not be run to its verdict. Each one says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// The ports of the instances would not exist.
    #[error("{instances} instances, 10 ports apart, need a --port of {highest} or lower")]
    PortsTooHigh {
        /// How many instances were asked for.
        instances: u16,
        /// The highest first port with which all of them have one.
        highest: u16,
    },
    /// Another program listens where an instance should.
    #[error("port {0} is taken: stop what listens there or choose another with --port")]
    PortTaken(u16),
    /// The system does not let us listen there.
    #[error("port {port} cannot be used ({source}): choose another with --port")]
    PortRefused {
        /// The port.
        port: u16,
        /// What the system says.
        source: io::Error,
    },
    /// The load test ended without a report.
    #[error("the load test came to no verdict{}", .0)]
    NoVerdict(String),
    /// A server or an instance does not run.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What could not be done.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

impl DemoError {
    pub(super) fn system(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
