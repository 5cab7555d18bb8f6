//! What etcd's failures mean.

use etcd_client::Error;

use crate::lock::{BackendError, BackendErrorKind};

/// gRPC status codes (`google.golang.org/grpc/codes`), as far as they are told apart here.
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const OUT_OF_RANGE: i32 = 11;
    pub(super) const UNIMPLEMENTED: i32 = 12;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

pub(super) fn backend_error(error: Error) -> BackendError {
    let kind = match &error {
        Error::GRpcStatus(status) => kind_of(status.code() as i32, status.message()),
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
            BackendErrorKind::Permanent
        }
        _ => BackendErrorKind::Transient,
    };
    BackendError::new(kind, Plain(error))
}

fn kind_of(code: i32, message: &str) -> BackendErrorKind {
    match code {
        // the only thing that a request here can miss is its lease
        code::NOT_FOUND => BackendErrorKind::LeaseGone,
        // a hiccup
        code::RESOURCE_EXHAUSTED if message.contains("too many requests") => {
            BackendErrorKind::Transient
        }
        // out of space
        code::RESOURCE_EXHAUSTED => BackendErrorKind::Refused,
        // users were changed since the client authenticated, which it does anew
        code::INVALID_ARGUMENT if message.contains("revision of auth store is old") => {
            BackendErrorKind::Transient
        }
        // this code also tells that a member is not the leader, which passes
        code::FAILED_PRECONDITION if !message.contains("authentication is not enabled") => {
            BackendErrorKind::Transient
        }
        // wrong credentials or no permission; an auth token that expired is renewed by the client
        // and not seen here
        code::INVALID_ARGUMENT
        | code::PERMISSION_DENIED
        | code::FAILED_PRECONDITION
        | code::OUT_OF_RANGE
        | code::UNIMPLEMENTED
        | code::UNAUTHENTICATED => BackendErrorKind::Permanent,
        _ => BackendErrorKind::Transient,
    }
}

pub(super) fn lease_gone() -> BackendError {
    BackendError::new(BackendErrorKind::LeaseGone, "the lease has expired or was revoked")
}

pub(super) fn claim_gone() -> BackendError {
    BackendError::new(BackendErrorKind::ClaimGone, "the claim to hand over is gone")
}

/// An answer that etcd does not give; a proxy in between, perhaps.
pub(super) fn malformed(what: &'static str) -> BackendError {
    BackendError::new(BackendErrorKind::Transient, what)
}

/// As the client tells it, with the causes of a status in their places: it would write them into its own text.
#[derive(Debug)]
struct Plain(Error);

impl std::fmt::Display for Plain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Error::GRpcStatus(status) => f.write_str(status.message()),
            error => error.fmt(f),
        }
    }
}

impl std::error::Error for Plain {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Error::GRpcStatus(status) => status.source(),
            error => error.source(),
        }
    }
}
