//! Chance from a seed.

use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::SplitMix64;

#[derive(Clone, Debug)]
pub struct Chance(SplitMix64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    /// Another source of chance, whose draws change nothing here.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.number())
    }

    pub fn number(&mut self) -> u64 {
        self.0.random()
    }

    /// A number from zero to below this bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound.max(1)
    }

    /// A number of this range, both ends included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// A time of this range of milliseconds, both ends included.
    pub fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.between(least, most))
    }

    /// Once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub fn per_mille(&mut self, share: u64) -> bool {
        self.below(1000) < share
    }

    /// The place of one of so many.
    pub fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).unwrap_or_default()
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.index(of.len())]
    }
}
