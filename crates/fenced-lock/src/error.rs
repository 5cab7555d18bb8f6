//! What can go wrong, and whether trying again is safe.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a lock was not granted, kept or released.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The lock was not granted in the time allowed. The claim is being withdrawn.
    #[error("the lock was not granted within {waited:?}")]
    Timeout {
        /// The time allowed.
        waited: Duration,
    },
    /// The hold is gone: its lease ran out or was revoked, or its claim was deleted. Somebody else
    /// may hold the lock by now.
    #[error("the lock was lost")]
    Lost,
    /// The session is gone, and all its claims with it: open a new one.
    #[error("the session is lost: {reason}")]
    SessionLost {
        /// How it was lost.
        reason: LostReason,
    },
    /// This owner does not hold this lock, or not any more: an unlock too many, or by a stranger.
    #[error("this owner does not hold the lock")]
    NotHeld,
    /// One owner entered the same lock more than [`u32::MAX`] times.
    #[error("one owner entered the same lock too often")]
    TooManyEntries,
    /// The name cannot be a lock's.
    #[error(
        "a lock name is 1 to {} bytes and has no control characters",
        super::MAX_NAME_LENGTH_BYTES
    )]
    InvalidName,
    /// The backend failed.
    #[error("the lock service failed")]
    Backend(#[from] BackendError),
}

impl LockError {
    /// Whether the same call may succeed later in the same session. After [`Lost`](Self::Lost) and
    /// [`SessionLost`](Self::SessionLost) it takes a new grant, or a new session. A call can always be
    /// repeated safely: what a failed one put into the queue is being withdrawn.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Timeout { .. } => true,
            Self::Backend(error) => {
                matches!(error.kind, BackendErrorKind::Transient | BackendErrorKind::Refused)
            }
            Self::Lost
            | Self::SessionLost { .. }
            | Self::NotHeld
            | Self::TooManyEntries
            | Self::InvalidName => false,
        }
    }
}

/// How a session was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease was not renewed in time: this process was paused, or the lock service did not
    /// answer.
    Expired,
    /// The lock service says that the lease is gone.
    Revoked,
    /// A claim could not be withdrawn within a TTL. The session was given up, so that the claim goes
    /// with its lease.
    ReleaseFailed,
    /// The session was closed.
    Closed,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease was not renewed in time",
            Self::Revoked => "its lease is gone",
            Self::ReleaseFailed => "it was given up, since a claim could not be withdrawn",
            Self::Closed => "it was closed",
        })
    }
}

/// What a backend's failure means for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// No answer: the request may or may not have been carried out. Repeating it is safe and may
    /// succeed.
    Transient,
    /// It was answered, and not carried out: the service has no room, or too much to do. It may
    /// succeed later.
    Refused,
    /// The lease does not exist any more.
    LeaseGone,
    /// The claim does not exist any more.
    ClaimGone,
    /// Repeating it cannot help: wrong credentials, no permission, a malformed address.
    Permanent,
}

/// A failure of a [`Backend`](super::Backend).
#[derive(Clone)]
pub struct BackendError {
    /// What it means.
    pub kind: BackendErrorKind,
    source: Arc<dyn Error + Send + Sync>,
}

impl BackendError {
    /// A failure of this kind with its cause.
    pub fn new(kind: BackendErrorKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { kind, source: Arc::from(source.into()) }
    }
}

impl fmt::Debug for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendError")
            .field("kind", &self.kind)
            .field("source", &self.source)
            .finish()
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            BackendErrorKind::Transient => "the lock service did not answer as it should",
            BackendErrorKind::Refused => "the lock service cannot do it now",
            BackendErrorKind::LeaseGone => "the lease is gone",
            BackendErrorKind::ClaimGone => "the claim is gone",
            BackendErrorKind::Permanent => "the lock service refused",
        })
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
