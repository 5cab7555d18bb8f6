//! What ZooKeeper's errors mean.

use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client::Error;

use crate::{BackendError, BackendErrorKind};

/// Waits for an answer for at most `limit`. The request stays under way after that; requests of one session are
/// carried out in their order, so that no later one comes before it.
pub(super) async fn within<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout(limit, request).await.unwrap_or(Err(Error::Timeout))
}

pub(super) fn backend_error(error: Error) -> BackendError {
    let kind = match error {
        // the client gives up a session when the servers have, and when it cannot connect any more
        Error::SessionExpired | Error::SessionMoved | Error::ClientClosed => {
            BackendErrorKind::LeaseGone
        }
        Error::QuotaExceeded | Error::Throttled | Error::NotReadOnly => BackendErrorKind::Refused,
        Error::NoAuth
        | Error::AuthFailed
        | Error::InvalidAcl
        | Error::BadArguments(_)
        | Error::NoChildrenForEphemerals
        | Error::MarshallingError => BackendErrorKind::Permanent,
        Error::Unimplemented => {
            let what = "the server is older than ZooKeeper 3.6";
            return BackendError::new(BackendErrorKind::Permanent, what);
        }
        _ => BackendErrorKind::Transient,
    };
    BackendError::new(kind, error)
}

pub(super) fn transient(what: &'static str) -> BackendError {
    BackendError::new(BackendErrorKind::Transient, what)
}

pub(super) fn lease_gone() -> BackendError {
    BackendError::new(BackendErrorKind::LeaseGone, "the session has ended")
}
