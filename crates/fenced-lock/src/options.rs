//! Checks that the options of several backends share.

use std::time::Duration;

use super::BackendError;

/// The longest time that counts. Longer ones are cut to this.
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The shortest time that is accepted.
const SHORTEST: Duration = Duration::from_millis(1);

/// A time that the program sets, cut to [`LONGEST`].
///
/// # Errors
/// [`Permanent`](super::BackendErrorKind::Permanent) if it is shorter than [`SHORTEST`].
pub(crate) fn limit(what: &str, set: Duration) -> Result<Duration, BackendError> {
    if set < SHORTEST {
        let what = format!("{what} of {set:?} is too short: it is {SHORTEST:?} at least");
        return Err(BackendError::permanent(what));
    }
    Ok(set.min(LONGEST))
}

/// Shows options as the name of their type alone: they may contain a password or a key.
#[allow(unused_macros, reason = "options of a file backend have no secret")]
macro_rules! debug_without_secrets {
    ($options:ident) => {
        impl std::fmt::Debug for $options {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($options)).finish_non_exhaustive()
            }
        }
    };
}
#[allow(unused_imports, reason = "options of a file backend have no secret")]
pub(crate) use debug_without_secrets;
