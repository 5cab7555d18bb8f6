//! The errors, and whether trying again is safe.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The most bytes that a lock's name may have, and a claim's note.
pub(crate) const MAX_NAME_LENGTH_BYTES: usize = 256;

/// The reason for which a lock was not granted, kept or released.
///
/// | error | what to do |
/// |---|---|
/// | `Timeout` | try later |
/// | `Lost` from `lock` | call it again |
/// | `Lost` from `run`, `unlock`, `requeue` or `with` | stop the work; writes that the store accepted with the token stand |
/// | `SessionLost` | use a [`SessionKeeper`](super::SessionKeeper); if it was closed, end |
/// | `Backend` | if [`is_retryable`](Self::is_retryable), try again after a pause; else settings or rights are wrong |
/// | `InvalidName`, `InvalidNote` | correct the caller |
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// There was no session within the allowed time.
    #[error("there was no {what} within {waited:?}")]
    Timeout {
        /// What was waited for.
        what: Arc<str>,
        /// The time allowed.
        waited: Duration,
    },
    /// The claim, granted or waiting, is gone: its lease expired or was revoked, or its key was deleted. Another claim may hold
    /// the lock now.
    #[error("the lock {name:?} was lost after {after:?}")]
    Lost {
        /// The lock's name.
        name: Arc<str>,
        /// How long it was held, or waited for.
        after: Duration,
    },
    /// The session is gone, and all its claims with it: open a new one.
    #[error("the session is lost: {reason}")]
    SessionLost {
        /// How it was lost.
        reason: LostReason,
    },
    /// The name cannot be a lock's.
    #[error(
        "a lock name has 1 to {} bytes and no control characters, unlike {name:?}",
        MAX_NAME_LENGTH_BYTES
    )]
    InvalidName {
        /// The name.
        name: String,
    },
    /// The note cannot be a claim's.
    #[error("a note has {} bytes of visible ASCII at most, unlike {note:?}", MAX_NAME_LENGTH_BYTES)]
    InvalidNote {
        /// The note.
        note: String,
    },
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl LockError {
    /// Whether taking the lock again may succeed in the same session. (After [`SessionLost`](Self::SessionLost), open a new one.)
    /// Calling [`lock`](super::Mutex::lock) again is always safe, also for the same owner: it makes a new claim, and the failed
    /// call's claim is withdrawn.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Timeout { .. } | Self::Lost { .. } => true,
            Self::Backend(error) => error.kind.may_pass(),
            Self::SessionLost { .. } | Self::InvalidName { .. } | Self::InvalidNote { .. } => false,
        }
    }
}

/// How a session was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease was not renewed in time: this process was paused, or the lock service did not answer.
    #[error("its lease was not renewed in time")]
    Expired,
    /// The lock service says that the lease is gone.
    #[error("its lease is gone")]
    Revoked,
    /// A claim could not be withdrawn within a TTL. The session was given up, so that the claim ends with its lease.
    #[error("it was given up, since a claim could not be withdrawn")]
    ReleaseFailed,
    /// The session was closed.
    #[error("it was closed")]
    Closed,
}

/// The meaning of a backend's failure for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// No usable answer: the request may or may not have been carried out. Repeating it is safe and may succeed.
    Transient,
    /// The service answered, and did not carry the request out: it has no room, or too much to do. The request may succeed later.
    Refused,
    /// The lease no longer exists.
    LeaseGone,
    /// Repeating the request cannot help: wrong credentials, no permission, a malformed address.
    Permanent,
}

impl BackendErrorKind {
    /// Whether the same request may succeed later.
    pub(crate) fn may_pass(self) -> bool {
        matches!(self, Self::Transient | Self::Refused)
    }
}

/// A failure of a [`Backend`](super::Backend). Its text says what it means. Its [`source`](Error::source) is the client library's
/// error, and `{:#}` shows both. Two failures are equal if their kinds and these texts are.
#[derive(Clone, Debug)]
pub struct BackendError {
    /// The meaning of the failure.
    pub kind: BackendErrorKind,
    cause: Arc<dyn Error + Send + Sync>,
    /// Text for people, if the causes' own texts are not for people.
    words: Option<Arc<str>>,
}

impl BackendError {
    /// A failure of this kind with its cause.
    pub fn new(kind: BackendErrorKind, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { kind, cause: Arc::from(cause.into()), words: None }
    }

    /// A failure of the kind [`Transient`](BackendErrorKind::Transient).
    pub fn transient(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(BackendErrorKind::Transient, cause)
    }

    /// A failure of the kind [`LeaseGone`](BackendErrorKind::LeaseGone), of which no more is known.
    pub fn lease_gone() -> Self {
        Self::new(BackendErrorKind::LeaseGone, "it has ended, or was closed or revoked")
    }

    /// A failure of the kind [`Permanent`](BackendErrorKind::Permanent).
    pub fn permanent(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(BackendErrorKind::Permanent, cause)
    }

    /// A failure with this text in place of the texts of its causes.
    #[allow(dead_code, reason = "the backend in memory does not use it")]
    pub(crate) fn in_words(
        kind: BackendErrorKind,
        words: impl Into<Arc<str>>,
        cause: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self { words: Some(words.into()), ..Self::new(kind, cause) }
    }

    /// The cause, if it is of this type.
    #[cfg(feature = "etcd")]
    pub(crate) fn cause<T: Error + 'static>(&self) -> Option<&T> {
        self.cause.downcast_ref()
    }
}

impl PartialEq for BackendError {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && format!("{self:#}") == format!("{other:#}")
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            BackendErrorKind::Transient => "the lock service did not answer as it should",
            BackendErrorKind::Refused => "the lock service cannot do it now",
            BackendErrorKind::LeaseGone => "the lease is gone",
            BackendErrorKind::Permanent => "the lock service cannot be used",
        })?;
        if !f.alternate() {
            return Ok(());
        }
        if let Some(words) = &self.words {
            return write!(f, ": {words}");
        }
        // client libraries repeat the texts of their sources
        let mut shown = String::new();
        for cause in std::iter::successors(self.source(), |cause| (*cause).source()) {
            let text = cause.to_string();
            if !shown.contains(&text) {
                write!(f, ": {text}")?;
                shown.push_str(&text);
            }
        }
        Ok(())
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.cause)
    }
}
