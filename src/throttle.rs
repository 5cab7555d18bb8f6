//! Limits how often similar lines are logged, and how often costly reads run.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

use crate::process::spawn;

/// How long a read waits for its turn at most.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// How long the server rests after a read: this multiple of the read's time, within these bounds.
const REST: u32 = 3;
const SHORTEST_REST: Duration = Duration::from_millis(1);
const LONGEST_REST: Duration = Duration::from_millis(100);

/// Passes one event in each interval and counts the others.
#[derive(Debug)]
pub(crate) struct Throttle {
    interval: Duration,
    /// When the last event passed, and how many were suppressed since.
    last: Mutex<(Option<Instant>, u64)>,
}

impl Throttle {
    pub(crate) const fn new(interval: Duration) -> Self {
        Self { interval, last: Mutex::new((None, 0)) }
    }

    /// Returns `Some` if the event may pass, with the number of events suppressed before it.
    pub(crate) fn pass(&self) -> Option<u64> {
        let mut last = self.last.lock();
        let (passed_at, suppressed) = &mut *last;
        if passed_at.is_some_and(|at| at.elapsed() < self.interval) {
            *suppressed += 1;
            return None;
        }
        *passed_at = Some(Instant::now());
        Some(std::mem::take(suppressed))
    }
}

/// Runs one read at a time, with rests between them. However many clients ask, the servers and this process keep most of their
/// time for orders.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace(
    /// When the next read may begin, after the first one has ended.
    Arc<tokio::sync::Mutex<Option<Instant>>>,
);

impl Pace {
    /// The answer of `read`, or `None` if its turn did not come in time. A read that has begun runs to its end, even if the
    /// caller gives up: the next read must not begin earlier.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        read: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let turn = Arc::clone(&self.0).lock_owned();
        let mut next_at = timeout(LONGEST_WAIT, turn).await.ok()?;
        let read = spawn(async move {
            if let Some(next_at) = *next_at {
                sleep_until(next_at).await;
            }
            let began_at = Instant::now();
            let answer = read.await;
            let rest = (began_at.elapsed() * REST).clamp(SHORTEST_REST, LONGEST_REST);
            *next_at = Some(Instant::now() + rest);
            answer
        });
        // only a read that panicked has no answer
        read.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: concurrent reads run one by one with rests between them, even if their callers give up. Reads that would wait too
    /// long are refused.
    #[tokio::test(start_paused = true)]
    async fn reads_have_rests_between_them() {
        let (pace, began_at) = (Pace::default(), Instant::now());
        let read = || async { tokio::time::sleep(Duration::from_millis(10)).await };
        tokio::select! {
            biased;
            _ = pace.run(read()) => panic!("it takes longer"),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
        let all = futures_util::future::join_all((0..100).map(|_| pace.run(read()))).await;
        let done = all.iter().filter(|answer| answer.is_some()).count();
        // one every 40 ms: 1.001 s after the first
        assert_eq!(done, 25);
        assert_eq!(began_at.elapsed(), Duration::from_millis(25 * 40 + 10));
    }
}
