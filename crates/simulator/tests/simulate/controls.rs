//! Controls: without each safeguard, a run must break a promise.

use fenced_lock::chaos::Safeguard as Lock;
use flash_sale::safeguard;

use crate::{lock_world, sale_world, shop};

/// The safeguards that can be taken out. For each: the seeds of the story that misses it, or all seeds; and within how many
/// seeds, those of other stories included, one must fail.
pub const CONTROLS: &[(&str, Seeds, u64)] = &[
    ("order-ids", ALL, 1_000),
    ("payload", ALL, 1_000),
    ("fence", ALL, 1_000),
    ("roll-back", ALL, 10_000),
    ("earlier-sale", story(4), 10_000),
    ("change-fence", ALL, 10_000),
    ("claim-cleanup", ALL, 1_000),
    ("local-expiry", ALL, 10_000),
    ("denials", DENIED, 1_000),
    ("handover", CALM, 10_000),
    ("unknown-answer", ALL, 1_000),
    ("unknown-kept", story(5), 10_000),
    ("first-token", story(4), 10_000),
    ("last-token", story(3), 10_000),
    ("larger-token", story(2), 10_000),
    ("put-back-in-order", story(9), 10_000),
    ("in-flight", story(6), 10_000),
    ("repeat-if-it-may-pass", story(8), 10_000),
    ("repeat-unless-refused", story(1), 1_000),
    ("repeat-in-time", story(10), 1_000),
    ("repeat-unless-ending", story(7), 10_000),
    ("repeat-in-tenure", story(0), 10_000),
    ("give-way", story(0), 10_000),
    ("peer-tenure", ALL, 10_000),
    ("peer-once", story(11), 10_000),
    ("peer-young", story(12), 10_000),
    ("peer-in-order", story(13), 10_000),
    ("peer-silence", story(13), 10_000),
    ("peer-patience", story(15), 10_000),
    ("peer-first-token", story(14), 10_000),
    ("peer-watermark", ALL, 10_000),
    ("peer-compared", ALL, 10_000),
];

/// The first seed, and the distance to the next one.
pub type Seeds = (u64, u64);

const ALL: Seeds = (1, 1);
const DENIED: Seeds = (lock_world::DENIED, lock_world::DENIED);
const CALM: Seeds = (lock_world::CALM, lock_world::DENIED);

const fn story(number: u64) -> Seeds {
    (4 * number + 2, 4 * sale_world::STORIES.len() as u64)
}

/// The safeguards of the lock.
const OF_THE_LOCK: [(&str, Lock); 4] = [
    ("claim-cleanup", Lock::ClaimCleanup),
    ("local-expiry", Lock::LocalExpiry),
    ("denials", Lock::Denials),
    ("handover", Lock::Handover),
];

/// Switches a safeguard on or off. Returns whether it exists. The safeguards of the script are taken out of its text.
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
