//! What etcd's failures mean.

use std::time::Duration;

use etcd_client::Error;

use crate::lock::{BackendError, BackendErrorKind};

/// gRPC status codes (`google.golang.org/grpc/codes`), as far as they are told apart here.
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

/// Runs a request, at most for `limit`.
pub(super) async fn within<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, BackendError> {
    match tokio::time::timeout(limit, request).await {
        Ok(result) => result.map_err(backend_error),
        Err(elapsed) => Err(BackendError::new(BackendErrorKind::Transient, elapsed)),
    }
}

pub(super) fn backend_error(error: Error) -> BackendError {
    let kind = match &error {
        Error::GRpcStatus(status) => match status.code() as i32 {
            // the only thing that a request here can miss is its lease
            code::NOT_FOUND => BackendErrorKind::Gone,
            // wrong credentials; an expired auth token is renewed by the client and not seen here
            code::INVALID_ARGUMENT | code::PERMISSION_DENIED | code::UNAUTHENTICATED => {
                BackendErrorKind::Permanent
            }
            _ => BackendErrorKind::Transient,
        },
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
            BackendErrorKind::Permanent
        }
        _ => BackendErrorKind::Transient,
    };
    BackendError::new(kind, error)
}

pub(super) fn gone(what: &'static str) -> BackendError {
    BackendError::new(BackendErrorKind::Gone, what)
}

/// An answer that etcd does not give; a proxy in between, perhaps.
pub(super) fn malformed(what: &'static str) -> BackendError {
    BackendError::new(BackendErrorKind::Transient, what)
}
