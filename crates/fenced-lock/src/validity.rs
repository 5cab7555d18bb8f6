//! The time until which a session can be believed.

use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::{Mutex, ReentrantMutex};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::chaos::Safeguard;
use super::{LostReason, observe};

/// The deadline if no clock ends the lease, or if the local clock is ignored.
pub(super) const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The longest time for which the logging of a loss delays others that declare it.
const LONGEST_TELLING: Duration = Duration::from_secs(1);

/// The deadline until which the session's lease certainly lives, by the local monotonic clock.
///
/// A lost session stays lost: a renewal that is answered after the deadline changes nothing, since a holder may have acted on the
/// loss.
#[derive(Debug)]
pub(super) struct Validity {
    lease: i64,
    deadline: Mutex<Instant>,
    /// The first reason, set when its logging begins.
    reason: OnceLock<LostReason>,
    /// Held while the loss is logged, so that nobody makes it known earlier. Reentrant, since a log's subscriber may ask whether
    /// the session is lost.
    telling: ReentrantMutex<()>,
    /// The reason, when callers may know it.
    lost: watch::Sender<Option<LostReason>>,
}

impl Validity {
    pub(super) fn until(deadline: Instant, lease: i64) -> Self {
        let (deadline, lost) = (Mutex::new(deadline), watch::Sender::new(None));
        let (reason, telling) = (OnceLock::new(), ReentrantMutex::new(()));
        Self { lease, deadline, reason, telling, lost }
    }

    pub(super) fn deadline(&self) -> Instant {
        if !Safeguard::LocalExpiry.is_on() {
            return Instant::now() + FOR_EVER;
        }
        *self.deadline.lock()
    }

    /// Sets the deadline of the latest renewal, which may be earlier than the present one. Does nothing after the present one has
    /// passed.
    pub(super) fn renew(&self, deadline: Instant) {
        let mut current = self.deadline.lock();
        let now = Instant::now();
        let is_earlier = deadline < *current;
        if now < *current {
            *current = deadline;
        }
        drop(current);
        if is_earlier {
            // wakes the waiters, so that they wait for the new deadline
            self.lost.send_modify(|_| {});
        }
    }

    /// Declares the session lost; the first reason counts. The loss is logged before a caller knows of it.
    pub(super) fn lose(&self, reason: LostReason) {
        // with a limit: the thread that has it is logging, and may wait for a lock that this thread holds
        let _telling = self.telling.try_lock_for(LONGEST_TELLING);
        if self.reason.set(reason).is_ok() {
            observe::session_ended(self.lease, reason);
        }
        let reason = *self.reason.get_or_init(|| reason);
        self.lost.send_if_modified(|lost| lost.replace(reason).is_none());
    }

    /// The reason of the loss, if the session is lost. Looks at the clock, so it is right even while the session's own task does
    /// not run.
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
                biased;
                // cannot fail, since `self` keeps the sender
                _ = lost.changed() => {}
                // look at the clock here, too: the session's own task may not run
                () = sleep_until(self.deadline()) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::{Arc, mpsc};
    use std::thread;

    use tokio::time::{advance, timeout};
    use tracing::span::{Attributes, Id, Record};
    use tracing::subscriber::with_default;
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn valid_for_two_seconds() -> Validity {
        Validity::until(Instant::now() + 2 * SECOND, 1)
    }

    struct Log {
        validity: Arc<Validity>,
        /// Whether the log waits for another thread that notices the loss.
        waits: bool,
        /// Whether the loss was known at each event.
        was_known: Mutex<Vec<bool>>,
    }

    impl Subscriber for Log {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            let (validity, (begin, begins)) = (Arc::clone(&self.validity), mpsc::channel());
            let other = thread::spawn(move || {
                begin.send(()).expect("the log waits for it");
                validity.lose(LostReason::Revoked);
            });
            begins.recv().expect("it sends first");
            // this gives up long before the log's second is over, also on a busy machine
            let is_known = (0..20).any(|_| {
                thread::yield_now();
                self.validity.lost.borrow().is_some() || other.is_finished()
            });
            self.was_known.lock().push(is_known);
            if self.waits {
                other.join().expect("it does not panic");
            }
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    /// Goal: the loss is logged once, and before a caller knows of it, whoever notices it first. A log that waits for such a
    /// caller stops nobody for good. Method: another thread notices the loss while it is being logged.
    #[tokio::test(start_paused = true)]
    async fn a_loss_is_logged_before_it_is_known() {
        for waits in [false, true] {
            let validity = Arc::new(valid_for_two_seconds());
            let was_known = Mutex::default();
            let log = Arc::new(Log { validity: Arc::clone(&validity), waits, was_known });
            advance(3 * SECOND).await;
            // with a single subscriber, another test's thread, which has none, could come first and switch the event off for good
            let _second = tracing::Dispatch::new(Arc::clone(&log));
            with_default(Arc::clone(&log), || {
                assert_eq!(validity.lost_reason(), Some(LostReason::Expired));
                validity.lose(LostReason::Revoked);
            });
            assert_eq!(*log.was_known.lock(), [false]);
            assert_eq!(validity.lost_reason(), Some(LostReason::Expired));
        }
    }

    /// Goal: the clock alone makes the loss known, to a caller that asks and to one that waits, though no task declares it. A
    /// renewal that is answered after the deadline does not bring the session back. A renewal that shortens the lease counts,
    /// also for callers that wait already.
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
