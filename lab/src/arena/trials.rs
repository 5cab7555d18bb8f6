//! Trials side by side.

use std::sync::atomic::{AtomicU32, Ordering};

use flash_sale::error_chain::ErrorChain;
use futures_util::future::join_all;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_xoshiro::SplitMix64;

use super::options::ArenaOptions;
use crate::error::LabError;

/// Trials of one kind.
pub(super) struct Trials {
    seed: u64,
    next: AtomicU32,
    all: u32,
    jobs: usize,
    what: String,
}

impl Trials {
    /// `what` names them in messages, and gives them moments of their own.
    pub(super) fn new(options: &ArenaOptions, seed: u64, what: String) -> Self {
        let of_name = what
            .bytes()
            .fold(seed, |seed, byte| SplitMix64::seed_from_u64(seed ^ u64::from(byte)).next_u64());
        let all = options.trials();
        Self { seed: of_name, next: AtomicU32::new(0), all, jobs: options.jobs, what }
    }

    /// Runs workers side by side, `most` at the most, each of which takes trials until there are none left. Returns
    /// the trials that were done, and why a worker ended early.
    ///
    /// # Errors
    /// No trial was done.
    pub(super) async fn share<T>(
        &self,
        most: usize,
        worker: impl AsyncFn(&mut Vec<T>) -> Result<(), LabError>,
    ) -> Result<(Vec<T>, Vec<String>), LabError> {
        let workers = self.jobs.min(most).min(usize::try_from(self.all).unwrap_or(usize::MAX));
        let run = async || {
            let mut done = Vec::new();
            let ended = worker(&mut done).await;
            (done, ended.err())
        };
        let (mut done, mut errors) = (Vec::new(), Vec::new());
        for (some, error) in join_all((0..workers).map(|_| run())).await {
            done.extend(some);
            errors.extend(error);
        }
        if done.is_empty()
            && let Some(error) = errors.pop()
        {
            return Err(error);
        }
        let missing = |error| format!("{}: trials are missing: {}", self.what, ErrorChain(&error));
        Ok((done, errors.into_iter().map(missing).collect()))
    }

    /// The next trial: where its random moments come from.
    pub(super) fn next(&self) -> Option<SplitMix64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number >= self.all {
            return None;
        }
        eprintln!("{}, {} of {}", self.what, number + 1, self.all);
        Some(SplitMix64::seed_from_u64(self.seed.wrapping_add(u64::from(number))))
    }
}

/// A number of milliseconds below `limit`.
pub(super) fn millis_below(limit: u64, random: &mut SplitMix64) -> std::time::Duration {
    std::time::Duration::from_millis(random.random_range(0..limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a worker that cannot run costs its own trial, not those of the others; without any trial there is an
    /// error.
    #[tokio::test]
    async fn keeps_what_was_done() {
        let what = "a fault".to_owned();
        let mut trials = Trials { seed: 1, next: AtomicU32::new(0), all: 5, jobs: 2, what };
        let failed = || LabError::NotInTime { what: "a server answers", seconds: 1 };
        let worker = async |done: &mut Vec<u32>| {
            while trials.next().is_some() {
                let number = trials.next.load(Ordering::Relaxed);
                if number == 2 {
                    return Err(failed());
                }
                done.push(number);
                tokio::task::yield_now().await;
            }
            Ok(())
        };
        let (done, faults) = trials.share(usize::MAX, worker).await.expect("some were done");
        assert_eq!(done, [1, 3, 4, 5]);
        let told = "a fault: trials are missing: not within 1 s: a server answers";
        assert_eq!(faults, [told]);
        trials.next = AtomicU32::new(0);
        let none = trials.share(usize::MAX, async |_: &mut Vec<u32>| Err(failed())).await;
        assert!(none.is_err());
    }
}
