//! Limits the rate of equal lines in the log.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

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

    /// `Some` if the event may pass, with the number of events suppressed before it.
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
