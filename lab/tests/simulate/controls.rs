//! Controls: each safeguard taken out, which must be missed.

use fenced_lock::chaos::Safeguard as Lock;
use flash_sale::safeguard;

use crate::shop;

/// The safeguards that can be taken out, each with the story that misses it, if it takes one, and a number of seeds
/// within which it is missed.
pub const CONTROLS: &[(&str, Option<usize>, u64)] = &[
    ("order-ids", None, 10_000),
    ("claim-cleanup", None, 10_000),
    ("payload", None, 10_000),
    ("fence", None, 10_000),
    ("roll-back", None, 10_000),
    ("local-expiry", None, 10_000),
    ("denials", None, 10_000),
    ("earlier-sale", Some(4), 10_000),
    ("give-way", Some(0), 10_000),
    ("unknown-answer", None, 10_000),
    ("unknown-kept", Some(5), 10_000),
    ("first-token", Some(4), 10_000),
    ("last-token", Some(3), 10_000),
    ("larger-token", Some(2), 10_000),
    ("put-back-in-order", Some(9), 10_000),
    ("in-flight", Some(6), 10_000),
    ("repeat-if-it-may-pass", Some(8), 10_000),
    ("repeat-unless-refused", Some(1), 10_000),
    ("repeat-in-time", Some(10), 10_000),
    ("repeat-unless-ending", Some(7), 10_000),
    ("repeat-in-tenure", Some(0), 10_000),
];

/// Those of the lock.
const OF_THE_LOCK: [(&str, Lock); 3] = [
    ("claim-cleanup", Lock::ClaimCleanup),
    ("local-expiry", Lock::LocalExpiry),
    ("denials", Lock::Denials),
];

/// Switches a safeguard on or off. Those of the script are taken out of its text. Returns whether it is there.
pub fn set(name: &str, is_on: bool) -> bool {
    let of_the_lock = OF_THE_LOCK.iter().find(|(known, _)| *known == name);
    let of_the_sale = safeguard::ALL.iter().find(|(known, _)| *known == name);
    if let Some((_, safeguard)) = of_the_lock {
        safeguard.set(is_on);
    }
    if let Some((_, safeguard)) = of_the_sale {
        safeguard.set(is_on);
    }
    let of_the_script = shop::SAFEGUARDS.iter().any(|(known, ..)| *known == name);
    of_the_lock.is_some() || of_the_sale.is_some() || of_the_script
}
