//! Controls: each safeguard taken out, which must be missed.

use fenced_lock::chaos::Safeguard as Lock;
use flash_sale::safeguard;

use crate::shop;

/// The safeguards that can be taken out, each with a number of seeds within which it is missed.
pub const CONTROLS: &[(&str, u64)] = &[
    ("order-ids", 10_000),
    ("claim-cleanup", 10_000),
    ("payload", 10_000),
    ("fence", 10_000),
    ("roll-back", 10_000),
    ("local-expiry", 10_000),
    ("denials", 10_000),
    ("earlier-sale", 10_000),
    ("give-way", 10_000),
    ("unknown-answer", 10_000),
    ("unknown-kept", 10_000),
    ("first-token", 10_000),
    ("last-token", 10_000),
    ("larger-token", 10_000),
    ("put-back-in-order", 10_000),
    ("in-flight", 10_000),
    ("repeat-if-it-may-pass", 10_000),
    ("repeat-unless-refused", 10_000),
    ("repeat-in-time", 10_000),
    ("repeat-unless-ending", 10_000),
    ("repeat-for-somebody", 10_000),
    ("repeat-while-held", 10_000),
    ("repeat-in-tenure", 10_000),
    ("one-step", 10_000),
    ("peer-tenure", 10_000),
    ("peer-once", 10_000),
    ("peer-young", 10_000),
    ("peer-in-order", 10_000),
    ("peer-silence", 10_000),
    ("peer-larger-token", 10_000),
    ("peer-watermark", 10_000),
];

/// Those of the lock.
const OF_THE_LOCK: [(&str, Lock); 4] = [
    ("claim-cleanup", Lock::ClaimCleanup),
    ("local-expiry", Lock::LocalExpiry),
    ("denials", Lock::Denials),
    ("one-step", Lock::OneStep),
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
