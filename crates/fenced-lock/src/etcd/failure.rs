//! What etcd's failures mean.

use std::error::Error as _;
use std::io;

use etcd_client::{Error, ResponseHeader};

use crate::chaos::Safeguard;
use crate::{BackendError, BackendErrorKind};

/// The gRPC status codes (`google.golang.org/grpc/codes`) that make a difference here.
pub(super) mod code {
    pub(in super::super) const UNKNOWN: i32 = 2;
    pub(in super::super) const INVALID_ARGUMENT: i32 = 3;
    pub(in super::super) const NOT_FOUND: i32 = 5;
    pub(in super::super) const PERMISSION_DENIED: i32 = 7;
    pub(in super::super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(in super::super) const FAILED_PRECONDITION: i32 = 9;
    pub(in super::super) const OUT_OF_RANGE: i32 = 11;
    pub(in super::super) const UNIMPLEMENTED: i32 = 12;
    pub(in super::super) const UNAUTHENTICATED: i32 = 16;
}

const OLD_REVISION: &str = "revision of auth store is old";
const NO_USER: &str = "user name is empty";
const AUTH_IS_OFF: &str = "authentication is not enabled";

pub(super) fn backend_error(error: Error) -> BackendError {
    let kind = match &error {
        error if is_distrust(error) => BackendErrorKind::Permanent,
        // the client made this error, because no answer came
        Error::GRpcStatus(status) if status.source().is_some() => BackendErrorKind::Transient,
        Error::GRpcStatus(status) => kind_of(status.code() as i32, status.message()),
        // here a transport error means unusable certificates, not a failed connection
        Error::InvalidArgs(_)
        | Error::InvalidUri(_)
        | Error::TransportError(_)
        | Error::InvalidMetadataValue(_) => BackendErrorKind::Permanent,
        _ => BackendErrorKind::Transient,
    };
    BackendError::in_words(kind, words_of(&error), error)
}

/// The text of the client's error without repetitions: in its own text each cause repeats the next.
fn words_of(error: &Error) -> String {
    let first: &dyn std::error::Error = match error {
        Error::GRpcStatus(status) => match status.source() {
            Some(cause) => cause,
            None => return status.message().to_owned(),
        },
        Error::TransportError(error) => error,
        error => return error.to_string(),
    };
    match std::iter::successors(first.source(), |cause| (*cause).source()).last() {
        Some(last) => format!("{first}: {last}"),
        None => first.to_string(),
    }
}

/// Whether etcd made this error. A status that the client made, because no answer came, has a source.
pub(super) fn is_answer(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.source().is_none())
}

/// Whether etcd may have carried out a request that failed. Without a connection, the client did not send it.
pub(super) fn may_be_done(error: &Error) -> bool {
    let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    !is_distrust(error) && !io_errors(error).any(is_refused)
}

/// The errors of the connection behind one of the client's.
fn io_errors(error: &Error) -> impl Iterator<Item = &io::Error> {
    let status = if let Error::GRpcStatus(status) = error { status.source() } else { None };
    let causes = std::iter::successors(status, |cause| (*cause).source());
    causes.filter_map(|cause| cause.downcast_ref())
}

/// Whether the client does not trust the member's certificate, and so has sent nothing.
#[cfg(feature = "etcd-tls")]
fn is_distrust(error: &Error) -> bool {
    let mut errors = io_errors(error).filter_map(|error| error.get_ref()?.downcast_ref());
    errors.any(|error| matches!(error, rustls::Error::InvalidCertificate(_)))
}

#[cfg(not(feature = "etcd-tls"))]
fn is_distrust(_: &Error) -> bool {
    false
}

/// Whether the client does not trust the member that it asked last.
pub(super) fn distrusts(error: &BackendError) -> bool {
    error.cause().is_some_and(is_distrust)
}

/// Whether etcd refused the request for its token: the token is missing, has expired or was forgotten, users or roles were
/// changed, or authentication was switched on.
pub(super) fn asks_to_authenticate(error: &Error) -> bool {
    let Error::GRpcStatus(status) = error else { return false };
    match status.code() as i32 {
        code::UNAUTHENTICATED => true,
        // how etcd 3.5.1 says "revision of auth store is old"
        code::UNKNOWN if Safeguard::Reauthentication.is_on() => {
            status.message().contains("revision in header is old")
        }
        code::INVALID_ARGUMENT if Safeguard::Reauthentication.is_on() => {
            let message = status.message();
            message.contains(OLD_REVISION) || message.contains(NO_USER)
        }
        _ => false,
    }
}

/// Whether the answer to an authentication says that authentication is switched off.
pub(super) fn says_auth_is_off(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains(AUTH_IS_OFF))
}

fn kind_of(code: i32, message: &str) -> BackendErrorKind {
    match code {
        // a request of this backend needs nothing to exist but its lease
        code::NOT_FOUND => BackendErrorKind::LeaseGone,
        // a hiccup
        code::RESOURCE_EXHAUSTED if message.contains("too many requests") => {
            BackendErrorKind::Transient
        }
        // out of space
        code::RESOURCE_EXHAUSTED => BackendErrorKind::Refused,
        // the client has just authenticated anew, and does so again at the next request
        code::INVALID_ARGUMENT if message.contains(OLD_REVISION) => BackendErrorKind::Transient,
        // this code can also mean that a member is not the leader, which passes
        code::FAILED_PRECONDITION if !message.contains(AUTH_IS_OFF) => BackendErrorKind::Transient,
        // wrong credentials or no permission
        code::INVALID_ARGUMENT
        | code::PERMISSION_DENIED
        | code::FAILED_PRECONDITION
        | code::OUT_OF_RANGE
        | code::UNIMPLEMENTED => BackendErrorKind::Permanent,
        _ => BackendErrorKind::Transient,
    }
}

/// Whether etcd answered with this gRPC status.
pub(super) fn is_refused_with(error: &BackendError, code: i32) -> bool {
    matches!(error.cause(), Some(Error::GRpcStatus(status)) if status.code() as i32 == code)
}

pub(super) fn header_of(header: Option<&ResponseHeader>) -> Result<&ResponseHeader, BackendError> {
    // etcd's answers have one; a proxy's may not
    header.ok_or_else(|| BackendError::transient("an answer without a header"))
}
