//! Whether a session can still be believed.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::chaos::Safeguard;
use super::{LostReason, observe};

/// The deadline where no clock ends a lease, or the local one is ignored.
pub(super) const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Until when the session's lease is certain to live, by the local monotonic clock.
///
/// Once lost, it stays lost: a renewal that is answered after the deadline changes nothing, because the loss may
/// have been acted on.
#[derive(Debug)]
pub(super) struct Validity {
    deadline: Mutex<Instant>,
    lost: watch::Sender<Option<LostReason>>,
}

impl Validity {
    pub(super) fn until(deadline: Instant) -> Self {
        Self { deadline: Mutex::new(deadline), lost: watch::Sender::new(None) }
    }

    pub(super) fn deadline(&self) -> Instant {
        if !Safeguard::LocalExpiry.is_on() {
            return Instant::now() + FOR_EVER;
        }
        *self.deadline.lock()
    }

    /// Moves the deadline to that of the latest renewal, which may be earlier than before, unless it has passed.
    pub(super) fn renew(&self, deadline: Instant) {
        let mut current = self.deadline.lock();
        let now = Instant::now();
        let is_earlier = deadline < *current;
        if now < *current {
            *current = deadline;
        }
        drop(current);
        if is_earlier {
            // those who wait look at the clock again
            self.lost.send_modify(|_| {});
        }
    }

    /// Declares the session lost; the first reason stands.
    pub(super) fn lose(&self, reason: LostReason) {
        let is_first = self.lost.send_if_modified(|lost| {
            let is_first = lost.is_none();
            lost.get_or_insert(reason);
            is_first
        });
        // behind the lock of `lost`: whoever records it may ask whether the session is lost
        if is_first {
            observe::session_ended(reason);
        }
    }

    /// How the session was lost, if it is. Looks at the clock as well, so it is right even while the
    /// session's own task does not get to run.
    pub(super) fn lost_reason(&self) -> Option<LostReason> {
        if self.lost.borrow().is_none() && Instant::now() >= self.deadline() {
            self.lose(LostReason::Expired);
        }
        *self.lost.borrow()
    }

    /// Waits until the session is lost.
    pub(super) async fn lost(&self) -> LostReason {
        let mut lost = self.lost.subscribe();
        loop {
            if let Some(reason) = self.lost_reason() {
                return reason;
            }
            tokio::select! {
                // `self` keeps the sender, so this cannot fail
                _ = lost.changed() => {}
                // the clock is looked at here as well: the session's own task may not get to run
                () = sleep_until(self.deadline()) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::time::{advance, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn valid_for_two_seconds() -> Validity {
        Validity::until(Instant::now() + 2 * SECOND)
    }

    /// Goal: the loss is known by the clock alone, to a caller that asks and to one that waits, though no task
    /// declares it; a renewal that comes back after the deadline does not bring the session back. A renewal that grants
    /// less than there was counts, also for those who wait already.
    #[tokio::test(start_paused = true)]
    async fn lost_by_the_clock() {
        let (asked, renewed) = (valid_for_two_seconds(), valid_for_two_seconds());
        advance(SECOND).await;
        assert_eq!([asked.lost_reason(), renewed.lost_reason()], [None; 2]);
        advance(SECOND).await;
        renewed.renew(Instant::now() + SECOND);
        let reason = LostReason::Expired;
        assert_eq!([asked.lost_reason(), renewed.lost_reason()], [Some(reason); 2]);
        assert_eq!(timeout(3 * SECOND, valid_for_two_seconds().lost()).await, Ok(reason));

        let less = valid_for_two_seconds();
        let mut waiting = pin!(less.lost());
        assert!(timeout(SECOND / 4, &mut waiting).await.is_err());
        less.renew(Instant::now() + SECOND / 4);
        assert_eq!(timeout(SECOND / 2, waiting).await, Ok(reason));
        assert_eq!(less.lost_reason(), Some(reason));
    }
}
