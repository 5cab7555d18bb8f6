//! What the options of several backends have in common.

use std::time::Duration;

use super::BackendError;

/// Longer times count as this one.
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Shorter ones are over before anything can be done in them.
const SHORTEST: Duration = Duration::from_millis(1);

/// A time that the program sets, as it counts.
///
/// # Errors
/// [`Permanent`](super::BackendErrorKind::Permanent) if it is too short for anything.
pub(crate) fn limit(what: &str, set: Duration) -> Result<Duration, BackendError> {
    if set < SHORTEST {
        let what = format!("{what} of {set:?} is too short: it is {SHORTEST:?} at least");
        return Err(BackendError::permanent(what));
    }
    Ok(set.min(LONGEST))
}

/// What of an address of hosts and ports may be shown: nothing if it has a part that may be secret, such as a password.
#[allow(dead_code, reason = "not every backend has such an address")]
pub(crate) fn shown(address: &str) -> &str {
    if address.contains(['@', '?', '#']) { "(not shown)" } else { address }
}
