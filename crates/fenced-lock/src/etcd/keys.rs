//! How claims are written as etcd keys.
//!
//! A lock `NAME` is queued for under `NAME/`, as Go's `concurrency.NewMutex(session, NAME)`,
//! `etcdctl lock NAME` and the server's `Lock` RPC do with their keys `NAME/<lease in hex>`, so that
//! they and this library exclude each other.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Claim;
use crate::chaos::Safeguard;

/// What all keys of a lock begin with. It ends in `/`, so `item-1` never meets `item-10`.
pub(super) fn prefix(name: &str) -> String {
    if !Safeguard::ExactPrefix.is_on() {
        return name.to_owned();
    }
    format!("{name}/")
}

/// What the keys of claims on this lease begin with, if this library made them. `prefix` is the lock's.
pub(super) fn begin(prefix: &str, lease: i64) -> Vec<u8> {
    format!("{prefix}{lease:x}-").into_bytes()
}

/// The first key behind those of the lock and of longer names.
pub(super) fn end(name: &str) -> Vec<u8> {
    let mut end = prefix(name).into_bytes();
    // never the largest byte, which is in no text
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// Whether `key` is a claim on the lock whose keys begin with `prefix`: the keys of `a/b` begin with
/// `a/` too, but claim another lock.
pub(super) fn is_claim(key: &[u8], prefix: &str) -> bool {
    let rest = key.strip_prefix(prefix.as_bytes());
    rest.is_some_and(|rest| !rest.contains(&b'/') || !Safeguard::ExactPrefix.is_on())
}

/// The value of a claim's key: when it was made, in milliseconds since 1970, and by whom. Nothing
/// but the queue view reads it.
pub(super) fn value(claim: &Claim) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{} {}", now.as_millis(), claim.label)
}

/// Who made the claim with this value, and how long ago; nothing for a claim of another library.
pub(super) fn parse_value(value: &[u8]) -> Option<(String, Duration)> {
    let (made_at_ms, label) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    let made_at = UNIX_EPOCH.checked_add(Duration::from_millis(made_at_ms.parse().ok()?))?;
    // a clock that runs ahead of ours is no reason for an error
    let age = SystemTime::now().duration_since(made_at).unwrap_or_default();
    Some((label.to_owned(), age))
}
