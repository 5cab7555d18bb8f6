//! The meaning of ZooKeeper's errors.

use zookeeper_client::Error;

use crate::{BackendError, BackendErrorKind};

pub(super) fn backend_error(error: impl Into<Error>) -> BackendError {
    let error = error.into();
    let kind = match error {
        // the client library ends a session when the servers have ended it, and when it can no longer connect
        Error::SessionExpired | Error::SessionMoved | Error::ClientClosed => {
            BackendErrorKind::LeaseGone
        }
        Error::QuotaExceeded | Error::Throttled | Error::NotReadOnly => BackendErrorKind::Refused,
        // an answer that cannot be parsed will not be parsed the next time either
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
