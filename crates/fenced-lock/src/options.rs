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

/// An address of hosts and ports for logs. Not shown if it may contain a secret, such as a password.
#[allow(dead_code, reason = "not every backend has such an address")]
pub(crate) fn shown(address: &str) -> &str {
    if address.contains(['@', '?', '#']) { "(not shown)" } else { address }
}
