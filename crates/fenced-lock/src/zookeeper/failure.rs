//! What ZooKeeper's errors mean.

use zookeeper_client::Error;

use crate::{BackendError, BackendErrorKind};

pub(super) fn backend_error(error: impl Into<Error>) -> BackendError {
    let error = error.into();
    let kind = match error {
        // the client library gives up a session when the servers have, and when it cannot connect any more
        Error::SessionExpired | Error::SessionMoved | Error::ClientClosed => {
            BackendErrorKind::LeaseGone
        }
        Error::QuotaExceeded | Error::Throttled | Error::NotReadOnly => BackendErrorKind::Refused,
        // an answer that makes no sense makes none the next time either
        Error::UnmarshalError { .. }
        | Error::UnexpectedError(_)
        | Error::NoAuth
        | Error::AuthFailed
        | Error::InvalidAcl
        | Error::BadArguments(_)
        | Error::NoChildrenForEphemerals
        | Error::MarshallingError => BackendErrorKind::Permanent,
        Error::Unimplemented => {
            let words = format!("the server is older than ZooKeeper 3.6: {error}");
            return BackendError::in_words(BackendErrorKind::Permanent, words, error);
        }
        _ => BackendErrorKind::Transient,
    };
    BackendError::new(kind, error)
}
