//! What is left to chance: a function of the seed and the order's number, so that it can be repeated.

use std::time::Duration;

/// The longest that a client stays which then goes away without a look at an answer.
const LONGEST_STAY: Duration = Duration::from_millis(3);

/// How long it stays away before it asks again.
const SHORTEST_AWAY: Duration = Duration::from_millis(50);
const LONGEST_AWAY: Duration = Duration::from_millis(500);

/// Which clients go away in mid-request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chance {
    seed: u64,
    /// Of all orders, 0 to 1.
    share: f64,
}

/// How a client goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leave {
    /// How long after the request was sent.
    pub(crate) after: Duration,
    /// After what time it asks again, if it does.
    pub(crate) back: Option<Duration>,
}

impl Chance {
    pub(crate) fn new(seed: u64, share: f64) -> Self {
        Self { seed, share }
    }

    /// Whether the client of order `number` goes away, and how: half of them never come back.
    pub(crate) fn leave(&self, number: usize) -> Option<Leave> {
        if self.share <= 0.0 {
            return None;
        }
        let number = u64::try_from(number).expect("a count of things in memory fits 64 bits");
        let mut state = mix(self.seed) ^ number;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            // the upper 32 bits, as a number from 0 to less than 1
            let bits = u32::try_from(mix(state) >> 32).expect("32 bits are left");
            f64::from(bits) / (f64::from(u32::MAX) + 1.0)
        };
        if next() >= self.share {
            return None;
        }
        // half of them leave at once
        let after = LONGEST_STAY.mul_f64((2.0 * next() - 1.0).max(0.0));
        let back = LONGEST_AWAY.mul_f64(next()).max(SHORTEST_AWAY);
        Some(Leave { after, back: (next() < 0.5).then_some(back) })
    }
}

/// Spreads the bits: the finisher of splitmix64.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: about the share goes away, half of them for good, the same ones with the same seed.
    #[test]
    fn share_goes_away() {
        let leaving = |seed, share| -> Vec<_> {
            (0..10_000).map(|number| Chance::new(seed, share).leave(number)).collect()
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
