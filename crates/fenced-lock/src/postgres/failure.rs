//! What PostgreSQL's errors mean.

use std::error::Error as _;
use std::io;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::{BackendError, BackendErrorKind};

/// An error of a request that was sent.
pub(super) fn failure(error: Error) -> BackendError {
    BackendError::new(kind_of(&error).unwrap_or(BackendErrorKind::Transient), error)
}

/// An error while connecting. What is neither the network's nor the server's is another kind of server, or wrong
/// settings.
pub(super) fn connect_failure(error: Error) -> BackendError {
    BackendError::new(kind_of(&error).unwrap_or(BackendErrorKind::Permanent), error)
}

/// Whether the server has refused this, and would again.
pub(super) fn is_final(error: &Error) -> bool {
    matches!(kind_of(error), Some(BackendErrorKind::Permanent | BackendErrorKind::Refused))
}

/// Whether the server was found to accept no writes, which the client looks at when it connects.
pub(super) fn is_read_only(error: &Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.to_string() == "database does not allow writes")
}

fn kind_of(error: &Error) -> Option<BackendErrorKind> {
    let Some(state) = error.code() else {
        let network = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        return match network.map(io::Error::kind) {
            // an answer that is not PostgreSQL's, a certificate that is not trusted, a malformed name
            Some(io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput) => {
                Some(BackendErrorKind::Permanent)
            }
            Some(_) => Some(BackendErrorKind::Transient),
            None => error.is_closed().then_some(BackendErrorKind::Transient),
        };
    };
    // a claim refers to its lease
    if *state == SqlState::FOREIGN_KEY_VIOLATION {
        return Some(BackendErrorKind::LeaseGone);
    }
    Some(match state.code().get(..2) {
        // out of memory, disk or connections
        Some("53") => BackendErrorKind::Refused,
        // wrong credentials, database, rights, tables or settings
        Some("0A" | "22" | "23" | "28" | "3D" | "3F" | "42") => BackendErrorKind::Permanent,
        // the server starts, ends or became a standby; a statement took too long, or met another one
        _ => BackendErrorKind::Transient,
    })
}
