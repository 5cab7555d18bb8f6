//! Choices that a seed decides.

use std::time::Duration;

/// A small generator of numbers that look random (`SplitMix64`). The same seed gives the same ones, so
/// that a run can be repeated.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    /// One stream of choices for each purpose of a run.
    pub(super) fn new(seed: u64, purpose: &str) -> Self {
        // FNV-1a: which scenario runs beside which must not change what it does
        let hash = purpose.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(seed ^ hash)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of the numbers below `end`; 0 if there is none.
    pub(super) fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % end).unwrap_or(0)
    }

    /// A time from `least` to `most`, in milliseconds.
    pub(super) fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.next() % (most - least + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a seed repeats a run, and each scenario has choices of its own.
    #[test]
    fn the_seed_decides() {
        let choices = |seed, purpose| {
            let mut random = Rng::new(seed, purpose);
            [random.next(), random.next(), random.next()]
        };
        assert_eq!(choices(7, "scenario"), choices(7, "scenario"));
        assert_ne!(choices(7, "scenario"), choices(8, "scenario"));
        assert_ne!(choices(7, "scenario"), choices(7, "another scenario"));
    }

    /// Goal: choices stay in their bounds, and reach both ends.
    #[test]
    fn choices_are_in_bounds() {
        let mut random = Rng::new(1, "bounds");
        let times: Vec<_> = (0..1000).map(|_| random.millis(5, 9).as_millis()).collect();
        assert!(times.iter().all(|time| (5..=9).contains(time)));
        assert!(times.contains(&5) && times.contains(&9));
        assert!((0..1000).all(|_| random.below(3) < 3));
        assert_eq!(random.below(0), 0);
    }
}
