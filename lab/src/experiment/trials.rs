//! The same case again and again.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use futures_util::future::join_all;
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
    /// `what` names them in messages, and gives them random choices of their own. At most `jobs` run at a time.
    pub(crate) fn new(what: impl Into<String>, count: u32, jobs: usize, seed: u64) -> Self {
        Self { what: what.into(), count, jobs, seed, next: AtomicU32::new(0) }
    }

    /// Runs at most `most` workers side by side. Each takes trials until none is left. Returns the results of all
    /// workers, and why a worker ended early.
    ///
    /// # Errors
    /// No trial was done.
    pub(crate) async fn run<T>(
        &self,
        most: usize,
        worker: impl AsyncFn(&mut Vec<T>) -> Result<()>,
    ) -> Result<(Vec<T>, Vec<String>)> {
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        let run = async || {
            let mut done = Vec::new();
            let ended = worker(&mut done).await;
            (done, ended.err())
        };
        let workers = join_all((0..self.jobs.min(most).min(count)).map(|_| run())).await;
        let (done, errors): (Vec<_>, Vec<_>) = workers.into_iter().unzip();
        let done: Vec<_> = done.into_iter().flatten().collect();
        let mut errors = errors.into_iter().flatten();
        if done.is_empty()
            && let Some(error) = errors.next()
        {
            return Err(error);
        }
        let missing = |error| format!("{}: trials are missing: {error:#}", self.what);
        Ok((done, errors.map(missing).collect()))
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

/// Random numbers for this name. Those for other names do not change them.
pub(crate) fn random(seed: u64, name: &str) -> SplitMix64 {
    let mix = |seed, byte| SplitMix64::seed_from_u64(seed ^ u64::from(byte)).next_u64();
    SplitMix64::seed_from_u64(name.bytes().fold(seed, mix))
}

/// Each of so many cases once in each round: round and case. The case that begins changes from round to round, so that
/// none always follows the heaviest.
pub(crate) fn rounds(rounds: usize, cases: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rounds).flat_map(move |round| (0..cases).map(move |case| (round, (round + case) % cases)))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Goal: a worker that cannot run costs its own trial, not those of the others; without any trial there is an
    /// error.
    #[tokio::test]
    async fn keeps_what_was_done() {
        let trials = || Trials::new("a fault", 5, 2, 1);
        let failed = || anyhow::anyhow!("no server");
        let (shared, begun) = (trials(), Cell::new(0));
        let worker = async |done: &mut Vec<usize>| {
            while shared.next().is_some() {
                let number = begun.replace(begun.get() + 1);
                if number == 1 {
                    return Err(failed());
                }
                done.push(number);
                tokio::task::yield_now().await;
            }
            Ok(())
        };
        let (done, faults) = shared.run(usize::MAX, worker).await.expect("some were done");
        assert_eq!(done, [0, 2, 3, 4]);
        assert_eq!(faults, ["a fault: trials are missing: no server"]);
        let none = trials().run(usize::MAX, async |_: &mut Vec<u32>| Err(failed())).await;
        assert!(none.is_err());
    }

    /// Goal: a seed repeats the choices, and each name has choices of its own.
    #[test]
    fn the_seed_decides() {
        let choice = |seed, name| random(seed, name).next_u64();
        assert_eq!(choice(7, "a"), choice(7, "a"));
        assert_ne!(choice(7, "a"), choice(8, "a"));
        assert_ne!(choice(7, "a"), choice(7, "b"));
    }

    /// Goal: every case once in a round, and each one first in turn.
    #[test]
    fn rounds_rotate() {
        let all: Vec<_> = rounds(2, 3).collect();
        assert_eq!(all, [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 0)]);
    }
}
