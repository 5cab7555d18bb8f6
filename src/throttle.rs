//! Limits the rate of equal lines in the log.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Passes one event in each interval and counts the others.
#[derive(Debug)]
pub(crate) struct Throttle {
    interval: Duration,
    /// When the next event may pass, in milliseconds since the first use of any throttle.
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl Throttle {
    pub(crate) const fn new(interval: Duration) -> Self {
        Self { interval, next: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    /// `Some` if the event may pass, with the number of events suppressed before it.
    pub(crate) fn pass(&self) -> Option<u64> {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let now = milliseconds(START.elapsed());
        let next = self.next.load(Ordering::Relaxed);
        let after = now.saturating_add(milliseconds(self.interval));
        // only one of several threads passes
        let won = now >= next
            && self
                .next
                .compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if won {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_event_passes_in_each_interval() {
        let throttle = Throttle::new(Duration::from_secs(1));
        assert_eq!(throttle.pass(), Some(0));
        assert_eq!(throttle.pass(), None);
        assert_eq!(throttle.pass(), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(throttle.pass(), Some(2));
        assert_eq!(throttle.pass(), None);
    }
}
