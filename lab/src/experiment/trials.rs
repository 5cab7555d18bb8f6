//! The same case again and again.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use futures_util::future::try_join_all;
use rand::{Rng as _, SeedableRng as _};
use rand_xoshiro::SplitMix64;

use super::note;

/// Trials of one kind, which workers share.
pub(crate) struct Trials {
    what: String,
    count: u32,
    jobs: usize,
    seed: u64,
    next: AtomicU32,
}

impl Trials {
    /// `what` names the trials in messages, and gives them random choices of their own. At most `jobs` of them run at a time.
    pub(crate) fn new(what: impl Into<String>, count: u32, jobs: usize, seed: u64) -> Self {
        Self { what: what.into(), count, jobs, seed, next: AtomicU32::new(0) }
    }

    /// Runs at most `most` workers side by side. Each takes trials until none is left, and returns their results.
    ///
    /// # Errors
    /// The error of the first worker that fails: it ends the others.
    pub(crate) async fn run<T>(
        &self,
        most: usize,
        worker: impl AsyncFn() -> Result<Vec<T>>,
    ) -> Result<Vec<T>> {
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        let workers = (0..self.jobs.min(most).min(count)).map(|_| worker());
        Ok(try_join_all(workers).await?.into_iter().flatten().collect())
    }

    /// The random choices of the next trial, if there is one.
    pub(crate) fn next(&self) -> Option<SplitMix64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.count).then(|| {
            note(&format!("{}, {} of {}", self.what, number + 1, self.count));
            random(self.seed.wrapping_add(u64::from(number)), &self.what)
        })
    }
}

/// Random numbers for this name, independent of those for other names.
pub(crate) fn random(seed: u64, name: &str) -> SplitMix64 {
    let mix = |seed, byte| SplitMix64::seed_from_u64(seed ^ u64::from(byte)).next_u64();
    SplitMix64::seed_from_u64(name.bytes().fold(seed, mix))
}

/// Runs each of `cases` cases once in each of `rounds` rounds; yields round and case. The first case changes from round to
/// round, and every other round goes backwards, so that no case always follows the same one.
pub(crate) fn rounds(rounds: usize, cases: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rounds).flat_map(move |round| {
        let place = move |case| if round % 2 == 0 { case } else { cases - 1 - case };
        (0..cases).map(move |case| (round, (round + place(case)) % cases))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: workers share the trials, and each trial is done once.
    #[tokio::test]
    async fn workers_share_trials() {
        let trials = Trials::new("a fault", 5, 2, 1);
        let worker = async || {
            let mut done = 0;
            while trials.next().is_some() {
                done += 1;
                tokio::task::yield_now().await;
            }
            Ok(vec![done])
        };
        assert_eq!(trials.run(usize::MAX, worker).await.expect("none fails"), [3, 2]);
    }

    /// Goal: each round has every case once, and no case always follows the same one.
    #[test]
    fn rounds_mix_the_cases() {
        let all: Vec<_> = rounds(4, 3).map(|(_, case)| case).collect();
        assert_eq!(all, [0, 1, 2, 0, 2, 1, 2, 0, 1, 2, 1, 0]);
    }

    /// Goal: a seed repeats the choices, and each name has its own choices.
    #[test]
    fn the_seed_decides() {
        let choice = |seed, name| random(seed, name).next_u64();
        assert_eq!(choice(7, "a"), choice(7, "a"));
        assert_ne!(choice(7, "a"), choice(8, "a"));
        assert_ne!(choice(7, "a"), choice(7, "b"));
    }
}
