//! Which clients go away: a function of the seed and the order's number, so that a run can be repeated.

use std::time::Duration;

use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_xoshiro::SplitMix64;

/// The longest time before a client goes away.
const LONGEST_STAY: Duration = Duration::from_millis(3);

/// How long it stays away before a retry.
const SHORTEST_AWAY: Duration = Duration::from_millis(50);
const LONGEST_AWAY: Duration = Duration::from_millis(500);

/// Which clients go away in mid-request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abandon {
    pub(crate) seed: u64,
    /// Of all orders, 0 to 1.
    pub(crate) share: f64,
}

/// How a client goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leave {
    /// The time since it sent the request.
    pub(crate) after: Duration,
    /// The time before its retry, if it comes back.
    pub(crate) back: Option<Duration>,
}

impl Abandon {
    /// Whether the client of order `number` goes away, and how: half of them never come back.
    pub(crate) fn leave(self, number: usize) -> Option<Leave> {
        let number = u64::try_from(number).expect("a count of things in memory fits 64 bits");
        let seed = SplitMix64::seed_from_u64(self.seed).next_u64() ^ number;
        let mut rng = SplitMix64::seed_from_u64(seed);
        if !rng.random_bool(self.share) {
            return None;
        }
        // half of them leave at once
        let after = LONGEST_STAY.mul_f64(rng.random_range(-1.0..1.0_f64).max(0.0));
        let back = rng.random_range(SHORTEST_AWAY..LONGEST_AWAY);
        Some(Leave { after, back: rng.random_bool(0.5).then_some(back) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: about the share goes away, half of them for good, the same ones with the same seed.
    #[test]
    fn share_goes_away() {
        let leaving = |seed, share| -> Vec<_> {
            (0..10_000).map(|number| Abandon { seed, share }.leave(number)).collect()
        };
        let found = leaving(7, 0.1);
        let gone = found.iter().flatten().count();
        let back = found.iter().flatten().filter(|leave| leave.back.is_some()).count();
        assert!((900..1100).contains(&gone), "{gone} of 10,000");
        assert!((400..600).contains(&back), "{back} come back");
        assert_eq!(found, leaving(7, 0.1));
        assert_ne!(found, leaving(8, 0.1));
        assert_eq!(leaving(7, 0.0).iter().flatten().count(), 0);
        assert_eq!(leaving(7, 1.0).iter().flatten().count(), 10_000);
    }
}
